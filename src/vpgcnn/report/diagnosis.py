"""The page of `vpgcnn diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.report.chart import CONFIDENCE, HUE, ROTATION, BarPanel, Bars, Chart, Curve, Panel, up_to
from vpgcnn.report.page import shell, sorted_table, strip, tiles
from vpgcnn.report.svg import draw, plot

__all__ = ["Shown", "around", "page", "panels"]

TOLD = {True: "yes", False: "no", None: "cannot say"}


@dataclass(frozen=True)
class Shown:
    """One image at all places, in the order of the circle.

    pixels: `(M, C, H, W)` in [0, 1]. said: (class, confidence in it) at each. confidence: in its own class at each.
    """

    file: str
    truth: str
    error: float
    pixels: np.ndarray
    said: Sequence[tuple[str, float]]
    confidence: Sequence[float]


def around(places: Sequence[float], whole: float, values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Values along a circle that begins at 0, as from −½ to ½ of it; the far end stands at both."""
    pairs = sorted(
        ((place - whole if place > whole / 2 else place), value) for place, value in zip(places, values, strict=True)
    )
    lowest, highest = pairs[0], pairs[-1]
    if highest[0] == whole / 2 and lowest[0] > -whole / 2:
        pairs.insert(0, (-whole / 2, highest[1]))
    return [place for place, _ in pairs], [value for _, value in pairs]


def panels(found: dict[str, Any], whole: float) -> list[Panel]:
    """Accuracy and the invariance error along the circle."""
    axis = ROTATION if found["unit"] == "°" else HUE
    places, accuracy = around(found["places"], whole, found["accuracy"]["at"])
    _, error = around(found["places"], whole, found["error"]["at"])
    _, floor = around(found["places"], whole, found["error"]["floor_at"])
    sure = {name: around(found["places"], whole, values)[1] for name, values in found["confidence"].items()}
    level = [found["accuracy"]["as it is"]] * len(places)
    right = [Curve("accuracy", accuracy), Curve("accuracy as it is", level, dashed=True)]
    moved = [Curve("change of its answer", error)]
    if max(floor) > 0:
        moved.append(Curve("there and back: resampling", floor, dashed=True))
    return [
        Panel("Accuracy along the circle", places, right, axis, up_to("accuracy")),
        Panel(
            "Confidence in its class (band: middle 80 %)",
            places,
            [Curve("confidence", sure["mean"], sure["low"], sure["high"])],
            axis,
        ),
        Panel("How far its answer moves, from 0 to 1", places, moved, axis, CONFIDENCE),
    ]


def layers(found: dict[str, Any]) -> str:
    """What each layer contributes to the Lie derivative."""
    local = found["local"]
    if local is None:
        return ""
    shares = {name: value for name, value in local["layers"].items() if value > 1e-3 * max(local["layers"].values())}
    top = max(shares.values(), default=0.0)
    if top <= 0:
        return ""
    panel = BarPanel(
        "What each layer adds, from first to last",
        list(shares),
        [Bars("logits per radian", [(0, v) for v in shares.values()])],
        "layers (point at one for its name)", up_to("logits per radian", top),
    )  # fmt: skip
    listed = "".join(
        f"<li>{escape(name)}: {value:.3g} logits per radian</li>"
        for name, value in sorted(shares.items(), key=lambda p: -p[1])[:8]
    )
    hue = """In a network that has no hues inside, all of it comes from the first layer that mixes channels. (This is
the linear rotation of RGB.)"""
    return f"""<h2>Which layers it comes from</h2>
<p class="soft">How fast the logits begin to change when the image begins to move (the Lie derivative):
{local["relative"]:.2f} of their own size per radian, on {local["images"]} images; an equivariant network has 0. By
layer, as the root of the mean square; layers may cancel each other. “Between layers” are functions that are no
modules, and layers that take several inputs or tokens. {"" if found["unit"] == "°" else hue}</p>
{draw(Chart([panel]))}<ol>{listed}</ol>"""


def page(
    found: dict[str, Any],
    verdict: dict[str, Any],
    most: Sequence[Shown],
    least: Sequence[Shown],
    whole: float,
    made: str,
) -> str:
    """The whole report. found: what `Study.as_json` says."""
    accuracy, kind = found["accuracy"], "hue" if found["unit"] != "°" else "rotation"
    numbers = [
        (f"{accuracy['as it is']:.1%}", "of images are right as they are"),
        (f"{accuracy['mean']:.1%}", "on average over the circle"),
        (f"{found['consistency']:.0%}", "of moved images get the same answer"),
        (f"{found['loss']['broken']:.0%}", "of the loss over the circle is due to broken symmetry"),
    ]
    body = f"""<h1>Is it sensitive to {kind}?</h1>
<p class="soft">{escape(found["classifier"])} on {found["images"]} images from {escape(found["data"])}</p>
<p class="lead"><b>{escape(verdict["headline"])}</b></p>
{"".join(f"<p>{escape(sentence)}</p>" for sentence in verdict["sentences"])}
<p class="say">{escape(verdict["text"])}</p>
{tiles(numbers)}
<h2>Along the circle</h2>
<div class="row">{"".join(draw(Chart([panel])) for panel in panels(found, whole))}</div>
<h2>Class by class</h2>
<p class="soft">Click on a head to sort; on a small screen the table scrolls. “Sensitive”: it loses at least 5 points of
accuracy over the circle, and twice the standard error of that. “At the worst”: the lowest accuracy at any place. “Same
answer”: how often a moved image gets the answer of the image as it is. “Change”: how far the answer moves, from 0 to 1.
“{"Colour" if kind == "hue" else "Direction"} helps”: whether neighbours that are alike find the class less often when
they may be {"shifted" if kind == "hue" else "turned"} to fit.</p>
{_classes(found, kind)}
{_strips("Images whose answer moves most", most, found)}
{_strips("Images whose answer moves least", least, found)}
{layers(found)}
{_left_out(found)}
<p class="soft">{escape(made)}</p>"""
    return shell(f"vpgcnn: is it sensitive to {kind}?", body)


def _classes(found: dict[str, Any], kind: str) -> str:
    levels = list(found["classes"][0]["theta"])
    resampled = any(row["floor"] > 0 for row in found["classes"])
    heads = ["class", "sensitive", "loses", "accuracy", "over the circle", "at the worst", "same answer", "change"]
    heads += [
        *(["there and back"] if resampled else []),
        "colour helps" if kind == "hue" else "direction helps",
        "images",
    ]
    heads += [f"θ {layer}" for layer in levels]
    rows = []
    for row in found["classes"]:
        lost = row["accuracy"] - row["mean"]
        cells: list[tuple[Any, str]] = [(row["class"], row["class"])]
        cells += [(int(row["sensitive"]), "yes" if row["sensitive"] else "no")]
        shares = lost, row["accuracy"], row["mean"], row["lowest"], row["consistency"]
        cells += [(round(value, 6), f"{value:.0%}") for value in shares]
        cells += [(round(row[key], 6), f"{row[key]:.2f}") for key in ("error", *(["floor"] if resampled else []))]
        cells += [({True: 1, None: 0, False: -1}[row["circle_tells"]], TOLD[row["circle_tells"]])]
        cells += [(row["images"], str(row["images"]))]
        cells += [(round(row["theta"][layer], 6), f"{row['theta'][layer]:.2f}") for layer in levels]
        rows.append((lost, cells))
    rows.sort(key=lambda pair: -pair[0])
    return sorted_table(heads, [cells for _, cells in rows])


def _strips(title: str, images: Sequence[Shown], found: dict[str, Any]) -> str:
    if not images:
        return ""
    degrees = found["unit"] == "°"
    axis, whole = (ROTATION, 360.0) if degrees else (HUE, 1.0)
    near = [place - whole if place > whole / 2 else place for place in found["places"]]
    heads = [f"{place:+.0f}°" if degrees else f"{place:+.2f}" for place in near]
    strips, curves = [], []
    for image in images:
        name = f"{image.truth}\n{image.file.rsplit('/', 1)[-1]}\nmoves {image.error:.2f}"
        strips.append(strip(heads, name, image.pixels, image.said, image.truth))
        places, values = around(found["places"], whole, image.confidence)
        panel = Panel(image.file.rsplit("/", 1)[-1], places, [Curve("confidence", values)], axis)
        curves.append(plot(panel, width=300, height=180))
    return f"""<h2>{escape(title)}</h2>
<p class="soft">Green: its own class; orange: another. Below, the confidence in its own class, in the same order.</p>
<div class="scroll"><table class="strip">{"".join(strips)}</table></div><div class="row">{"".join(curves)}</div>"""


def _left_out(found: dict[str, Any]) -> str:
    lines = [f"<li>{escape(reason)}</li>" for reason in list(found["skipped"].values())[:100]]
    if found["grey"]:
        lines.append(
            f"<li>{len(found['grey'])} grey images, which have no hue: {escape(', '.join(found['grey'][:10]))}</li>"
        )
    lines += [f"<li>{escape(note)}</li>" for note in found["notes"]]
    if not lines:
        return ""
    more = len(found["skipped"]) - 100
    tail = f"<li>… and {more} more</li>" if more > 0 else ""
    return f"<h2>Left out</h2><ul>{''.join(lines)}{tail}</ul>"
