"""The HTML report of `vpgcnn look`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from vpgcnn.lab.report.chart import Axis, Chart, Curve, Panel
from vpgcnn.lab.report.page import image_source, shell, sorted_table, tiles
from vpgcnn.lab.report.static import to_svg

__all__ = ["Examples", "page"]

SKIPPED = 100
"""The page lists at most this many skipped files."""
TOLD = Axis("originals told from copies", [(share / 100, f"{share}%") for share in (0, 25, 50, 75, 100)])
DEGREES = [(angle, f"{angle}°") for angle in range(-180, 181, 90)]
TITLES = {"rotation": "Orientation", "hue": "Colour", "mirror": "Left and right"}


@dataclass(frozen=True)
class Examples:
    """Images that speak for a finding.

    Args:
        change: The change they are about.
        title: What they show.
        rows: Images beside each other, each with a caption: `(C, H, W)` in [0, 1].
    """

    change: str
    title: str
    rows: Sequence[Sequence[tuple[np.ndarray, str]]]


def page(found: dict[str, Any], examples: Sequence[Examples], footer: str) -> str:
    """Write the report as one HTML page.

    Args:
        found: `Look.as_json` with the verdict.
        examples: Images.
        footer: How the report was made.
    """
    said = found["verdict"]
    some = found["images"] + len(found["skipped"]) < found["of"]
    looked = (
        f"{found['images']:,} of {found['of']:,} images (drawn at random)" if some else f"{found['images']:,} images"
    )
    classes = f"of {len(found['classes'])} classes" if found["classes"] else "without classes"
    body = f"""<h1>Do orientation, colour and mirror matter in these pictures?</h1>
<p class="soft">{looked} {classes} from {escape(found["folder"])}; no network took part</p>
{tiles([_tile(headline) for headline in said["headlines"].values()])}
<p class="lead say">{escape(said["reason"])}</p>
{f'<pre class="say" style="white-space: pre-wrap">{escape(said["command"])}</pre>' if said["command"] else ""}
<h2>Two questions</h2>
<p><b>Are the pictures spread?</b> If an image cannot be told from its moved copies, the pictures already come at every
place, and a network gains by treating all places alike. A linear test, fitted on other images, guesses which is the
original.</p>
<p><b>Is the class carried?</b> A kernel classifier predicts the class of held-out images, with and without the place.
If it does as well without, the place may be ignored. Both use simple features (brightness, edges, hues), so a network
may see more than they do. Images whose names follow each other are held out together.</p>
{"".join(_change(name, each, said, examples) for name, each in found["changes"].items())}
{_skipped(found["skipped"])}
<p class="soft">{escape(footer)}</p>"""
    return shell("vpgcnn: what matters in these pictures?", body)


def _tile(headline: str) -> tuple[str, str]:
    """A headline as its subject and what is said about it."""
    subject, colon, said = headline.partition(":")
    if colon:
        return subject, said.strip()
    subject, _, said = headline.partition(" ")
    return subject, said


def _change(name: str, found: dict[str, Any], said: dict[str, Any], examples: Sequence[Examples]) -> str:
    """The section about one change."""
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in said["sentences"][name])
    chart = ""
    if found["told"] is not None and len(found["told"]["at"]) > 2:
        chart = f'<div class="row">{to_svg(Chart([_panel(name, found["told"]["at"])]))}</div>'
    table = ""
    if found["twins"]:
        rows = [
            [
                (twin["class"], twin["class"]),
                (twin["taken_for"], twin["taken_for"]),
                (twin["degrees"] or 180, "mirrored" if twin["degrees"] is None else _signed(twin["degrees"])),
                (round(twin["share"], 4), f"{twin['share']:.0%}"),
            ]
            for twin in found["twins"]
        ]
        table = "<h3>Classes that turn into each other</h3>"
        table += sorted_table(["class", "is taken for", "when moved by", "share of copies, at least"], rows)
    shown = "".join(_examples(each) for each in examples if each.change == name)
    return f"<h2>{escape(TITLES[name])}</h2>{sentences}{chart}{table}{shown}"


def _panel(name: str, at: Sequence[float]) -> Panel:
    count = len(at)
    places = [360 * place / count - 180 for place in range(count + 1)]
    values = [at[(place + count // 2) % count] for place in range(count + 1)]
    chance = Curve("chance: copies like originals", [0.5] * (count + 1), dashed=True)
    x = Axis("rotation of the copy" if name == "rotation" else "hue shift of the copy", DEGREES)
    title = "How often the original is told from its copy"
    return Panel(title, places, [Curve("originals told", values), chance], x, TOLD)


def _signed(degrees: float) -> str:
    return f"{degrees - 360 if degrees > 180 else degrees:+.0f}°"


def _examples(group: Examples) -> str:
    cells = []
    for row in group.rows:
        pictures = "".join(
            f'<td><img{" class=pixels" if pixels.shape[-1] < 56 else ""} src="{image_source(pixels)}" alt="">'
            f"{escape(caption).replace('/', '/<wbr>')}</td>"
            for pixels, caption in row
        )
        cells.append(f'<table class="strip"><tr>{pictures}</tr></table>')
    return f'<h3>{escape(group.title)}</h3><div class="row">{"".join(cells)}</div>'


def _skipped(skipped: dict[str, str]) -> str:
    if not skipped:
        return ""
    lines = list(skipped.values())[:SKIPPED]
    if len(skipped) > SKIPPED:
        lines.append(f"… and {len(skipped) - SKIPPED} more files")
    return f"<h2>Skipped images</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
