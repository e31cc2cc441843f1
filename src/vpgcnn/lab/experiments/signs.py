"""table-gtsrb-turn, table-gtsrb-mirror: traffic signs as they stand on the road, and moved as no network has seen them.

Most signs stay what they are at any angle, or mirrored; a few become another sign. Accuracy on the road hardly tells
arms apart. The columns beside it do: free signs everywhere, bound signs inside their range, and twins confused. The
networks are those of `regret-gtsrb-turn` and `regret-gtsrb-mirror`, with the arms of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, stdev

from torch import Tensor

from vpgcnn.lab.data.signs import SIGNS
from vpgcnn.lab.experiments.arms import SHARED, T2, augmented, with_level
from vpgcnn.lab.experiments.base import Arm, Claim, Finding, Found, Row, View, gap, markdown
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED, all_of, judged
from vpgcnn.lab.training.config import TrainConfig

__all__ = ["ARMS", "CLAIMS", "MIRROR", "PLAIN", "TURN", "confused"]

TWINS = {
    "gtsrb-turn": tuple(frozenset(twin for twin, _ in sign.rotation_twins) for sign in SIGNS),
    "gtsrb-mirror": tuple(frozenset() if sign.mirror_twin is None else frozenset({sign.mirror_twin}) for sign in SIGNS),
}
"""For each class, those that a move makes of it."""


def flipped(config: TrainConfig) -> TrainConfig:
    """The ordinary network, trained on images that are mirrored at random."""
    return replace(T2(config), data=replace(config.data, augment="crop-flip"))


PARTIAL = Arm("one learned level for all images (Partial G-CNN)", SHARED)
WIDER_T2 = with_level("t2", widths=(34, 51, 520))
"""Harmonic kernels have numbers for every relative angle: without a group, wider layers have as many."""
ROTATED = augmented(WIDER_T2, "fixed", initial=1.0, samples=1)
AVERAGED = augmented(WIDER_T2, "fixed", initial=1.0, samples=8, training=False)
PLAIN = {"gtsrb-turn": Arm("the same network without a group, wider: as many parameters", WIDER_T2)}
"""The ordinary network of a task, where it is not simply the same network without a group."""
ARMS: dict[str, dict[str, Arm]] = {
    "gtsrb-turn": {
        "shared": PARTIAL,
        "t2-rotate": Arm("t2, trained on signs that are rotated at random", ROTATED),
        "t2-tta": Arm("t2, averaged over eight rotations at test time", AVERAGED),
        "t2-augerino": Arm("t2 with Augerino: one learned range of rotations", augmented(WIDER_T2, "shared")),
        "t2-instaaug": Arm(
            "t2 with InstaAug: a predicted range of rotations for each image", augmented(WIDER_T2, "image")
        ),
        "t2-adaaug": Arm("t2 with AdaAug: a searched policy of rotations", augmented(WIDER_T2, "policy")),
    },
    "gtsrb-mirror": {
        "shared": PARTIAL,
        "t2-flip": Arm("t2, trained on signs that are mirrored at random and shifted by up to 4 pixels", flipped),
    },
}
"""The arms of each task beside fixed and learned levels."""


def confused(logits: Tensor, labels: Tensor, dataset: str) -> float | None:
    """The share of the bound signs, as they stand on the road, that are taken for a twin.

    Args:
        logits: `(N, 43)`.
        labels: `(N,)`.
        dataset: Which move makes twins.

    Returns:
        The share; None for other datasets, or if no sign is bound.
    """
    if dataset not in TWINS:
        return None
    twins, answers = TWINS[dataset], logits.argmax(dim=1).tolist()
    others = [(answer, twins[label]) for answer, label in zip(answers, labels.tolist(), strict=True) if twins[label]]
    return mean(float(answer in those) for answer, those in others) if others else None


def _value(row: Row, column: str) -> float | None:
    """A number of a row in per cent; None where there is none."""
    if column == "test":
        return 100 * float(row["test"]["accuracy"])
    found = row.get("twins") if column == "twins" else next(iter(row["places"].values()))[column]
    return None if found is None else 100 * float(found)


COLUMNS = {
    "test": "on the road (A)",
    "free": "free signs at unseen places (B)",
    "bound": "bound signs inside their range (C)",
    "twins": "taken for a twin (D)",
}


def sign_rows(found: Found) -> list[Row]:
    """One line for each arm: the numbers of all seeds."""
    (rows,) = found.values()
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        same = [row for row in rows if row["arm"] == arm]
        line: Row = {"arm": arm, "seeds": [row["seed"] for row in same], "parameters": same[0]["parameters"]}
        line["minutes"] = round(mean(row["seconds"] for row in same) / 60, 1)
        for column in COLUMNS:
            values = [_value(row, column) for row in same]
            line[column] = None if None in values else [round(value, 2) for value in values if value is not None]
        line["worst"] = round(min(mean(line[key]) for key in ("test", "free", "bound") if line[key]), 2)
        truth = [row["truth"][0] for row in same if "truth" in row]
        line["auroc"] = round(mean(one["auroc"] for one in truth), 3) if truth else None
        lines.append(line)
    return lines


def table_signs(rows: list[Row]) -> str:
    """One line for each arm: means ± standard deviations over seeds."""
    heads = ["arm", *COLUMNS.values(), "worst of A, B, C", "θ AUROC", "seeds", "parameters", "minutes a run"]
    lines = []
    for row in rows:
        cells = ["**default**" if row["arm"] == "default" else row["arm"], *(_text(row[key]) for key in COLUMNS)]
        cells += [f"{row['worst']:.1f}", "–" if row["auroc"] is None else f"{row['auroc']:.3f}"]
        lines.append([*cells, ", ".join(map(str, row["seeds"])), f"{row['parameters']:,}", f"{row['minutes']:.1f}"])
    return markdown(heads, lines)


def _text(values: Sequence[float] | None) -> str:
    if not values:
        return "–"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def within(points: float, column: str) -> Callable[[Sequence[Row]], Finding]:
    """Judges whether the default is behind no other arm by more than so many points."""

    def value(row: Row) -> float:
        return _value(row, column) or 0.0

    def judge(rows: Sequence[Row]) -> Finding:
        parts = []
        for other in dict.fromkeys(row["arm"] for row in rows if row["arm"] != "default"):
            gaps = gap(rows, "default", other, value)
            if gaps:
                verdict = judged([one + points for one in gaps], "").verdict
                parts.append(Finding(verdict, judged(gaps, f"default − {other}").evidence))
        return all_of(parts) if parts else NOT_MEASURED

    return judge


def _claims(moved: str, *, bound: bool) -> tuple[Claim, ...]:
    claims = [
        Claim(
            f"{moved} signs: on the road, a level for each image is within .5 points of all others", within(0.5, "test")
        ),
        Claim(f"{moved} signs: of free signs at unseen places, within 2 points of all", within(2.0, "free")),
    ]
    if bound:
        claims.append(Claim(f"{moved} signs: of bound signs inside their range, within 2 points", within(2.0, "bound")))
    return tuple(claims)


CLAIMS = {"gtsrb-turn": _claims("rotated", bound=True), "gtsrb-mirror": _claims("mirrored", bound=False)}
"""What we say about the arms of each task."""


def _view(task: str, about: str, *notes: str) -> View:
    arms = ("default", "closed", "fixed-100", "t2", *ARMS[task])
    return View(
        name=f"table-{task}",
        about=f"{about} (not in the paper)",
        sources={f"regret-{task}": arms},
        rows=sign_rows,
        table=table_signs,
        notes=(
            "All arms are trained on signs as they stand on the road. closed, fixed-100: windows of the identity alone "
            "and of the whole group. Means ± standard deviations over seeds, in per cent.",
            *notes,
            "Taken for a twin: the share of bound signs, on the road, that get the class which a move makes of them.",
        ),
    )


TURN = _view(
    "gtsrb-turn",
    "traffic signs on the road and rotated: levels, and augmentation instead of levels",
    "Unseen places: 600 test images at 23 rotations, multiples of 15°; bound signs within two thirds of their range.",
)
MIRROR = _view(
    "gtsrb-mirror",
    "traffic signs on the road and mirrored: levels, and augmentation instead of levels",
    "Unseen places: 600 test images mirrored; a bound sign has no other place. Augerino, InstaAug and AdaAug move "
    "images by a range, and a mirror has none.",
)
