"""Charts are described once and drawn as SVG, PNG and HTML; reports are single pages that load nothing."""

from __future__ import annotations

import builtins
import io
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

from vpgcnn.errors import UserError
from vpgcnn.lab.report import diagnosis, digits
from vpgcnn.lab.report.chart import (
    COLORS,
    HUE,
    Axis,
    BarPanel,
    Bars,
    Chart,
    Curve,
    Panel,
    PointPanel,
    Points,
    around,
    up_to,
)
from vpgcnn.lab.report.dial import dial
from vpgcnn.lab.report.interactive import to_html
from vpgcnn.lab.report.picture import Picture
from vpgcnn.lab.report.static import require_matplotlib, to_png, to_svg

PLACES = [-0.5, 0, 0.5]
UNIT = Axis("x", [(0, "0"), (1, "1")])
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
SVG = "{http://www.w3.org/2000/svg}"
NO_LINKS = re.compile(r"https?:(?!//www\.w3\.org/2000/svg)|\bsrc=\"(?!data:)|url\((?!#)")


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def share(image: np.ndarray, color: str) -> float:
    """The share of pixels that have this colour."""
    wanted = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)])
    return float((np.abs(image - wanted).max(axis=-1) < 12).mean())


def drawn(document: str, tooltip: str) -> list[ET.Element]:
    """The paths of an SVG that have this tooltip, in the order of drawing."""
    groups = ET.fromstring(document).iter(f"{SVG}g")
    return [group[1] for group in groups if group.findtext(f"{SVG}title") == tooltip]


def heights(path: ET.Element) -> list[float]:
    """The vertical coordinates of a path, downwards."""
    return [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path.attrib["d"])]


def test_a_png_shows_curves_and_bars() -> None:
    image = pixels(to_png(CURVES, dpi=100))
    assert image.shape[1] > 1.5 * image.shape[0]  # side by side
    assert share(image, COLORS[0]) > 0.001
    assert share(image, COLORS[1]) > 0.001
    assert share(image, COLORS[2]) == 0
    tall = pixels(to_png(Chart(CURVES.panels, columns=1), dpi=50))
    assert tall.shape[0] > tall.shape[1]
    assert share(pixels(to_png(BARS, dpi=50)), COLORS[0]) > 0.02


def test_drawings_are_reproducible_and_ignore_the_style_of_the_user() -> None:
    import matplotlib as mpl

    first = to_svg(CURVES), to_png(BARS, dpi=50)
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "figure.dpi": 30, "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert (to_svg(CURVES), to_png(BARS, dpi=50)) == first
        assert dict(mpl.rcParams) == before
    assert not re.search(r"<metadata|<dc:date|\d{4}-\d\d-\d\dT", first[0])


def test_an_svg_fits_into_a_page() -> None:
    document = to_svg(CURVES)
    assert document.startswith("<svg ")
    assert not NO_LINKS.search(document)
    assert ">left &lt;&amp;&gt;</text>" in document  # text remains text
    assert "prefers-color-scheme: dark" in document
    assert "fill: var(--ink" in document
    ids = Counter(re.findall(r' id="([^"]+)"', document + to_svg(BARS)))
    assert ids
    assert max(ids.values()) == 1
    assert set(re.findall(r'(?:url\(|href=")#(\w+)', document)) <= set(ids)


def test_a_vertical_axis_reaches_from_its_first_tick_to_its_last() -> None:
    _, curve = drawn(to_svg(CURVES), "solid")
    two, four, eight = heights(curve)
    assert two - four == pytest.approx((four - eight) / 2, abs=0.03)
    assert Axis("x", [(3, "a"), (1, "b")]).ends == (1, 3)
    (flat,) = drawn(to_svg(Chart([Panel("", [0, 1], [Curve("a", [3, 3])], UNIT, Axis("y", [(3, "3")]))])), "a")
    assert len(set(heights(flat))) == 1


def test_a_bar_reaches_from_its_low_end_to_its_high_end() -> None:
    document = to_svg(BARS)
    (small,), (large,) = drawn(document, "rose, one: 0.1 to 0.4"), drawn(document, "lily, one: 0.2 to 0.9")
    tall = [max(heights(bar)) - min(heights(bar)) for bar in (small, large)]
    assert tall[1] / tall[0] == pytest.approx(7 / 3, rel=1e-2)
    assert drawn(document, "lily, two: 0 to 0")
    assert ">rose</text>" in document
    many = BarPanel("many", [f"class {n}" for n in range(30)], [Bars("one", [(0, 0.5)] * 30)])
    assert ">class 3</text>" not in to_svg(Chart([many]))


def test_a_value_that_is_no_number_is_a_gap() -> None:
    nan = float("nan")
    chart = Chart([Panel("gap", [0, 1, 2, 3, 4], [Curve("a", [0, 1, nan, 1, 0])], Axis("x", [(0, "0"), (4, "4")]))])
    (line,) = drawn(to_svg(chart), "a")
    assert [piece.count("L") for piece in line.attrib["d"].split("M")[1:]] == [1, 1]
    assert to_html(chart)


def test_a_name_has_one_color_in_all_panels() -> None:
    chart = Chart([Panel("1", [0, 1], [Curve("a", [0, 1])], UNIT), Panel("2", [0, 1], [Curve("b", [0, 1])], UNIT)])
    assert [name for name, _ in chart.names] == ["a", "b"]
    (line,) = drawn(to_svg(chart), "b")
    assert f"stroke: {chart.colors['b']}" in line.attrib["style"]
    assert to_svg(chart).count(f"stroke: {chart.colors['b']}") == 2  # the curve and the legend
    many = Chart([Panel("1", [0, 1], [Curve(str(number), [0, 1]) for number in range(7)], UNIT)])
    with pytest.raises(ValueError, match="at most 6 names"):
        to_svg(many)


def test_a_legend_does_not_repeat_the_vertical_axis() -> None:
    assert to_svg(Chart([Panel("", [0, 1], [Curve("confidence", [0, 1])], UNIT)])).count(">confidence</text>") == 1
    assert ">another</text>" in to_svg(Chart([Panel("", [0, 1], [Curve("another", [0, 1])], UNIT)]))


def test_points_are_drawn_with_their_labels() -> None:
    series = [
        Points("fixed", [(0.9, 0.2), (0.7, 0.8)], ["closed", "open"], joined=True),
        Points("own", [(0.8, 0.7)], ["x"]),
    ]
    chart = Chart([PointPanel("signs", series, around("accuracy", [0.7, 0.9]), around("moved", [0.2, 0.8]))])
    drawn, whole = to_svg(chart), to_html(chart)
    for text in ("closed", "open", "signs", "accuracy", "moved", "fixed: closed (90.0%, 20.0%), open (70.0%, 80.0%)"):
        assert text in drawn
    for text in ("closed", "lines+markers+text", '"markers+text"'):
        assert text in whole
    assert around("accuracy", [0.701, 0.899]).ends == (pytest.approx(0.7), pytest.approx(0.9))
    assert around("accuracy", [1.0, 1.0]).ends[0] < around("accuracy", [1.0, 1.0]).ends[1]


def test_a_single_place_is_a_dot() -> None:
    chart = Chart([Panel("one place", [0], [Curve("a", [1])], Axis("x", [(0, "0")]))])
    assert share(pixels(to_png(chart, dpi=100)), COLORS[0]) > share(
        pixels(to_png(Chart([Panel("", [0], [Curve("a", [float("nan")])], Axis("x", [(0, "0")]))]), dpi=100)), COLORS[0]
    )


def test_any_text_can_be_drawn() -> None:
    """Neither dollar signs nor glyphs that matplotlib's font lacks are a problem."""
    document = to_svg(Chart([BarPanel("$x^$ 花", ["花 & rose", "$a$"], [Bars("one", [(0, 1), (0, 1)])])]))
    assert ">$x^$ 花</text>" in document
    assert ">花 &amp; rose</text>" in document


def test_long_names_and_titles_stay_inside_a_narrow_picture() -> None:
    curves = [Curve(f"{'a rather long name of ' * 2}{number}", [0, 1]) for number in range(3)]
    title = "words and more words " * 6
    image = pixels(to_png(Chart([Panel(title, [0, 1], curves, UNIT)], title=title)))
    assert (image[:60] < 100).any()
    assert (image[-60:] < 100).any()
    assert (image[:, :4] > 250).all()
    assert (image[:, -4:] > 250).all()


def test_a_picture_saves_itself_by_its_suffix(tmp_path: Path) -> None:
    picture = Picture(CURVES)
    assert picture._repr_svg_() == picture.save(tmp_path / "a.svg").read_text(encoding="utf-8")
    assert picture.save(str(tmp_path / "a.PNG")).read_bytes()[:4] == b"\x89PNG"
    assert "plotly" in picture.save(tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"saved as \.svg, \.png or \.html, got .*a\.pdf"):
        picture.save(tmp_path / "a.pdf")


def test_a_plot_of_levels_has_a_bar_for_each_image_and_layer() -> None:
    from vpgcnn.lab.report.levels import SHOWN, plot_levels
    from vpgcnn.measure.table import LevelTable

    theta = torch.tensor([[0.5, 0.1], [1.0, 0.2]])
    table = LevelTable(("a", "b"), {"conv6": theta, "conv7": theta / 2}, {})
    document = plot_levels(table)._repr_svg_()
    tooltips = re.findall("<title>(.*?)</title>", document)
    assert len(tooltips) == 4
    assert tooltips[0].endswith(": -90 to 90")
    assert "-36 to 36" in plot_levels(table, axis=1)._repr_svg_()
    with pytest.raises(UserError, match="conv6 has 2 axes, numbered from 0; got axis=2"):
        plot_levels(table, axis=2)
    with pytest.raises(UserError, match="no level"):
        plot_levels(LevelTable(("a",), {}, {}))
    many = LevelTable(tuple(map(str, range(90))), {"conv6": torch.rand(90, 1)}, {})
    (panel,) = plot_levels(many).chart.panels
    assert isinstance(panel, BarPanel)
    assert len(panel.classes) == SHOWN


def test_a_dial_shows_the_window() -> None:
    drawing = dial("<6s>", 0.5, 0.25, 1.0)
    assert "&lt;6s&gt;<br><b>θ = 0.50</b>" in drawing
    edges = re.findall(r'x2="([\d.]+)" y2="([\d.]+)"', drawing)
    assert edges == [("134.0", "85.0"), ("36.0", "85.0")]  # right and left of the centre: ±90°
    assert drawing.count("<circle") == 2  # the ring, and all of the circle
    assert drawing.count("<path") == 1


def test_the_page_of_digits_shows_everything_and_loads_nothing() -> None:
    angles = range(-180, 181, 90)
    confidence = {digit: np.linspace(0, 1, 20).reshape(5, 4) for digit in ("6", "7")}
    example = digits.Example("6", 0.7, angles, np.zeros((5, 8, 8)), [("6", 0.9), ("9", 0.8)] * 2 + [("6", 1.0)])
    theta = {"6": np.array([0.5, 0.6]), "7": np.ones(2)}
    curves = {"a level": confidence, "full": confidence}
    facts = digits.Facts(angles, curves, theta, [example], [("9 %", "of <b>")], "made & done", ["all are < open"])
    page = digits.page(facts)
    assert "all are &lt; open" in page
    assert page.count('role="img"') == 2
    assert page.count("<title>a level</title>") == page.count("<title>full</title>") == 2
    assert page.count('class="dial"') == 2
    assert page.count('class="right"') == 3
    assert page.count('class="other"') == 2
    assert "of &lt;b&gt;" in page
    assert "made &amp; done" in page
    assert not NO_LINKS.search(page)


def found(unit: str) -> dict[str, Any]:
    """What `Study.as_json` returns, as far as the page uses it."""
    whole = 360 if unit == "°" else 1
    row = {"accuracy": 0.9, "lowest": 0.1, "consistency": 0.5, "error": 0.3, "floor": 0.02, "images": 20}
    rows = [
        {**row, "class": "<cat>", "mean": 0.8, "matters": None, "sensitive": False, "theta": {"conv6": 0.5}},
        {**row, "class": "dog", "mean": 0.2, "matters": True, "sensitive": True, "theta": {"conv6": 0.25}},
    ]
    return {
        "unit": unit, "places": [whole * n / 4 for n in range(4)], "images": 40, "classifier": "net", "data": "photos",
        "accuracy": {"as it is": 0.9, "mean": 0.5, "at": [0.9, 0.5, 0.1, 0.5]},
        "error": {"at": [0, 0.2, 0.4, 0.2], "floor_at": [0, 0.1, 0.1, 0.1]},
        "confidence": {"mean": [0.5] * 4, "low": [0.2] * 4, "high": [0.8] * 4},
        "consistency": 0.7, "loss": {"broken": 0.4}, "classes": rows,
        "local": {"relative": 0.4, "images": 8, "layers": {"stem": 2.0, "head": 0.5, "still": 0.0}},
        "skipped": {f"{n}.png": f"cannot read {n}.png" for n in range(102)}, "grey": ["g.png"], "notes": ["a note"],
    }  # fmt: skip


@pytest.mark.parametrize(("unit", "kind", "whole"), [("°", "rotation", 360.0), ("of the circle", "hue", 1.0)])
def test_the_page_of_a_diagnosis_shows_everything_and_loads_nothing(unit: str, kind: str, whole: float) -> None:
    verdict = {"headline": "Sensitive & more.", "sentences": ["One."], "text": "Two."}
    answers = [("<cat>", 0.9), ("dog", 0.8), ("dog", 0.7), ("<cat>", 0.6)]
    image = diagnosis.Shown("photos/cat/1.jpg", "<cat>", 0.4, np.zeros((4, 3, 8, 8)), answers, [0.9, 0.2, 0.3, 0.6])
    page = diagnosis.page(found(unit), verdict, [image], [], whole, "made & done")
    assert f"Is the classifier sensitive to {kind}?" in page
    assert "Sensitive &amp; more." in page
    assert "<cat>" not in page
    assert page.count('role="img"') == 3 + 1 + 1  # along the circle, one image, layers
    assert page.count('class="right"') == page.count('class="other"') == 2
    assert page.index('data-value="dog"') < page.index('data-value="&lt;cat&gt;"')  # the largest loss first
    assert "<title>stem, logits per radian: 0 to 2</title>" in page
    assert "<title>still" not in page
    assert "changes most" in page
    assert "changes least" not in page
    assert "cannot read 99.png" in page
    assert "cannot read 100.png" not in page
    assert "and 2 more files" in page
    assert "1 grey image, which has no hue: g.png" in page
    assert not NO_LINKS.search(page)


def test_a_page_without_layers_and_skipped_files_leaves_these_parts_out() -> None:
    plain = {**found("°"), "local": None, "skipped": {}, "grey": [], "notes": []}
    verdict = {"headline": "", "sentences": [], "text": ""}
    page = diagnosis.page(plain, verdict, [], [], 360.0, "")
    assert "Which layers" not in page
    assert "Skipped" not in page


def test_a_curve_along_the_circle_is_centred() -> None:
    assert diagnosis.around([0, 90, 180, 270], 360, [1, 2, 3, 4]) == ([-180, -90, 0, 90, 180], [3, 4, 1, 2, 3])
    assert diagnosis.around([0, 120, 240], 360, [1, 2, 3]) == ([-120, 0, 120], [3, 1, 2])


def test_an_interactive_page_holds_the_data_and_escapes_text() -> None:
    page = to_html(CURVES)
    assert "<title>Two panels</title>" in page
    assert "left &lt;&amp;&gt;" in page.replace("\\u0026", "&")
    assert "left <&>" not in page
    assert 'src="http' not in page
    assert "errors" in to_html(BARS)


def test_images_of_the_same_name_have_bars_of_their_own_in_an_interactive_page() -> None:
    page = to_html(Chart([BarPanel("", ["six", "six"], [Bars("one", [(0, 1), (0, 0.5)])])]))
    assert '"ticktext":["six","six"]' in page
    assert '"x":[0,1]' in page


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_an_interactive_page_opens_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "figure.html"
    path.write_text(to_html(CURVES), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.count('class="main-svg"') >= 1
    assert done.stdout.count('class="trace scatter') == 6  # four curves, a band, a faint line
    assert "CONSOLE" not in done.stderr or "error" not in done.stderr.lower().split("console", 1)[1][:200]


@pytest.mark.parametrize(
    ("draw", "missing"),
    [
        (lambda: to_png(CURVES), "matplotlib"),
        (lambda: to_svg(CURVES), "matplotlib"),
        (require_matplotlib, "matplotlib"),
        (lambda: to_html(CURVES), "plotly"),
    ],
)
def test_an_error_names_the_extra_that_is_missing(draw: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(name)
        return whole(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf"need {missing}: pip install 'vpgcnn\[report\]'"):
        draw()


def test_reports_are_imported_without_matplotlib_and_plotly() -> None:
    code = (
        "import sys, vpgcnn.lab.report.diagnosis, vpgcnn.lab.report.digits, vpgcnn.lab.report.picture\n"
        "assert not {'matplotlib', 'plotly'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
