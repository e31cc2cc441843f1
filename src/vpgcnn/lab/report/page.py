"""Parts of HTML reports: single files that load nothing, fit a phone's screen and follow dark mode."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from vpgcnn.lab.report.dial import STYLE as DIAL_STYLE

__all__ = ["image_source", "shell", "sorted_table", "strip", "tiles"]

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5a6270; --ground: #fff; --line: #d8dce2; --card: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --soft: #a3abb8; --ground: #14171c; --line: #343a44; --card: #1d222a; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 980px;
  margin: 0 auto; padding: 1rem 1.2rem 3rem; overflow-wrap: break-word; }
h1 { line-height: 1.2; margin-bottom: .3rem } h2 { margin: 2.2rem 0 .4rem } p { max-width: 70ch }
.soft { color: var(--soft) } .lead { font-size: 1.15rem } .say { border-left: 4px solid #0072b2; padding-left: .8rem }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0 }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem 1rem;
  flex: 1 1 180px }
.tile b { display: block; font-size: 1.7rem }
.row { display: flex; flex-wrap: wrap; gap: .6rem; align-items: flex-start }
svg { max-width: 100%; height: auto }
figure { margin: 0; text-align: center }
table { border-collapse: collapse; font-size: .85rem } td, th { padding: .25rem .4rem; text-align: center }
td img { width: 56px; height: 56px; border-radius: 4px; display: block } img.pixels { image-rendering: pixelated }
table.strip td { max-width: 84px; overflow-wrap: break-word; hyphens: auto; vertical-align: top; line-height: 1.25;
  font-size: .72rem }
table.strip th { min-width: 60px } table.strip th.name { min-width: 110px; max-width: 140px; overflow-wrap: anywhere;
  line-height: 1.25 }
td.right { color: #009e73 } td.other { color: #d55e00 } .scroll { overflow-x: auto }
.scroll svg { max-width: none } .tall { max-height: 32rem;
  overflow: auto; border: 1px solid var(--line); border-radius: 8px; padding: 0 .4rem }
table.sorted thead th { position: sticky; top: 0; background: var(--ground); z-index: 1 }
table.sorted { width: 100% } table.sorted td { text-align: right; border-top: 1px solid var(--line) }
table.sorted td:first-child { min-width: 7rem; max-width: 11rem; overflow-wrap: break-word }
table.sorted td:first-child, table.sorted th:first-child { text-align: left; position: sticky; left: 0;
  background: var(--ground) }
table.sorted th { text-align: right; vertical-align: bottom } table.sorted th button { font: inherit; font-weight: 600;
  color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit;
  text-decoration: underline dotted }
th[aria-sort=ascending] button::after { content: " ▲" } th[aria-sort=descending] button::after { content: " ▼" }
"""
SORT = """
for (const table of document.querySelectorAll("table.sorted")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => {
      const text = row.cells[column].dataset.value, number = Number(text);
      return text === "" || isNaN(number) ? text : number;
    };
    const order = (x, y) => typeof x !== typeof y ? (typeof x === "number" ? 1 : -1) : x < y ? -1 : x > y ? 1 : 0;
    body.append(...[...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1)));
  }));
}
"""
"""Sort a table by the column whose header is clicked, largest first; a second click reverses the order."""


def shell(title: str, body: str) -> str:
    """Wrap the body of a page into an HTML document."""
    script = f"<script>{SORT}</script>" if 'class="sorted"' in body else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{DIAL_STYLE}</style></head><body>
{body}
{script}</body></html>
"""


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Show large numbers side by side.

    Args:
        numbers: Pairs of a number and what it means.

    Returns:
        HTML.
    """
    cells = "".join(f'<div class="tile"><b>{escape(number)}</b>{escape(text)}</div>' for number, text in numbers)
    return f'<div class="tiles">{cells}</div>'


def strip(
    heads: Sequence[str], title: str, images: np.ndarray, answers: Sequence[tuple[str, float]], truth: str
) -> str:
    """Show one image at several places and the network's answer at each: green if correct, orange if not.

    Args:
        heads: Names of the P places.
        title: Text on the left; a newline starts a new line.
        images: `(P, C, H, W)` or `(P, H, W)` in [0, 1].
        answers: Predicted class and its confidence at each place.
        truth: The true class.

    Returns:
        Rows for an HTML table of class `strip`.
    """
    header = "".join(f"<th>{escape(head)}</th>" for head in heads)
    pictures = "".join(f"<td>{_thumbnail(pixels)}</td>" for pixels in images)
    guesses = "".join(
        f'<td class="{"right" if name == truth else "other"}">{escape(name)}<br>{confidence:.0%}</td>'
        for name, confidence in answers
    )
    left = "<br>".join(escape(line) for line in title.split("\n"))
    return f'<tr><th></th>{header}</tr><tr><th class="name">{left}</th>{pictures}</tr><tr><th></th>{guesses}</tr>'


def sorted_table(heads: Sequence[str], rows: Sequence[Sequence[tuple[Any, str]]]) -> str:
    """Make a table that the reader sorts by clicking a column header.

    Args:
        heads: Column headers.
        rows: Rows of cells; a cell is a pair of its sort key and its text.

    Returns:
        HTML.
    """
    header = "".join(f'<th scope="col"><button type="button">{escape(head)}</button></th>' for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-value="{escape(str(value))}">{escape(text)}</td>' for value, text in row)
        + "</tr>\n"
        for row in rows
    )
    table = f'<table class="sorted"><thead><tr>{header}</tr></thead><tbody>\n{body}</tbody></table>'
    return f'<div class="scroll tall">{table}</div>'


def _thumbnail(pixels: np.ndarray) -> str:
    style = ' class="pixels"' if pixels.shape[-1] < 56 else ""
    return f'<img{style} src="{image_source(pixels)}" alt="">'


def image_source(pixels: np.ndarray) -> str:
    """Encode an image as a `data:` URI: PNG if it is grey, JPEG if it has colours.

    Args:
        pixels: `(H, W)` or `(C, H, W)` in [0, 1], with one or three channels.

    Returns:
        The URI, for the `src` of an `<img>`.
    """
    from PIL import Image

    values = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    values = values[0] if values.ndim == 3 and values.shape[0] == 1 else values
    stream = io.BytesIO()
    if values.ndim == 2:
        Image.fromarray(values).save(stream, "PNG")
    else:
        Image.fromarray(values.transpose(1, 2, 0)).save(stream, "JPEG", quality=88)
    kind = "png" if values.ndim == 2 else "jpeg"
    return f"data:image/{kind};base64," + base64.b64encode(stream.getvalue()).decode()
