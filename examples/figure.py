"""The demo's figure and page, in plain SVG and HTML: no library, opens from disk."""

from __future__ import annotations

import html
from pathlib import Path

from torch import Tensor

WIDTH, HEIGHT, LEFT, TOP = 380, 240, 46, 34
COLORS = {"variational": "#0072b2", "full": "#d55e00"}
NAMES = {"variational": "variational (each image its own level)", "full": "fully equivariant"}


def _panel(title: str, angles: range, curves: dict[str, Tensor], shift: int) -> str:
    """Mean confidence against the angle, with a band from the 10th to the 90th percentile of images."""

    def x(angle: float) -> float:
        return shift + LEFT + (angle + 180) / 360 * WIDTH

    def y(value: float) -> float:
        return TOP + (1 - value) * HEIGHT

    def points(values: Tensor) -> list[str]:
        return [f"{x(angle):.1f},{y(value):.1f}" for angle, value in zip(angles, values.tolist(), strict=True)]

    parts = [f'<text x="{x(0):.0f}" y="18" text-anchor="middle" font-weight="600">{html.escape(title)}</text>']
    for value in (0, 0.5, 1):
        parts.append(f'<line x1="{x(-180)}" x2="{x(180)}" y1="{y(value)}" y2="{y(value)}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(-180) - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<text x="{x(angle)}" y="{y(0) + 18}" text-anchor="middle">{angle}°</text>'
        for angle in (-180, -90, 0, 90, 180)
    ]
    for name, values in curves.items():
        low, high = values.quantile(0.1, dim=1), values.quantile(0.9, dim=1)
        band = " ".join(points(low) + points(high)[::-1])
        parts.append(f'<polygon points="{band}" fill="{COLORS[name]}" opacity="0.15"/>')
        line = " ".join(points(values.mean(dim=1)))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[name]}" stroke-width="2.5"/>')
    parts.append(f'<text x="{x(0)}" y="{y(0) + 38}" text-anchor="middle">angle of the image</text>')
    return "\n".join(parts)


def curves_svg(angles: range, curves: dict[str, dict[str, Tensor]]) -> str:
    """Both digits side by side, both networks in each."""
    shift = WIDTH + LEFT + 30
    total = 2 * shift
    panels = [
        _panel(f"confidence that a {digit} is a {digit}", angles, {n: c[digit] for n, c in curves.items()}, i * shift)
        for i, digit in enumerate("67")
    ]
    below = TOP + HEIGHT + 66
    legend = [
        f'<rect x="{LEFT + 330 * i}" y="{below - 10}" width="22" height="4" fill="{COLORS[name]}"/>'
        f'<text x="{LEFT + 30 + 330 * i}" y="{below - 4}">{NAMES[name]}</text>'
        for i, name in enumerate(curves)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {below + 8}" font-family="sans-serif" '
        f'font-size="13" fill="#222"><rect width="100%" height="100%" fill="white"/>'
        + "\n".join(panels + legend)
        + "</svg>\n"
    )


def write_report(
    out: Path,
    angles: range,
    curves: dict[str, dict[str, Tensor]],
    accuracy: dict[str, float],
    theta: dict[str, Tensor],
    steps: int,
) -> Path:
    """Write `curves.svg` and `report.html` into the folder; the path of the latter."""
    figure = curves_svg(angles, curves)
    rows = "".join(
        f"<tr><td>{digit}</td><td>{values.mean():.2f}</td><td>{values.std():.2f}</td></tr>\n"
        for digit, values in theta.items()
    )
    page = f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>vpgcnn: what a network learned about rotation</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem;color:#222}}
svg{{width:100%;height:auto}}td,th{{padding:.2rem 1rem .2rem 0;text-align:left}}</style>
<h1>What a network learned about rotation</h1>
<p>Trained on real 6s and 7s at 0° and 180°: a 6 upside down is called a 9, a 7 upside down is still a 7. A fully
equivariant network cannot tell these apart. The variational network gives each image a level θ of its own.</p>
{figure}
<p>Lines: mean over held-out images. Bands: 10th to 90th percentile. A 9 here is a turned 6, and θ does not change when
an image is turned, so 6 and 9 have the same. One level for all images can draw much the same curves on so simple a
task; that θ is larger for 7s is what a level for each image adds.</p>
<table><tr><th>class</th><th>θ, share of all rotations used</th><th>spread between images</th></tr>
{rows}</table>
<p>Held-out accuracy: {accuracy["variational"]:.1%} variational, {accuracy["full"]:.1%} fully equivariant, {steps}
training steps each, one seed. A demonstration on the embedded digits, not a benchmark.</p></html>
"""
    _replace(out / "curves.svg", figure)
    _replace(out / "report.html", page)
    return out / "report.html"


def _replace(path: Path, text: str) -> None:
    """Write to a temporary name first, so that no half-written file is ever seen."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
