"""The verdict in words: is the classifier sensitive, for which classes, and would it be better if it were not?"""

from __future__ import annotations

from typing import Any

import torch

from vpgcnn.lab.diagnosis.study import SENSITIVE, Study
from vpgcnn.measure.evidence import cautious

__all__ = ["ADVICE", "verdict"]

LISTED = 5
ADVICE = {
    "chance": "The classifier is no better than chance, so the other numbers mean little. Check that --size, --mean, "
    "--std and --classes are those it was trained with.",
    "few": "More images are needed.",
    "keep": "Nothing needs to change.",
    "blind": "The classifier hardly uses {what}, although it helps to predict the class of some images. A model that "
    "uses it could be better.",
    "help": "A {kind}-equivariant model could help: in these images, {what} gives no sign of helping to predict the "
    "class.",
    "open": "These images cannot show whether ignoring {kind} would help or hurt: the difference is smaller than twice "
    "its standard error. A partially equivariant model learns it from the data.",
    "partial": "A fully {kind}-equivariant model may help or hurt. It cannot use {what}, without which similar images "
    "lose {share:.0%} of their advantage over chance in predicting the class. A partially equivariant model learns, "
    "for each image, how much to ignore.",
    "hurt": "The classifier is probably right to be sensitive. Without {what}, similar images lose {share:.0%} of "
    "their advantage over chance in predicting the class, and a fully {kind}-equivariant model might lose as much. A "
    "partially equivariant model learns, for each image, how much to ignore.",
}
HELPS = {True: "helps to predict the class", False: "does not help to predict the class", None: "may or may not help"}


def verdict(study: Study) -> dict[str, Any]:
    """Summarise a study.

    Args:
        study: The measurements.

    Returns:
        `headline`, `sentences`, `advice` (a key of `ADVICE`) and its `text`.
    """
    kind = study.kind
    hue = kind == "hue"
    what = "colour" if hue else "orientation"
    rows = study.classes()
    sensitive = sorted((row for row in rows if row["sensitive"]), key=lambda row: row["mean"] - row["accuracy"])
    lost, error = study.loses(study.orbit.labels >= 0)
    helps, share = study.witness.matters(), study.witness.share
    key = _advice(study, bool(sensitive), helps)
    sentences = [_accuracy(study)]
    if sensitive:
        most = ", ".join(f"{row['class']} ({row['accuracy']:.0%} → {row['mean']:.0%})" for row in sensitive[:LISTED])
        sentences.append(f"{'Largest losses' if len(sensitive) > 1 else 'Largest loss'}: {most}.")
    errors = study.orbit.errors()
    if errors["floor"] > 0.01:
        sentences.append(
            f"Its predictions change by {errors['mean']:.2f} on average (of at most 1). Rotating an image there and "
            f"back, which only resamples the pixels, changes them by {errors['floor']:.2f}."
        )
    mean, doubt = study.witness.gain()
    sentences.append(
        f"The images alone: the most similar images, by {'their hues' if hue else 'coarse shape'}, predict the class "
        f"of {float(study.witness.as_is.mean()):.1%} of the images, and of {float(study.witness.free.mean()):.1%} if "
        f"each may be {'shifted in hue' if hue else 'rotated'} to match (chance: {study.witness.chance:.1%}). So "
        f"{what} {HELPS[helps]} ({100 * mean:+.1f} points, standard error {100 * doubt:.1f})."
    )
    if key in ("partial", "hurt"):
        for does, wanted in (("helps", True), ("does not help", False)):
            names = [row["class"] for row in sensitive if row["circle_tells"] is wanted]
            more = ", …" if len(names) > LISTED else ""
            if names:
                listed = ", ".join(names[:LISTED])
                sentences.append(f"Among the sensitive classes, {what} {does} in {len(names)}: {listed}{more}.")
    return {
        "headline": _headline(study, len(sensitive), len(rows), lost, error),
        "sentences": sentences,
        "advice": key,
        "text": ADVICE[key].format(kind=kind, what=what, share=share),
    }


def _headline(study: Study, sensitive: int, classes: int, lost: float, error: float) -> str:
    name = study.orbit.moves.name
    if sensitive:
        return f"Sensitive to {name} in {sensitive} of {classes} classes."
    if lost >= SENSITIVE and lost >= 2 * error:
        return f"Sensitive to {name}, although no class has enough images to be certain."
    if lost + 2 * error >= SENSITIVE:
        return f"Too few images to tell whether it is sensitive to {name}."
    same = float(study.orbit.consistency.mean())
    changes = f", but {1 - same:.0%} of its predictions change" if same < 0.9 else ""
    return f"Accuracy is not sensitive to {name}{changes}."


def _accuracy(study: Study) -> str:
    orbit = study.orbit
    accuracy = orbit.right.mean(dim=1)
    worst = int(accuracy.argmin())
    where = f" ({orbit.moves.shown(orbit.moves.places[worst])})" if worst else ""
    return (
        f"The classifier is right about {float(accuracy[0]):.1%} of {len(orbit.labels)} original images, "
        f"{float(accuracy.mean()):.1%} on average over {len(accuracy)} places on the circle, and "
        f"{float(accuracy.min()):.1%} at the worst place{where}. It keeps its prediction at "
        f"{float(orbit.consistency.mean()):.0%} of the places."
    )


def _chance(study: Study) -> float:
    """How often the classifier would be right if it always chose the most frequent class of the folder.

    A model may have more classes than the folder: then only as far as its answers are classes of the folder.
    """
    labels = study.orbit.labels
    among = torch.isin(study.orbit.guesses[0], labels.unique()).float().mean()
    return float(labels.bincount().max()) / len(labels) * float(among)


def _advice(study: Study, sensitive: bool, helps: bool | None) -> str:
    right = study.orbit.right[0]
    mean, error = cautious(right)
    if mean <= _chance(study) + 2 * error:
        return "chance"
    lost, doubt = study.loses(study.orbit.labels >= 0)
    if not sensitive and not (lost >= SENSITIVE and lost >= 2 * doubt):
        if lost + 2 * doubt >= SENSITIVE:
            return "few"
        return "blind" if helps else "keep"
    if helps is None:
        return "open"
    return ("hurt" if study.witness.share > 0.5 else "partial") if helps else "help"
