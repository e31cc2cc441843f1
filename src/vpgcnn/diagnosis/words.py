"""What was found, in words: is the classifier sensitive, where, and would it be right not to be?"""

from __future__ import annotations

from typing import Any

from vpgcnn.diagnosis.study import Study

__all__ = ["ADVICE", "verdict"]

LISTED = 5
ADVICE = {
    "keep": "Nothing has to be done.",
    "help": "A {kind}-equivariant model would help: nothing is lost by ignoring {kind} here.",
    "hurt": "A fully {kind}-equivariant model would hurt, because {what} is the label, for the most part ({share:.0%} "
    "of what neighbours know). Robustness is to be had image by image only: from a partially equivariant model, which "
    "learns for each how much to ignore.",
    "partial": "A fully {kind}-equivariant model may help or hurt: it cannot see {what}, and that is a part of the "
    "label ({share:.0%} of what neighbours know). A partially equivariant model learns for each image how much to "
    "ignore.",
    "open": "These images cannot say whether ignoring {kind} would help or hurt: the difference is within its error. A "
    "partially equivariant model learns it.",
    "blind": "It ignores {kind}, although {what} tells the class of some images: a model that looks at it could be "
    "better.",
}


def verdict(study: Study) -> dict[str, Any]:
    """headline, sentences, and the advice: keep, help, partial, hurt, open or blind (see `ADVICE`)."""
    kind: str = study.kind
    what = "colour" if study.kind == "hue" else "which way up it is"
    said, rows = study.orbit.summary(), study.classes()
    accuracy, moves = said["accuracy"], study.orbit.moves
    sensitive = sorted((row for row in rows if row["sensitive"]), key=lambda row: row["mean"] - row["accuracy"])
    every = bool(study.sensitive(study.orbit.labels >= 0))
    headline = f"Sensitive to {kind} in {len(sensitive)} of {len(rows)} classes."
    if not sensitive:
        headline = f"Not sensitive to {kind} in any of {len(rows)} classes" + (
            ", as far as so few images of each can tell; all together it is." if every else "."
        )
    worst = int(study.orbit.right.mean(dim=1).argmin())
    sentences = [
        f"{accuracy['as it is']:.1%} of {said['images']} images are classified rightly as they are, "
        f"{accuracy['mean']:.1%} on average over {len(moves.places)} places on the circle, {accuracy['lowest']:.1%} at "
        f"the worst ({shown(moves.places[worst], moves.unit)}). The answer stays the same at {said['consistency']:.0%} "
        f"of the places."
    ]
    if sensitive:
        most = ", ".join(f"{row['class']} ({row['accuracy']:.0%} → {row['mean']:.0%})" for row in sensitive[:LISTED])
        sentences.append(f"{'These lose' if len(sensitive) > 1 else 'This one loses'} most: {most}.")
    if said["error"]["floor"] > 0.01:
        sentences.append(
            f"Of the change in its answers ({said['error']['mean']:.2f} on average, of at most 1), "
            f"{said['error']['floor']:.2f} is due to resampling pixels alone."
        )
    tells = study.witness.matters()
    mean, error = study.witness.told()
    sentences.append(
        f"The images themselves: neighbours that are alike in {'their hues' if kind == 'hue' else 'coarse shape'} tell "
        f"the class of {float(study.witness.as_is.mean()):.1%} of them, and of {float(study.witness.free.mean()):.1%} "
        f"when each may be {'shifted in hue' if kind == 'hue' else 'turned'} to fit (chance: "
        f"{study.witness.chance:.1%}). So {what} {_tells(tells)} ({100 * mean:+.1f} ± {100 * error:.1f} points)."
    )
    share = study.witness.share
    key = _advice(bool(sensitive) or every, tells, share)
    if key in ("partial", "hurt"):
        free = [row["class"] for row in sensitive if row["circle_tells"] is False]
        bound = [row["class"] for row in sensitive if row["circle_tells"] is True]
        sentences += [
            f"Among the sensitive classes it {does} in {len(names)}: {', '.join(names[:LISTED])}"
            f"{', …' if len(names) > LISTED else ''}."
            for does, names in (("matters", bound), ("does not matter", free))
            if names
        ]
    return {
        "headline": headline,
        "sentences": sentences,
        "advice": key,
        "text": ADVICE[key].format(kind=kind, what=what, share=share),
    }


def shown(place: float, unit: str) -> str:
    """A place on the circle, to be read."""
    return f"{place:.0f}{unit}" if unit == "°" else f"{place:.2f} {unit}"


def _tells(matters: bool | None) -> str:
    return {True: "is a part of the label", False: "says nothing about the label", None: "may or may not matter"}[
        matters
    ]


def _advice(sensitive: bool, tells: bool | None, share: float) -> str:
    if not sensitive:
        return "blind" if tells else "keep"
    return {True: "hurt" if share > 0.5 else "partial", False: "help", None: "open"}[tells]
