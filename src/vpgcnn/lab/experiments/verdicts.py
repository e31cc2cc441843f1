"""Verdicts on claims: whether results support a statement, computed from the rows and never typed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, stdev

from scipy.stats import t as student_t

from vpgcnn.lab.experiments.base import Claim, Finding, Row, accuracy, gap, markdown

__all__ = ["NOT_MEASURED", "all_of", "better", "better_by", "every", "judged", "negative_nll", "table_claims"]

NOT_MEASURED = Finding("not measured", "–")
ORDER = ("no", "rather no", "open", "rather yes", "yes")
SURE, LIKELY = 0.95, 0.90
"""The intervals behind "yes" and "rather yes"."""
SMALLEST_ERROR = 1e-3
"""A spread of 0 between seeds is not certainty: accuracies are whole numbers of images."""
Judge = Callable[[Sequence[Row]], Finding]


def negative_nll(row: Row) -> float:
    """−NLL, so that more is better."""
    return -float(row["scores"]["nll"])


def judged(gaps: Sequence[float], names: str, unit: str = "points") -> Finding:
    """Whether the mean of differences is above 0.

    Args:
        gaps: One difference for each seed.
        names: What was subtracted from what.
        unit: Of the differences.

    Returns:
        "yes" or "no" if 0 is outside the 95 % interval of the mean (Student's t), "rather" if it is outside the
        90 % interval, else "open". One seed decides nothing.
    """
    if not gaps:
        return NOT_MEASURED
    if len(gaps) == 1:
        return Finding("open", f"{names}: {gaps[0]:+.2f} {unit} (one seed)")
    error = max(stdev(gaps) / math.sqrt(len(gaps)), SMALLEST_ERROR)
    side = "yes" if mean(gaps) > 0 else "no"
    distance = abs(mean(gaps)) / error
    sure, likely = (float(student_t.ppf((1 + share) / 2, len(gaps) - 1)) for share in (SURE, LIKELY))
    verdict = side if distance > sure else f"rather {side}" if distance > likely else "open"
    return Finding(verdict, f"{names}: {mean(gaps):+.2f} ± {error:.2f} {unit} ({len(gaps)} seeds)")


def all_of(findings: Sequence[Finding]) -> Finding:
    """Several findings as one: the least favourable verdict; at best "open" if one of them was not measured."""
    known = [finding for finding in findings if finding is not NOT_MEASURED]
    if not known:
        return NOT_MEASURED
    least = min((finding.verdict for finding in known), key=ORDER.index)
    if len(known) < len(findings):
        least = min(least, "open", key=ORDER.index)
    return Finding(least, "; ".join(finding.evidence for finding in known))


def better(first: str, second: str, measure: Callable[[Row], float] = accuracy) -> Judge:
    """Judges whether one arm is better than another."""
    unit = "points" if measure is accuracy else "nats"
    words = f"{first} − {second}" if measure is accuracy else f"−NLL of {first} − {second}"
    return lambda rows: judged(gap(rows, first, second, measure), words, unit)


def better_by(first: str, second: str, points: float) -> Judge:
    """Judges whether one arm is better than another by some points; a negative number allows it to be worse."""

    def judge(rows: Sequence[Row]) -> Finding:
        gaps = gap(rows, first, second)
        if not gaps:
            return NOT_MEASURED
        wanted = f"wanted {points:g}" if points > 0 else f"allowed {points:g}"
        verdict = judged([value - points for value in gaps], "").verdict
        return Finding(verdict, f"{judged(gaps, f'{first} − {second}').evidence}, {wanted}")

    return judge


def every(*parts: Judge) -> Judge:
    """Judges several claims as one."""
    return lambda rows: all_of([part(rows) for part in parts])


def table_claims(claims: Iterable[tuple[str, Claim]], results: Mapping[str, Sequence[Row]]) -> str:
    """Every claim with its verdict and the numbers, as Markdown.

    Args:
        claims: Pairs of the experiment's name and the claim.
        results: The rows of each experiment that has been run.
    """
    lines = []
    for name, claim in claims:
        finding = claim.judge(results.get(name, ()))
        lines.append((claim.text, finding.verdict, finding.evidence.replace("|", "\\|")))
    return markdown(["claim", "here", "numbers"], lines)
