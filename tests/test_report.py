"""Charts: described once, drawn three ways."""

from __future__ import annotations

import builtins
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vpgcnn.errors import UserError
from vpgcnn.report import interactive, png, svg
from vpgcnn.report.chart import HUE, Axis, BarPanel, Bars, Chart, Curve, Panel, up_to

PLACES = [-0.5, 0, 0.5]
BROKEN = Curve("broken", [1, 0, 1], dashed=True)
CURVES = Chart(
    [
        Panel(
            "left <&>",
            PLACES,
            [Curve("solid", [0, 1, 0], [0, 0.5, 0], [0.5, 1, 0.5]), BROKEN],
            HUE,
            faint=[[0, 0.9, 0.1]],
        ),
        Panel("right", PLACES, [Curve("solid", [2, 4, 8]), BROKEN], HUE, up_to("nats", 8)),
    ],
    title="Two panels",
)
BARS = Chart(
    [BarPanel("errors", ["rose", "lily"], [Bars("one", [(0.1, 0.4), (0.2, 0.9)]), Bars("two", [(0, 0.1), (0, 0)])])],
    columns=1,
)


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def share(image: np.ndarray, color: str) -> float:
    """Of the pixels, those of this colour."""
    wanted = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)])
    return float((np.abs(image - wanted).max(axis=-1) < 12).mean())


def test_a_png_shows_curves_and_bars() -> None:
    from vpgcnn.report.chart import COLORS

    image = pixels(png.draw(CURVES))
    assert image.shape[1] > 1.5 * image.shape[0]  # side by side
    assert share(image, COLORS[0]) > 0.001
    assert share(image, COLORS[1]) > 0.001
    assert share(image, COLORS[2]) == 0
    tall = pixels(png.draw(Chart(CURVES.panels, columns=1)))
    assert tall.shape[0] > tall.shape[1]
    assert share(pixels(png.draw(BARS)), COLORS[0]) > 0.02
    assert png.draw(BARS) == png.draw(BARS)


def test_long_names_and_titles_stay_inside_a_narrow_picture() -> None:
    x = Axis("x", [(0, "0"), (1, "1")])
    curves = [Curve(f"{'a rather long name of ' * 2}{number}", [0, 1]) for number in range(3)]
    image = pixels(png.draw(Chart([Panel("one", [0, 1], curves, x)], title="words and more words " * 6)))
    for rows in (slice(0, 60), slice(-60, None)):  # the title and the legend
        assert (image[rows] < 100).any()
        assert (image[rows, :6] > 250).all()
        assert (image[rows, -6:] > 250).all()


def test_a_vertical_axis_reaches_from_its_first_tick_to_its_last() -> None:
    drawn = svg.plot(CURVES.panels[1])  # type: ignore[arg-type]
    heights = [float(y) for y in re.findall(r'<polyline points="[\d.]+,([\d.]+) ', drawn)]
    top, bottom = 34, 300 - 44
    assert heights[0] == pytest.approx(bottom - 2 / 8 * (bottom - top), abs=0.1)
    assert heights[1] == pytest.approx(bottom - 1 / 8 * (bottom - top), abs=0.1)
    assert Axis("x", [(3, "a"), (1, "b")]).ends == (1, 3)


def test_a_value_that_is_no_number_is_a_gap() -> None:
    nan = float("nan")
    panel = Panel("gap", [0, 1, 2, 3, 4], [Curve("a", [0, 1, nan, 1, 0])], Axis("x", [(0, "0"), (4, "4")]))
    lines = re.findall(r'<polyline points="([^"]*)"', svg.plot(panel))
    assert [len(line.split()) for line in lines] == [2, 2]
    assert png.draw(Chart([panel]))
    assert interactive.draw(Chart([panel]))


def test_a_name_has_one_color_in_all_panels() -> None:
    places, x = [0, 1], Axis("x", [(0, "0"), (1, "1")])
    chart = Chart([Panel("1", places, [Curve("a", [0, 1])], x), Panel("2", places, [Curve("b", [0, 1])], x)])
    assert [name for name, _ in chart.names] == ["a", "b"]
    drawn = svg.draw(chart)
    assert drawn.count(f'stroke="{chart.colors["b"]}"') == 2  # the curve and the legend
    many = Chart([Panel("1", places, [Curve(str(number), [0, 1]) for number in range(7)], x)])
    with pytest.raises(ValueError, match="at most 6 names"):
        svg.draw(many)
    assert svg.plot(Panel("one place", [0], [Curve("a", [1])], Axis("x", [(0, "0")])))


def test_an_interactive_page_holds_the_data_and_escapes_text() -> None:
    page = interactive.draw(CURVES)
    assert "<title>Two panels</title>" in page
    assert "left &lt;&amp;&gt;" in page.replace("\\u0026", "&")
    assert "left <&>" not in page
    assert 'src="http' not in page
    assert "errors" in interactive.draw(BARS)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_an_interactive_page_opens_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "figure.html"
    path.write_text(interactive.draw(CURVES), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.count('class="main-svg"') >= 1
    assert done.stdout.count('class="trace scatter') == 6  # four curves, a band, a faint line
    assert "CONSOLE" not in done.stderr or "error" not in done.stderr.lower().split("console", 1)[1][:200]


@pytest.mark.parametrize(("draw", "missing"), [(png.draw, "matplotlib"), (interactive.draw, "plotly")])
def test_what_is_not_installed_is_named(draw: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf"need {missing}: pip install 'vpgcnn\[report\]'"):
        draw(CURVES)
