"""What a look at a folder found, in sentences, and the command to begin with."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import Literal

from vpgcnn.lab.diagnosis.look import ONE, SURE, Finding, Look
from vpgcnn.measure import Circle

__all__ = ["WHAT", "Advice", "Beginning", "Verdict", "verdict"]

LISTED = 3
Advice = Literal["full", "variational", "leave", "unknown"]
Beginning = Literal["rotation", "hue", "both", "mirror", "none"]
SUBJECT: dict[Circle, str] = {"rotation": "Orientation", "hue": "Colour", "mirror": "Mirroring"}
WHAT: dict[Circle, str] = {"rotation": "orientation", "hue": "colour", "mirror": "left and right"}
COPY: dict[Circle, str] = {"rotation": "rotated copy", "hue": "copy with shifted hue", "mirror": "mirrored copy"}
COME: dict[Circle, tuple[str, str, str]] = {
    "rotation": (
        "come in every orientation",
        "come in some orientations more than in others",
        "are all the same way up",
    ),
    "hue": ("come in every hue", "come in some hues more than others", "always have the same hues"),
    "mirror": (
        "come both ways round equally often",
        "come one way round more than the other",
        "are all the same way round",
    ),
}
MOVED: dict[Circle, str] = {"rotation": "rotated", "hue": "in other hues", "mirror": "mirrored"}
NAMES: dict[Beginning, str] = {"rotation": "rotation", "hue": "hue", "both": "rotation and hue", "mirror": "mirroring"}


@dataclass(frozen=True)
class Verdict:
    """The answers in words.

    Args:
        headlines: Circle → a few words.
        sentences: Circle → sentences: are the pictures spread, is the class carried, and what follows.
        follows: Circle → the last of these sentences: what follows; empty if nothing does.
        advice: Circle → which level to begin with.
        group: The symmetry to begin with; `vpgcnn train FOLDER` builds it in.
        full: Whether the whole group for every image is safe too.
        keeps_sides: Whether left and right matter, so that training must not mirror images at random.
        command: A command line to begin with; empty if there are no classes.
        reason: Why this command.
    """

    headlines: dict[Circle, str]
    sentences: dict[Circle, list[str]]
    follows: dict[Circle, str]
    advice: dict[Circle, Advice]
    group: Beginning
    full: bool
    keeps_sides: bool
    command: str
    reason: str


def verdict(found: Look) -> Verdict:
    """Put a look into words."""
    advice: dict[Circle, Advice] = {each.change: _advice(each) for each in found.findings}
    follows = {each.change: _follows(each, advice[each.change]) for each in found.findings}
    sentences = {
        each.change: [_spread(each), *_carried(each), *_twins(each, found), *filter(None, [follows[each.change]])]
        for each in found.findings
    }
    group, full = _begin(found, advice)
    keeps_sides = any(each.change == "mirror" and each.carrying == "yes" for each in found.findings)
    command, reason = _command(found, advice, group, full, keeps_sides)
    headlines = {each.change: _headline(each, advice[each.change]) for each in found.findings}
    return Verdict(headlines, sentences, follows, advice, group, full, keeps_sides, command, reason)


def _advice(found: Finding) -> Advice:
    if found.spreading in ("few", "noise", "grey") or found.carrying in ("chance", "few"):
        return "unknown"
    if found.carrying == "yes":
        assert found.carried is not None
        every = len(found.twins) == len(found.carried.labels.unique())
        return "leave" if found.spreading == "one place" or every else "variational"
    if found.spreading == "still":
        return "leave"
    if found.carrying == "no" and found.carried is not None:
        gain, error = found.carried.gain
        helps = gain < -SURE * error
        mixed = found.spread is not None and found.spread.told + SURE * found.spread.error < ONE
        return "full" if found.spreading in ("spread", "partly") or mixed or helps else "variational"
    return "variational"


def _headline(found: Finding, advice: Advice) -> str:
    what, carrying = SUBJECT[found.change], found.carrying
    if advice == "unknown":
        return f"{what}: nothing can be said"
    if carrying == "yes" and found.carried is not None:
        return f"{what} matters for {f'{len(found.twins)} classes' if found.only_twins else 'the class'}"
    if carrying == "no":
        return f"{what} does not matter for the class"
    if carrying == "no classes":
        return f"{what}: the pictures {_come(found)}"
    return f"{what}: too few images to say"


def _come(found: Finding) -> str:
    every, some, one = COME[found.change]
    if found.spreading == "still":
        return f"look the same whatever {'their hue' if found.change == 'hue' else 'way they are turned'}"
    own = found.own_places
    if found.spreading == "partly" and own and found.spread is not None and found.spread.told > 0.7:
        return f"come at 0° and at {_degrees(own)}" if found.change == "rotation" else some
    return {"spread": every, "partly": some, "one place": one}.get(found.spreading, "cannot be judged yet")


def _degrees(places: list[float]) -> str:
    signed = sorted({round(place - 360 if place > 180 else place) for place in places}, key=abs)
    shown = [f"{place:+d}°" if abs(place) != 180 else "180°" for place in signed]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _spread(found: Finding) -> str:
    """Are the pictures spread?"""
    copy = COPY[found.change]
    if found.spreading == "few":
        some = "1 image is" if len(found.images) == 1 else f"{len(found.images)} images are"
        return f"{some} too few to say anything; about {found.needed} would do."
    if found.spreading == "grey":
        return f"Only {len(found.images)} images have a colour: there is no hue to ask about."
    if found.spreading == "noise":
        thing = "hues" if found.change == "hue" else "shapes"
        return (
            f"Nothing can be said: the images show no {thing}. What one half of the pixels shows, the other half does "
            f"not (correlation {abs(found.reliability):.2f})."
        )
    assert found.spread is not None
    told, half = found.spread.told, SURE * found.spread.error
    numbers = (
        f"shown an image and a {copy}, a simple test picks the original in {told:.0%} of pairs (99% interval "
        f"{max(0.0, told - half):.0%} to {min(1.0, told + half):.0%}; chance: 50%)"
    )
    if found.spreading == "unclear":
        return f"Too few images to say whether the pictures are spread: {numbers}. About {found.needed} would do."
    return f"The pictures {_come(found)}: {numbers}."


def _carried(found: Finding) -> list[str]:
    """Is the class carried?"""
    what = WHAT[found.change]
    if found.carrying in ("few", "noise", "grey"):
        return []
    if found.carried is None:
        return [f"Whether {what} says something about the class needs classes: one folder for each."]
    known, without = float(found.carried.aware.mean()), float(found.carried.averaged.mean())
    chance = found.carried.chance
    if found.carrying == "chance":
        return [
            f"Nothing can be said about the class: simple features predict it for {max(known, without):.0%} of "
            f"held-out images, not better than chance ({chance:.0%}). A network may see more than they do."
        ]
    gain, error = found.carried.gain
    low, mean, high = (_points(each) for each in (gain - SURE * error, gain, gain + SURE * error))
    numbers = (
        f"simple features predict the class of {known:.0%} of held-out images with it and of {without:.0%} without it "
        f"(difference {mean} points, 99% interval {low} to {high}; chance: {chance:.0%})"
    )
    if found.carrying == "yes":
        return [f"The class is carried by {what}{' for some classes only' if found.only_twins else ''}: {numbers}."]
    if found.carrying == "no":
        helps = " Ignoring it even helps." if gain < -SURE * error else ""
        return [f"The class is not carried by {what}: {numbers}.{helps}"]
    return [f"Too few images to say whether the class is carried by {what}: {numbers}. About {found.needed} would do."]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "−")


def _twins(found: Finding, whole: Look) -> list[str]:
    """The classes that turn into each other."""
    said: list[str] = []
    pairs: set[frozenset[int]] = set()
    for twin in found.twins:
        if frozenset((twin.label, twin.other)) in pairs or len(said) == LISTED:
            continue
        pairs.add(frozenset((twin.label, twin.other)))
        assert found.carried is not None
        moved = "mirrored"
        if found.change != "mirror":
            angle = _degrees([360 * twin.place / found.carried.taken.shape[1]])
            moved = f"rotated by {angle}" if found.change == "rotation" else f"shifted in hue by {angle}"
        said.append(
            f"{whole.classes[twin.label]}, {moved}, is taken for {whole.classes[twin.other]} (at least "
            f"{twin.share:.0%} of held-out images, and the other way round)"
        )
    if not said:
        return []
    more = len(found.twins) - 2 * len(said)
    return ["; ".join(said) + ("; …." if more > 0 else ".")]


def _follows(found: Finding, advice: Advice) -> str:
    what, moved = WHAT[found.change], MOVED[found.change]
    if advice == "full":
        return "A network may ignore it for every image: full equivariance is safe."
    if advice == "leave" and found.spreading == "still" and found.carrying != "yes":
        return "There is nothing to gain from this symmetry, and nothing to lose."
    if advice == "leave":
        return f"Leave {what} alone, unless pictures will come {moved}: then let a level for each image decide."
    if advice == "unknown":
        return ""
    if found.carrying == "yes":
        return "A level for each image can close its window where this matters, and open it elsewhere."
    if found.carrying == "no":
        return f"A level for each image costs nothing here, and helps once pictures come {moved}."
    if found.carrying == "unclear":
        return f"If you expect pictures {moved}, let a level for each image decide."
    return "Let a level for each image decide."


def _begin(found: Look, advice: dict[Circle, Advice]) -> tuple[Beginning, bool]:
    """The symmetry to begin with, and whether the whole group is safe."""
    full = [change for change, level in advice.items() if level == "full"]
    open_ = [each.change for each in found.findings if each.carrying == "unclear"]
    some = [change for change, level in advice.items() if level == "variational" and change not in open_]
    chosen = full or sorted(some, key=lambda change: _told(found, change))[:1]
    if {"rotation", "hue"} <= set(chosen):
        return "both", bool(full)
    for change in chosen:
        if change == "rotation" or change == "hue":
            return change, bool(full)
    return ("mirror" if chosen else "none"), bool(full)


def _command(
    found: Look, advice: dict[Circle, Advice], group: Beginning, full: bool, keeps_sides: bool
) -> tuple[str, str]:
    """The command to begin with, and why."""
    if not found.classes:
        return "", "Training needs classes: sort the images into one folder for each, and look again."
    words = ["vpgcnn", "train", str(found.folder), *(["--skip-damaged"] if found.skipped else [])]
    out = ["--out", f"runs/{found.folder.stem or found.folder.resolve().stem or 'images'}"]
    keep = ["--data.augment", "shift"] if keeps_sides else []
    note = " Training must not mirror images at random: --data.augment shift." if keep else ""
    if group == "none":
        unsettled = any(each.carrying == "unclear" for each in found.findings)
        unknown = unsettled or all(level == "unknown" for level in advice.values())
        reason = "Nothing speaks for a symmetry yet" if unknown else "These pictures need what a symmetry would ignore"
        come = {"rotation": "rotated (--group rotation)", "hue": "in other hues (--group hue)"}
        moved = [come[each.change] for each in found.findings if each.carrying == "unclear" and each.change in come]
        if moved:
            note = f" If pictures will come {' or '.join(moved)}, let a level for each image decide.{note}"
        return shlex.join([*words, "--group", "none", *keep, *out]), f"{reason}: begin with an ordinary network.{note}"
    reason = f"Begin with {NAMES[group]} and a level for each image, which decides how much of it."
    if full:
        reason += (
            " The whole group for every image (--model.level full) is safe, too, as far as simple features can tell."
        )
    if advice.get("mirror") == "full" and group != "mirror":
        note = (
            " Training already mirrors images at random if they have 48 pixels or more, which is enough to begin with."
        )
    return shlex.join([*words, "--group", group, *keep, *out]), f"{reason}{note}"


def _told(found: Look, change: Circle) -> float:
    finding = next(each for each in found.findings if each.change == change)
    return math.inf if finding.spread is None else finding.spread.told
