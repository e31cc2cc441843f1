"""What the paper says, held against what our results say: each claim is computed from the JSON files, never typed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev

from vpgcnn.data.flowers import CLASSES
from vpgcnn.experiments.base import Row, accuracy, gap, markdown
from vpgcnn.experiments.stability import overall

__all__ = ["CLAIMS", "Claim", "Finding", "table_claims"]

Results = Mapping[str, list[Row]]
"""The rows of each experiment, by its name; experiments that were not run are not there."""


@dataclass(frozen=True)
class Finding:
    """verdict: yes, no, rather yes, rather no, open (within the noise), or not measured. evidence: with numbers."""

    verdict: str
    evidence: str


Judge = Callable[[Results], Finding]


@dataclass(frozen=True)
class Claim:
    """What the paper says or its tables show, and what our results make of it. "Say": the number is ours."""

    says: str
    judge: Judge


NOT_YET = Finding("not measured", "–")


def loss(row: Row) -> float:
    """The negative NLL, so that more is better."""
    return -float(row["scores"]["nll"])


SURE = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t: how many standard errors a mean of so many seeds must be from 0, for 95 %."""
LIKELY = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83}
"""The same for 90 %."""


def judged(gaps: list[float], names: str, unit: str = "points") -> Finding:
    """Whether differences are above 0.

    Yes and no: by a 95 % interval. Rather: by a 90 % interval. One seed alone decides nothing.
    """
    if not gaps:
        return NOT_YET
    if len(gaps) == 1:
        return Finding("open", f"{names}: {gaps[0]:+.2f} {unit} (one seed)")
    # A spread of 0 is no certainty: accuracies are whole numbers of images.
    error = max(stdev(gaps) / math.sqrt(len(gaps)), 1e-3)
    side = "yes" if mean(gaps) > 0 else "no"
    far = abs(mean(gaps)) / error
    seeds = min(len(gaps), max(SURE))
    verdict = side if far > SURE[seeds] else f"rather {side}" if far > LIKELY[seeds] else "open"
    return Finding(verdict, f"{names}: {mean(gaps):+.2f} ± {error:.2f} {unit} ({len(gaps)} seeds)")


ORDER = ("no", "rather no", "open", "rather yes", "yes")


def all_of(findings: list[Finding]) -> Finding:
    """As sure as the least of them; what was not measured leaves it open at best."""
    known = [finding for finding in findings if finding is not NOT_YET]
    if not known:
        return NOT_YET
    least = min((finding.verdict for finding in known), key=ORDER.index)
    if len(known) < len(findings):
        least = min(least, "open", key=ORDER.index)
    return Finding(least, "; ".join(finding.evidence for finding in known))


def better(
    name: str, first: str, second: str, measure: Callable[[Row], float] = accuracy
) -> Callable[[Results], Finding]:
    """The claim that one arm is better than another."""
    unit = "points" if measure is accuracy else "nats"
    words = f"{first} − {second}" if measure is accuracy else f"−NLL of {first} − {second}"
    return lambda results: judged(gap(results.get(name, ()), first, second, measure), words, unit)


def every(*parts: Judge) -> Judge:
    """Several claims as one."""
    return lambda results: all_of([part(results) for part in parts])


def better_by(name: str, first: str, second: str, points: float) -> Judge:
    """The claim that one arm is better than another by so many points; if they are negative: as good up to so many."""

    def judge(results: Results) -> Finding:
        gaps = gap(results.get(name, ()), first, second)
        found = judged([value - points for value in gaps], "")
        plain = judged(gaps, f"{first} − {second}")
        asked = f"asked for {points:g}" if points > 0 else f"within {-points:g}"
        return Finding(found.verdict, f"{plain.evidence}, {asked}") if gaps else NOT_YET

    return judge


def _six_and_seven(results: Results) -> Finding:
    rows = [row for row in results.get("fig-mnist67-180", ()) if row["arm"] == "variational"]
    if not rows:
        return NOT_YET
    said = [row["figures"] for row in rows]
    near, far = min(one["six_within_60"] for one in said), max(one["six_beyond_120"] for one in said)
    seven = min(one["seven_lowest"] for one in said)
    verdict = "yes" if near > 0.5 > far and seven > 0.5 else "no"
    near, far, seven = math.floor(100 * near) / 100, math.ceil(100 * far) / 100, math.floor(100 * seven) / 100
    evidence = f"P(6|6) ≥ {near:.2f} up to 60°, ≤ {far:.2f} from 120° on; P(7|7) ≥ {seven:.2f} at every angle"
    return Finding(verdict, f"{evidence} ({len(rows)} seeds)")


def _widens(results: Results) -> Finding:
    """By 6s, which may not turn by all of the circle: as λ grows, until the loss is higher by 0.05 nats, say."""
    rows = sorted(results.get("fig-principle", ()), key=lambda row: row["config"]["objective"]["start"])
    if len(rows) < 3:
        return NOT_YET
    weights = [row["config"]["objective"]["start"] for row in rows]
    six, seven = ([row["theta"][digit][0] for row in rows] for digit in ("6", "7"))
    losses = [row["test"]["nll"] for row in rows]
    free = [loss < min(losses) + 0.05 for loss in losses]
    last = max((place for place, calm in enumerate(free) if calm), default=0)
    evidence = (
        f"λ from {weights[0]:g} to {weights[last]:g}: θ of 6s {six[0]:.2f} → {six[last]:.2f}, of 7s {seven[0]:.2f} → "
        f"{seven[last]:.2f}, NLL ≤ {max(losses[: last + 1]):.3f}"
    )
    if last + 1 < len(rows):
        evidence += (
            f"; at λ = {weights[last + 1]:g}: θ {six[last + 1]:.2f}, {seven[last + 1]:.2f}, NLL {losses[last + 1]:.3f}"
        )
    widens = all(wider >= narrow - 0.01 for narrow, wider in itertools.pairwise(six))
    touched = 0 < last < len(rows) - 1 and all(free[: last + 1])
    return Finding("yes" if widens and touched else "no", f"{evidence} (one seed each)")


def _daisies(results: Results) -> Finding:
    """θ of each class, the mean over layers."""
    gaps = []
    for row in results.get("table-flowers", ()):
        if row["arm"] == "vp3" and row["theta_by_class"]:
            theta = [mean(each) for each in zip(*row["theta_by_class"].values(), strict=True)]
            gaps.append(theta[CLASSES.index("snapdragon")] - theta[CLASSES.index("barberton daisy")])
    return judged(gaps, "θ of snapdragons − of Barberton daisies", "of 1")


def _fluctuates(results: Results) -> Finding:
    """By what training draws and by what evaluation takes: draws of Gumbel-softmax differ even if it learns nothing."""
    rows = results.get("fig-stability", ())
    drawn: dict[str, list[float]] = {}
    for row in rows:
        drawn.setdefault(row["arm"], []).append(overall(row, "drawn"))
    if not {"gumbel", "ranked"} <= set(drawn):
        return NOT_YET
    seeds = min(len(drawn["gumbel"]), len(drawn["ranked"]))
    evaluated = {arm: mean(overall(row, "evaluated") for row in rows if row["arm"] == arm) for arm in drawn}
    parts = (f"{arm} {mean(values):.4f} ({evaluated[arm]:.4f})" for arm, values in drawn.items())
    evidence = f"change of a weight between epochs as drawn (as evaluated): {', '.join(parts)}"
    more = {mean(drawn["gumbel"]) > 2 * mean(drawn["ranked"]), evaluated["gumbel"] > 2 * evaluated["ranked"]}
    number = "one seed" if seeds == 1 else f"{seeds} seeds"
    verdict = "open" if seeds == 1 or len(more) == 2 else "yes" if True in more else "no"
    return Finding(verdict, f"{evidence} ({number})")


def _costs(results: Results) -> Finding:
    rows = {row["arm"]: row["ratios"] for row in results.get("table-cost", ())}
    if "VP CEResNet" not in rows:
        return NOT_YET
    ratios = rows["VP CEResNet"]
    same = abs(ratios["parameters"] / 1.2416 - 1) < 0.01 and abs(ratios["flops"] - 1.0006) < 0.01
    evidence = (
        f"parameters × {ratios['parameters']:.4f}, operations × {ratios['flops']:.4f}, time × {ratios['time']:.2f}"
    )
    return Finding("yes" if same else "no", evidence)


EQUAL = ("learned", "ce3", "partial3")
"""Rivals on Flowers102, whose wider twins have as many parameters as the variational one's."""

CLAIMS = (
    Claim("on MNIST67-180 a 6 may turn by less than half a circle, a 7 by all of it", _six_and_seven),
    Claim("with a larger λ windows widen, until the classification loss is touched", _widens),
    Claim(
        "on CIFAR-10 partial networks are better than the fully equivariant one",
        every(better("table-cifar10", "learned", "full"), better("table-cifar10", "variational", "full")),
    ),
    Claim(
        "on CIFAR-10 InstaAug does worse than its network without, ordinary or equivariant",
        every(
            better("table-cifar10", "t2", "t2-instaaug"),
            better("table-cifar10", "full", "full-instaaug"),
        ),
    ),
    Claim(
        "on CIFAR-100 partial networks are better than the fully equivariant one",
        every(better("table-cifar100", "learned", "full"), better("table-cifar100", "variational", "full")),
    ),
    Claim(
        "on ColorMNIST hue equivariance is far better than none (by more than 5 points, say)",
        better_by("table-colormnist", "ce3", "cnn-26k", 5.0),
    ),
    Claim(
        "on ColorMNIST Partial G-CNN is far worse than full equivariance (by more than 5 points, say)",
        every(
            better_by("table-colormnist", "ce3", "partial3", 5.0), better_by("table-colormnist", "ce6", "partial6", 5.0)
        ),
    ),
    Claim(
        "on ColorMNIST VP G-CNN is about as good as full equivariance (less than 2 points worse, say)",
        every(better_by("table-colormnist", "vp3", "ce3", -2.0), better_by("table-colormnist", "vp6", "ce6", -2.0)),
    ),
    Claim(
        "on ColorMNIST InstaAug does not replace equivariance",
        every(better("table-colormnist", "ce3", "cnn-instaaug"), better("table-colormnist", "ce6", "cnn-instaaug")),
    ),
    Claim(
        "on ColorMNIST InstaAug gains little over its network without, ordinary or equivariant (a point at most, say)",
        every(
            better_by("table-colormnist", "cnn-19k", "cnn-instaaug", -1.0),
            better_by("table-colormnist", "ce3", "ce3-instaaug", -1.0),
            better_by("table-colormnist", "ce6", "ce6-instaaug", -1.0),
        ),
    ),
    Claim(
        "on Flowers102 VP G-CNN is better than full equivariance, the hybrid and Partial G-CNN",
        every(*(better("table-flowers", "vp3", other) for other in ("ce3", "ce3-hybrid", "partial3"))),
    ),
    Claim(
        "(ours) on Flowers102 a level for each image is better than one for all",
        better("table-flowers", "vp3", "learned"),
    ),
    Claim(
        "(ours) the same at equal parameters, and better than full equivariance and Partial G-CNN",
        every(*(better("table-flowers", "vp3-wide", f"{other}-wide") for other in EQUAL)),
    ),
    Claim(
        "(ours) at equal parameters it has the lower NLL",
        every(*(better("table-flowers", "vp3-wide", f"{other}-wide", loss) for other in EQUAL)),
    ),
    Claim(
        "(ours) with encoders that only look it is better than all of these",
        every(*(better("table-flowers", "vp3-detached-wide", f"{other}-wide") for other in EQUAL)),
    ),
    Claim(
        "(ours) and has the lower NLL",
        every(*(better("table-flowers", "vp3-detached-wide", f"{other}-wide", loss) for other in EQUAL)),
    ),
    Claim(
        "on Flowers102 VP G-CNN has the lower NLL",
        every(*(better("table-flowers", "vp3", other, loss) for other in ("ce3", "ce3-hybrid", "partial3"))),
    ),
    Claim(
        "on Flowers102 VP G-CNN is better than AdaAug",
        every(*(better("table-flowers", "vp3", f"{other}-adaaug") for other in ("resnet", "ce3", "partial3"))),
    ),
    Claim("on Flowers102 windows are wide for snapdragons and narrow for Barberton daisies", _daisies),
    Claim("Gumbel-softmax fluctuates to the end, ranked softmax settles", _fluctuates),
    Claim("VP costs × 1.2416 parameters and × 1.0006 operations", _costs),
)


def table_claims(results: Results) -> str:
    """Every claim with its verdict and the numbers."""
    findings = [(claim, claim.judge(results)) for claim in CLAIMS]
    return markdown(
        ["the paper", "here", "numbers"], [(c.says, f.verdict, f.evidence.replace("|", "\\|")) for c, f in findings]
    )
