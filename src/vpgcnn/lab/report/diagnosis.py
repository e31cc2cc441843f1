"""The HTML report of `vpgcnn diagnose`.

Every function takes `found`, the plain data that `Study.as_json` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.lab.report.chart import HUE, ROTATION, BarPanel, Bars, Chart, Curve, Panel, up_to
from vpgcnn.lab.report.page import shell, sorted_table, strip, tiles
from vpgcnn.lab.report.static import to_svg

__all__ = ["Shown", "around", "layers", "page", "panels"]

MATTERS = {True: "yes", False: "no", None: "unclear"}
CHANGE = up_to("change (total variation)")
SKIPPED = 100
"""The page lists at most this many skipped files."""


@dataclass(frozen=True)
class Shown:
    """One image at all M places of the circle.

    Args:
        file: Path of the image.
        truth: Its class.
        error: Its invariance error: the mean change in the prediction over the circle.
        pixels: The moved images, `(M, C, H, W)` in [0, 1].
        answers: Predicted class and its confidence at each place.
        confidence: Confidence in the true class at each place.
    """

    file: str
    truth: str
    error: float
    pixels: np.ndarray
    answers: Sequence[tuple[str, float]]
    confidence: Sequence[float]

    @property
    def name(self) -> str:
        """The file without its folder."""
        return self.file.rsplit("/", 1)[-1]


def around(places: Sequence[float], whole: float, values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Centre a curve along a circle at 0.

    Args:
        places: Places on the circle, from 0 to below `whole`.
        whole: Circumference, in the unit of `places`.
        values: One value for each place.

    Returns:
        Places from −whole/2 to whole/2 and their values. A value at exactly half the circle appears at both ends.
    """
    pairs = sorted(zip([_centred(place, whole) for place in places], values, strict=True))
    (lowest, _), (highest, last) = pairs[0], pairs[-1]
    if highest == whole / 2 and lowest > -whole / 2:
        pairs.insert(0, (-whole / 2, last))
    return [place for place, _ in pairs], [value for _, value in pairs]


def panels(found: dict[str, Any], whole: float) -> list[Panel]:
    """Describe the curves along the circle: accuracy, confidence, and the change in the prediction."""

    def line(values: Sequence[float]) -> list[float]:
        return around(found["places"], whole, values)[1]

    x = ROTATION if _rotates(found) else HUE
    places, _ = around(found["places"], whole, found["places"])
    unmoved, floor = [found["accuracy"]["as it is"]] * len(places), found["error"]["floor_at"]
    accuracy = [Curve("moved images", line(found["accuracy"]["at"])), Curve("original images", unmoved, dashed=True)]
    mean, low, high = (line(found["confidence"][key]) for key in ("mean", "low", "high"))
    change = [Curve("moved images", line(found["error"]["at"]))]
    if max(floor) > 0:
        change.append(Curve("moved there and back (resampling only)", line(floor), dashed=True))
    return [
        Panel("Accuracy along the circle", places, accuracy, x, up_to("accuracy")),
        Panel("Confidence in the true class (band: middle 80%)", places, [Curve("confidence", mean, low, high)], x),
        Panel("Change in the prediction", places, change, x, CHANGE),
    ]


def layers(found: dict[str, Any]) -> str:
    """Show how much each layer contributes to the Lie derivative; empty if the layers were not measured."""
    local = found["local"]
    top = max(local["layers"].values(), default=0.0) if local else 0.0
    if top <= 0:
        return ""
    shares = {name: value for name, value in local["layers"].items() if value > 1e-3 * top}
    unit = "logits per radian"
    chart = Chart(
        [
            BarPanel(
                "Contribution of each layer, from first to last",
                list(shares),
                [Bars(unit, [(0, value) for value in shares.values()])],
                "layers (hover over a bar for its name and value)",
                up_to(unit, top),
            )
        ]
    )
    largest = sorted(shares.items(), key=lambda pair: -pair[1])[:8]
    listed = "".join(f"<li>{escape(name)}: {value:.3g} {unit}</li>" for name, value in largest)
    hue = """Here the hue moves by the linear rotation of RGB. In a network without hues inside, the first layer that
mixes channels contributes everything."""
    return f"""<h2>Which layers break the symmetry</h2>
<p class="soft">The Lie derivative measures how fast the logits change when the image starts to move. Here it is
{local["relative"]:.2f} of the size of the logits per radian, over {local["images"]} images; an invariant network has 0.
Bars show the root mean square of each layer's contribution; contributions may cancel. “Between layers” collects
functions that are not modules, and layers that take several inputs or tokens. {"" if _rotates(found) else hue}</p>
<div class="scroll">{to_svg(chart)}</div><ol>{listed}</ol>"""


def page(
    found: dict[str, Any],
    verdict: dict[str, Any],
    most: Sequence[Shown],
    least: Sequence[Shown],
    whole: float,
    footer: str,
) -> str:
    """Write the report as one HTML page.

    Args:
        found: The measurements.
        verdict: Headline, sentences and advice.
        most: Images whose prediction changes most.
        least: Images whose prediction changes least.
        whole: Circumference of the circle, in the unit of `found["places"]`.
        footer: How the report was made.

    Returns:
        HTML.
    """
    accuracy, kind = found["accuracy"], "rotation" if _rotates(found) else "hue"
    numbers = [
        (f"{accuracy['as it is']:.1%}", "accuracy on the original images"),
        (f"{accuracy['mean']:.1%}", "mean accuracy over the circle"),
        (f"{found['consistency']:.0%}", "of moved images keep their prediction"),
        (f"{found['loss']['broken']:.0%}", "of the loss over the circle comes from broken symmetry"),
    ]
    property_ = "Orientation" if _rotates(found) else "Colour"
    body = f"""<h1>Is the classifier sensitive to {kind}?</h1>
<p class="soft">{escape(found["classifier"])} on {found["images"]} images from {escape(found["data"])}</p>
<p class="lead"><b>{escape(verdict["headline"])}</b></p>
{"".join(f"<p>{escape(sentence)}</p>" for sentence in verdict["sentences"])}
<p class="say">{escape(verdict["text"])}</p>
{tiles(numbers)}
<h2>Along the circle</h2>
<div class="row">{"".join(to_svg(Chart([panel])) for panel in panels(found, whole))}</div>
<h2>Class by class</h2>
<p class="soft">Click a column header to sort; a table that is wider than the page scrolls sideways.</p>
<ul class="soft">
<li><b>Sensitive</b>: the class loses at least 5 points of accuracy over the circle, and at least twice the standard
error of that loss.</li>
<li><b>Loss</b>: accuracy on the original images minus the mean accuracy over the circle.</li>
<li><b>Worst</b>: the lowest accuracy at any place.</li>
<li><b>Same prediction</b>: how often a moved image keeps the prediction of the original image.</li>
<li><b>Change</b>: how far the predicted probabilities move, from 0 to 1 (total variation).</li>
<li><b>{property_} matters</b>: whether simple features predict the class less often without it, or the class has a
twin (see <i>vpgcnn look</i>). No: it adds less than 5 points, with 99% confidence.</li>
</ul>
{_classes(found, f"{property_.lower()} matters")}
{_strips("Images whose prediction changes most", most, found, whole)}
{_strips("Images whose prediction changes least", least, found, whole)}
{layers(found)}
{_notes(found)}
<p class="soft">{escape(footer)}</p>"""
    return shell(f"vpgcnn: is the classifier sensitive to {kind}?", body)


def _rotates(found: dict[str, Any]) -> bool:
    return bool(found["unit"] == "°")


def _centred(place: float, whole: float) -> float:
    return place - whole if place > whole / 2 else place


def _classes(found: dict[str, Any], matters: str) -> str:
    """The table of classes, with the largest loss first."""
    levels = list(found["classes"][0]["theta"])
    resampled = ["floor"] if any(row["floor"] > 0 for row in found["classes"]) else []
    heads = ["class", "sensitive", "loss", "accuracy", "over the circle", "worst", "same prediction", "change"]
    heads += [*("resampling only" for _ in resampled), matters, "images"]
    heads += [] if not levels else [f"θ {levels[0]}"] if len(levels) == 1 else [f"θ, mean of {len(levels)}"]
    rows = []
    for row in found["classes"]:
        loss = row["accuracy"] - row["mean"]
        cells: list[tuple[Any, str]] = [(row["class"], row["class"])]
        cells += [(int(row["sensitive"]), "yes" if row["sensitive"] else "no")]
        shares = loss, row["accuracy"], row["mean"], row["lowest"], row["consistency"]
        cells += [(round(value, 6), f"{value:.0%}") for value in shares]
        cells += [(round(row[key], 6), f"{row[key]:.2f}") for key in ("error", *resampled)]
        cells += [({True: 1, None: 0, False: -1}[row["matters"]], MATTERS[row["matters"]])]
        cells += [(row["images"], str(row["images"]))]
        if levels:
            theta = sum(row["theta"][layer] for layer in levels) / len(levels)
            cells += [(round(theta, 6), f"{theta:.2f}")]
        rows.append((loss, cells))
    rows.sort(key=lambda pair: -pair[0])
    return sorted_table(heads, [cells for _, cells in rows]) + _theta(found, levels)


def _theta(found: dict[str, Any], levels: Sequence[str]) -> str:
    """θ of each class and layer, in a table of its own: beside the other columns it would not fit a screen."""
    if len(levels) < 2:
        return ""
    rows = [
        [(row["class"], row["class"])]
        + [(round(row["theta"][layer], 6), f"{row['theta'][layer]:.2f}") for layer in levels]
        for row in found["classes"]
    ]
    return f"<h3>θ of each layer</h3>{sorted_table(['class', *levels], rows)}"


def _strips(title: str, images: Sequence[Shown], found: dict[str, Any], whole: float) -> str:
    """Single images at every place, and a small curve for each."""
    if not images:
        return ""
    x = ROTATION if _rotates(found) else HUE
    heads = [f"{_centred(place, whole) * 360 / whole:+.0f}°" if place else "original" for place in found["places"]]
    strips, curves = [], []
    for image in images:
        left = f"{image.truth}\n{image.name}\nchange {image.error:.2f}"
        strips.append(strip(heads, left, image.pixels, image.answers, image.truth))
        places, values = around(found["places"], whole, image.confidence)
        panel = Panel(image.name, places, [Curve("confidence", values)], x)
        curves.append(to_svg(Chart([panel]), panel_size=(300, 200)))
    return f"""<h2>{escape(title)}</h2>
<p class="soft">Green: the true class; orange: another class. The curves below show the confidence in the true class, in
the same order.</p>
<div class="scroll"><table class="strip">{"".join(strips)}</table></div><div class="row">{"".join(curves)}</div>"""


def _notes(found: dict[str, Any]) -> str:
    """Files that were skipped, and why."""
    skipped, grey = list(found["skipped"].values()), found["grey"]
    lines = skipped[:SKIPPED]
    if len(skipped) > SKIPPED:
        lines.append(f"… and {len(skipped) - SKIPPED} more files")
    if grey:
        more = ", …" if len(grey) > 10 else ""
        count = "1 grey image, which has" if len(grey) == 1 else f"{len(grey)} grey images, which have"
        lines.append(f"{count} no hue: {', '.join(grey[:10])}{more}")
    lines += found["notes"]
    if not lines:
        return ""
    return f"<h2>Skipped images and notes</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
