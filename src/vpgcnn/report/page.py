"""Pages that open from disk: one file, nothing loaded from elsewhere, readable on a phone, on light and dark ground."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from vpgcnn.report.svg import STYLE as DRAWN

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
table.strip th { min-width: 60px }
td.right { color: #009e73 } td.other { color: #d55e00 } .scroll { overflow-x: auto } .tall { max-height: 32rem;
  overflow: auto; border: 1px solid var(--line); border-radius: 8px; padding: 0 .4rem }
table.sorted thead th { position: sticky; top: 0; background: var(--ground); z-index: 1 }
table.sorted { width: 100% } table.sorted td { text-align: right; border-top: 1px solid var(--line) }
table.sorted td:first-child { min-width: 7rem; max-width: 11rem; overflow-wrap: break-word }
table.sorted td:first-child, table.sorted th:first-child { text-align: left; position: sticky; left: 0;
  background: var(--ground) }
table.sorted th { text-align: right; white-space: nowrap } table.sorted th button { font: inherit; font-weight: 600;
  color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-decoration: underline dotted }
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
"""A click on a head sorts a table by it, largest first; another one turns it round."""


def shell(title: str, body: str) -> str:
    """A whole page."""
    script = f"<script>{SORT}</script>" if 'class="sorted"' in body else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}{DRAWN}</style></head><body>
{body}
{script}</body></html>
"""


def tiles(numbers: Sequence[tuple[str, str]]) -> str:
    """Large numbers with what they mean."""
    each = "".join(f'<div class="tile"><b>{escape(n)}</b>{escape(what)}</div>' for n, what in numbers)
    return f'<div class="tiles">{each}</div>'


def strip(heads: Sequence[str], title: str, images: np.ndarray, said: Sequence[tuple[str, float]], truth: str) -> str:
    """Rows of a table: an image at several places, and what is said of it there, green where that is the truth.

    images: `(P, C, H, W)` or `(P, H, W)` in [0, 1]. said: class and confidence at each.
    """
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    shown = "".join(f"<td>{_picture(pixels)}</td>" for pixels in images)
    answers = "".join(
        f'<td class="{"right" if name == truth else "other"}">{escape(name)}<br>{confidence:.0%}</td>'
        for name, confidence in said
    )
    lead = "<br>".join(escape(line) for line in title.split("\n"))
    return f"<tr><th></th>{first}</tr><tr><th>{lead}</th>{shown}</tr><tr><th></th>{answers}</tr>"


def sorted_table(heads: Sequence[str], rows: Sequence[Sequence[tuple[Any, str]]]) -> str:
    """A table that sorts by a click on a head. rows: of what is sorted by, and what is shown."""
    top = "".join(f'<th scope="col"><button type="button">{escape(head)}</button></th>' for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-value="{escape(str(value))}">{escape(text)}</td>' for value, text in row)
        + "</tr>\n"
        for row in rows
    )
    whole = f'<table class="sorted"><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>'
    return f'<div class="scroll tall">{whole}</div>'


def _picture(pixels: np.ndarray) -> str:
    style = ' class="pixels"' if pixels.shape[-1] < 56 else ""
    return f'<img{style} src="{image_source(pixels)}" alt="">'


def image_source(pixels: np.ndarray) -> str:
    """An image `(H, W)` or `(C, H, W)` in [0, 1] as text that a page can hold: PNG where it is grey, else JPEG."""
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
