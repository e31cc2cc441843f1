"""What was found, in words: is the classifier sensitive, where, and would it be right not to be?"""

from __future__ import annotations

from typing import Any

from vpgcnn.analysis.evidence import cautious
from vpgcnn.diagnosis.study import SENSITIVE, Study

__all__ = ["ADVICE", "verdict"]

LISTED = 5
ADVICE = {
    "chance": "It is right no more often than chance, so that nothing else here means much. Do --size, --mean, --std "
    "and --classes say what it was trained with?",
    "few": "More images would tell.",
    "keep": "Nothing has to be done.",
    "blind": "It hardly looks at {what}, which helps to tell the class of some images: a model that does could be "
    "better.",
    "help": "A {kind}-equivariant model could help: these images give no sign that {what} helps to tell the class.",
    "open": "Whether ignoring {kind} would help or hurt these images cannot say: the difference is within twice its "
    "standard error. A partially equivariant model learns it.",
    "partial": "A fully {kind}-equivariant model may help or hurt: it cannot see {what}, without which neighbours lose "
    "{share:.0%} of what they know. A partially equivariant model learns for each image how much to ignore.",
    "hurt": "It is probably right to be sensitive: without {what}, neighbours lose {share:.0%} of what they know, and "
    "so might a fully {kind}-equivariant model. A partially equivariant one learns for each image how much to ignore.",
}
TELLS = {True: "helps to tell the class", False: "does not help to tell it", None: "may or may not matter"}


def verdict(study: Study) -> dict[str, Any]:
    """headline, sentences, and the advice: one of the keys of `ADVICE`, and its text."""
    kind = study.kind
    hue = kind == "hue"
    what = "colour" if hue else "which way up it is"
    rows = study.classes()
    sensitive = sorted((row for row in rows if row["sensitive"]), key=lambda row: row["mean"] - row["accuracy"])
    lost, error = study.loses(study.orbit.labels >= 0)
    tells, share = study.witness.matters(), study.witness.share
    key = _advice(study, bool(sensitive), tells)
    sentences = [_accuracy(study)]
    if sensitive:
        most = ", ".join(f"{row['class']} ({row['accuracy']:.0%} → {row['mean']:.0%})" for row in sensitive[:LISTED])
        sentences.append(f"{'These lose' if len(sensitive) > 1 else 'This one loses'} most: {most}.")
    said = study.orbit.errors()
    if said["floor"] > 0.01:
        sentences.append(
            f"Its answers change by {said['mean']:.2f} on average (of at most 1); turning an image there and back, "
            f"which only resamples its pixels, changes them by {said['floor']:.2f}."
        )
    mean, doubt = study.witness.told()
    sentences.append(
        f"The images themselves: neighbours that are alike in {'their hues' if hue else 'coarse shape'} tell the class "
        f"of {float(study.witness.as_is.mean()):.1%} of them, and of {float(study.witness.free.mean()):.1%} when each "
        f"may be {'shifted in hue' if hue else 'turned'} to fit (chance: {study.witness.chance:.1%}). So {what} "
        f"{TELLS[tells]} ({100 * mean:+.1f} points, standard error {100 * doubt:.1f})."
    )
    if key in ("partial", "hurt"):
        for does, wanted in (("helps", True), ("does not help", False)):
            names = [row["class"] for row in sensitive if row["circle_tells"] is wanted]
            more = ", …" if len(names) > LISTED else ""
            if names:
                listed = ", ".join(names[:LISTED])
                sentences.append(f"Among the sensitive classes it {does} in {len(names)}: {listed}{more}.")
    return {
        "headline": _headline(study, len(sensitive), len(rows), lost, error),
        "sentences": sentences,
        "advice": key,
        "text": ADVICE[key].format(kind=kind, what=what, share=share),
    }


def _headline(study: Study, sensitive: int, classes: int, lost: float, error: float) -> str:
    named = study.orbit.moves.name
    if sensitive:
        return f"Sensitive to {named} in {sensitive} of {classes} classes."
    if lost >= SENSITIVE and lost >= 2 * error:
        return f"Sensitive to {named}, though no class has images enough to be named."
    if lost + 2 * error >= SENSITIVE:
        return f"Too few images to say whether it is sensitive to {named}."
    same = float(study.orbit.consistency.mean())
    changes = f", but {1 - same:.0%} of its answers change" if same < 0.9 else ""
    return f"Not sensitive to {named} in accuracy{changes}."


def _accuracy(study: Study) -> str:
    orbit = study.orbit
    accuracy = orbit.right.mean(dim=1)
    worst = int(accuracy.argmin())
    where = f" ({orbit.moves.shown(orbit.moves.places[worst])})" if worst else ""
    return (
        f"{float(accuracy[0]):.1%} of {len(orbit.labels)} images are classified rightly as they are, "
        f"{float(accuracy.mean()):.1%} on average over {len(accuracy)} places on the circle, "
        f"{float(accuracy.min()):.1%} at the worst{where}. The answer stays the same at "
        f"{float(orbit.consistency.mean()):.0%} of the places."
    )


def _advice(study: Study, sensitive: bool, tells: bool | None) -> str:
    right = study.orbit.right[0]
    mean, error = cautious(right)
    if mean <= float(study.orbit.labels.bincount().max()) / len(right) + 2 * error:
        return "chance"
    lost, doubt = study.loses(study.orbit.labels >= 0)
    if not sensitive and not (lost >= SENSITIVE and lost >= 2 * doubt):
        if lost + 2 * doubt >= SENSITIVE:
            return "few"
        return "blind" if tells else "keep"
    if tells is None:
        return "open"
    return ("hurt" if study.witness.share > 0.5 else "partial") if tells else "help"
