"""The verdict in words: is the classifier sensitive, for which classes, and would it be better if it were not?"""

from __future__ import annotations

from typing import Any

import torch

from vpgcnn.lab.diagnosis import look_words
from vpgcnn.lab.diagnosis.study import SENSITIVE, Study
from vpgcnn.measure.scores import cautious

__all__ = ["ADVICE", "verdict"]

LISTED = 5
ADVICE = {
    "chance": "The classifier is no better than chance, so the other numbers mean little. Check that --size, --mean, "
    "--std and --classes are those it was trained with.",
    "few": "More images are needed.",
    "keep": "Nothing needs to change.",
    "blind": "The classifier hardly uses {what}, although {what} matters for {whom}. A model that uses it could "
    "be better.",
    "help": "A {kind}-equivariant model could help: in these images, the class is not carried by {what}. {follows}",
    "open": "These images cannot show whether ignoring {what} would help or hurt. A partially equivariant model learns "
    "it from the data.",
    "partial": "A fully {kind}-equivariant model may help or hurt, because it cannot use {what}: without it, simple "
    "features lose {share:.0%} of their advantage over chance in predicting the class. {follows}",
    "twins": "A fully {kind}-equivariant model cannot tell some classes from each other, because they turn into each "
    "other. {follows}",
    "hurt": "The classifier is probably right to be sensitive. Without {what}, simple features lose {share:.0%} of "
    "their advantage over chance in predicting the class, and a fully {kind}-equivariant model might lose as much. "
    "{follows}",
}


def verdict(study: Study) -> dict[str, Any]:
    """Summarise a study.

    Args:
        study: The measurements.

    Returns:
        `headline`, `sentences`, `advice` (a key of `ADVICE`) and its `text`.
    """
    kind = study.kind
    what, seen = look_words.WHAT[kind], look_words.verdict(study.seen)
    rows = study.classes()
    sensitive = sorted((row for row in rows if row["sensitive"]), key=lambda row: row["mean"] - row["accuracy"])
    lost, error = study.loses(study.orbit.labels >= 0)
    key = _advice(study, bool(sensitive))
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
    sentences.append(f"The images alone, without the classifier: {_decapitalised(seen.headlines[kind])}.")
    sentences += [sentence for sentence in seen.sentences[kind] if sentence != seen.follows[kind]]
    if key in ("partial", "twins", "hurt"):
        for does, wanted in (("matters", True), ("does not matter", False)):
            names = [row["class"] for row in sensitive if row["matters"] is wanted]
            more = ", …" if len(names) > LISTED else ""
            if names:
                listed = ", ".join(names[:LISTED])
                sentences.append(f"Among the sensitive classes, {what} {does} in {len(names)}: {listed}{more}.")
    return {
        "headline": _headline(study, len(sensitive), len(rows), lost, error),
        "sentences": sentences,
        "advice": key,
        "text": ADVICE[key].format(kind=kind, what=what, **_known(study), follows=seen.follows[kind]).rstrip(),
    }


def _decapitalised(text: str) -> str:
    return text[:1].lower() + text[1:]


def _known(study: Study) -> dict[str, Any]:
    """What simple features lose without the place, and for whom it matters."""
    found = study.finding
    share = 0.0 if found.carried is None else found.carried.share
    return {"share": share, "whom": "some classes" if found.only_twins else "the class"}


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


def _advice(study: Study, sensitive: bool) -> str:
    right = study.orbit.right[0]
    mean, error = cautious(right)
    if mean <= _chance(study) + 2 * error:
        return "chance"
    lost, doubt = study.loses(study.orbit.labels >= 0)
    found = study.finding
    if not sensitive and not (lost >= SENSITIVE and lost >= 2 * doubt):
        if lost + 2 * doubt >= SENSITIVE:
            return "few"
        return "blind" if found.carrying == "yes" else "keep"
    if found.carrying == "yes":
        return "twins" if found.only_twins else "hurt" if _known(study)["share"] > 0.5 else "partial"
    return "help" if found.carrying == "no" and found.spreading != "still" else "open"
