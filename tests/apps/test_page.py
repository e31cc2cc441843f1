"""The inspector's page in a browser: moved, compared, shared, with a keyboard and on a phone.

Nothing waits for a fixed time: the page sets `data-busy` while it waits for the server, and `settle` waits for its end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from app_support import COLOR, DIGIT, PATIENCE, digits, save_network
from app_support import served as served_app
from PIL import Image

from vpgcnn import Dihedral
from vpgcnn.apps.serve.app import make_app
from vpgcnn.apps.serve.inspector import Inspector, open_networks
from vpgcnn.kernels import Table
from vpgcnn.lab.config_io import to_json
from vpgcnn.lab.report.look import page as look_page
from vpgcnn.lab.report.tuning import tuning_page
from vpgcnn.lab.training.checkpoint import load_model, save_model
from vpgcnn.lab.training.tuning import TUNED, Point, Tuning
from vpgcnn.levels import set_dial

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")


@contextmanager
def served(inspector: Inspector) -> Iterator[str]:
    with served_app(make_app(inspector, ["127.0.0.1"])) as (host, port):
        yield f"http://{host}:{port}/"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("page")
    paths = [save_network(root / "mine.safetensors"), save_network(root / "other.safetensors", model=DIGIT)]
    inspector = Inspector(open_networks(paths, torch.device("cpu"))[0])
    inspector.add_samples(digits(60))
    with served(inspector) as opened:
        yield opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Page:
    """A tab, and what went wrong in it."""

    def __init__(self, context: Any, address: str) -> None:
        context.set_default_timeout(1000 * PATIENCE)
        self.tab = context.new_page()
        self.wrong: list[str] = []
        self.tab.on("console", lambda line: self.wrong.append(line.text) if line.type in ("error", "warning") else None)
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.tab.on(
            "request",
            lambda sent: (
                None if sent.url.startswith((address.split("#")[0], "data:", "blob:")) else self.wrong.append(sent.url)
            ),
        )
        self.open(address)

    def open(self, address: str) -> None:
        self.tab.goto(address)
        self.tab.wait_for_selector("body[data-ready=yes]")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has asked everything it wants to know and has shown the answers."""
        self.tab.wait_for_selector("body[data-busy='0']")

    def bars(self) -> list[str]:
        return list(self.tab.locator(".network .bar").all_inner_texts())

    def close(self) -> None:
        """Nothing must have gone wrong."""
        assert self.wrong == []
        self.tab.close()


@pytest.fixture(scope="module")
def desktop(browser: Any) -> Iterator[Any]:
    """A window of the usual size; its tabs share a cache."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    yield context
    context.close()


@pytest.fixture
def page(desktop: Any, address: str) -> Iterator[Page]:
    opened = Page(desktop, address)
    yield opened
    opened.close()


def test_the_page_shows_two_networks_and_a_gallery(page: Page) -> None:
    tab = page.tab
    assert tab.locator(".network").count() == 2
    assert tab.locator("#samples button").count() == 24
    assert tab.locator("#curve .scatterlayer .trace").count() == 2
    assert tab.locator(".levels figure").count() == 2
    assert "mine" in tab.locator("#about").inner_text()


def test_turning_changes_prediction_picture_and_address(page: Page) -> None:
    tab = page.tab
    before, picture = page.bars(), tab.get_attribute("#picture", "src")
    box = tab.locator("#dial").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(middle[0], box["y"] + 8)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 8, middle[1], steps=6)  # a quarter to the left: counter-clockwise
    tab.mouse.up()
    page.settle()
    assert tab.locator("#angle").inner_text() == "90°"
    assert page.bars() != before
    assert tab.get_attribute("#picture", "src") != picture
    assert "angle=90" in tab.url
    shape = tab.evaluate("document.getElementById('curve').layout.shapes[0].x0")
    assert shape == 90


def test_the_windows_of_all_images_open_and_close(page: Page, desktop: Any) -> None:
    tab = page.tab
    curve = tab.evaluate("document.getElementById('curve').data[0].y")
    assert tab.locator("#opened").inner_text() == "as learned"
    tab.locator("#windows").focus()
    tab.keyboard.press("Home")
    page.settle()
    assert tab.locator("#opened").inner_text() == "100% closed"
    assert tab.locator(".levels text").nth(0).text_content() == "0.03"
    assert tab.evaluate("document.getElementById('curve').data[0].y") != curve
    assert "windows=-1" in tab.url
    again = Page(desktop, tab.url)
    assert again.tab.locator("#opened").inner_text() == "100% closed"
    assert again.tab.locator(".levels text").nth(0).text_content() == "0.03"
    again.close()
    tab.keyboard.press("End")
    page.settle()
    assert tab.locator("#opened").inner_text() == "100% opened"
    assert tab.locator(".levels text").nth(0).text_content() == "1.00"


def tuned(folder: Path) -> Path:
    """A network and what `vpgcnn tune` would write beside it."""
    path = save_network(folder / "best.safetensors")
    model, card = load_model(path)
    set_dial(model, -0.5)
    dials = (-1.0, -0.5, 0.0, 0.5, 1.0)
    points = tuple(
        Point(dial, 0.5 + dial / 2, 0.9 - (dial + 1) / 20, (dial + 1) / 20, 0.6 + dial / 5) for dial in dials
    )
    save_model(folder / TUNED, model, card, {"tuned": to_json(Tuning(-0.5, 0.05, 0.95, 800, points))})
    return path


def test_the_curve_of_tune_moves_with_the_windows(browser: Any, tmp_path: Path) -> None:
    inspector = Inspector(open_networks([tuned(tmp_path)], torch.device("cpu"))[0])
    inspector.add_samples(digits(12))
    dots = "document.getElementById('tuning').data.slice(2).map(dot => [dot.x[0], dot.y[0]])"
    with served(inspector) as address:
        for width in (1280, 390):
            context = browser.new_context(viewport={"width": width, "height": 844})
            page = Page(context, address)
            tab = page.tab
            assert tab.evaluate(dots) == [[0, pytest.approx(0.85)], [0, pytest.approx(0.6)]]
            assert "85.0% of 800 images right, 60.0% when moved, mean θ 0.50" in tab.locator("#setting").inner_text()
            assert tab.evaluate("document.getElementById('tuning').layout.shapes[0].x0") == -0.5  # what tune chose
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            tab.locator("#windows").focus()
            tab.keyboard.press("End")
            page.settle()
            assert tab.evaluate(dots) == [[1, pytest.approx(0.8)], [1, pytest.approx(0.8)]]
            left, wide = tab.evaluate("(s => [s.l, s.w])(document.getElementById('tuning')._fullLayout._size)")
            tab.locator("#tuning").click(position={"x": left + wide * (0.75 + 1.05) / 2.1, "y": 120})
            page.settle()
            assert tab.evaluate(dots)[0] == [0.75, pytest.approx(0.8125)]  # between two settings that were tried
            assert tab.locator("#windows").input_value() == "0.75"
            assert "windows=0.75" in tab.url
            page.close()
            context.close()


def test_a_curve_of_other_weights_is_not_shown(desktop: Any, tmp_path: Path) -> None:
    path = tuned(tmp_path)
    model, card = load_model(path)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    save_model(path, model, card, {})  # trained on since
    with served(Inspector(open_networks([path], torch.device("cpu"))[0])) as address:
        page = Page(desktop, address)
        assert not page.tab.locator("#cost").is_visible()
        assert not page.tab.locator("#around").is_visible()  # nor an empty chart before there is an image
        page.close()
    beside = open_networks([tmp_path / TUNED], torch.device("cpu"))[0][0].tuning
    assert beside is not None
    assert (beside.dial, len(beside.points)) == (-0.5, 5)


def test_the_keyboard_does_it_too(page: Page) -> None:
    tab = page.tab
    tab.focus("#dial")
    for key in ("ArrowRight", "ArrowUp", "PageUp", "ArrowLeft"):
        tab.keyboard.press(key)
    assert tab.locator("#angle").inner_text() == "50°"
    assert tab.get_attribute("#dial", "aria-valuenow") == "50"
    tab.keyboard.press("End")
    assert tab.locator("#angle").inner_text() == "180°"
    tab.keyboard.press("Home")
    assert tab.locator("#angle").inner_text() == "0°"
    second = tab.locator("#samples button").nth(1)
    second.focus()
    tab.keyboard.press("Enter")
    page.settle()
    assert second.get_attribute("aria-pressed") == "true"


def test_an_address_restores_what_was_seen(page: Page, desktop: Any) -> None:
    tab = page.tab
    tab.select_option("#order", "narrow")
    tab.select_option("#label", "7")
    page.settle()
    tab.locator("#samples button").nth(3).click()
    tab.focus("#dial")
    for _ in range(7):
        tab.keyboard.press("ArrowLeft")
    page.settle()
    other = Page(desktop, tab.url)
    assert other.tab.locator("#angle").inner_text() == "-35°"
    assert other.tab.input_value("#order") == "narrow"
    assert other.tab.input_value("#label") == "7"
    assert other.bars() == page.bars()
    assert [text.split()[0] for text in other.tab.locator("#samples button").all_inner_texts()] == ["7"] * 20
    other.close()


def drop(page: Page, name: str, content: bytes) -> None:
    """Let a file fall on the page."""
    script = """([name, bytes]) => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
      document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.tab.evaluate(script, [name, list(content)])
    page.settle()


def test_an_image_of_ones_own(page: Page, tmp_path: Path) -> None:
    tab = page.tab
    before = tab.get_attribute("#picture", "src")
    Image.effect_noise((60, 60), 90).save(tmp_path / "mine.png")
    tab.set_input_files("#file", tmp_path / "mine.png")
    page.settle()
    assert tab.locator("#what").inner_text() == "mine.png"
    noise = tab.get_attribute("#picture", "src")
    assert noise != before
    tab.check("#invert")
    page.settle()
    assert tab.get_attribute("#picture", "src") != noise
    Image.effect_noise((30, 50), 40).save(tmp_path / "dropped.png")
    bars = page.bars()
    drop(page, "dropped.png", (tmp_path / "dropped.png").read_bytes())
    assert tab.locator("#what").inner_text() == "dropped.png"
    assert page.bars() != bars
    assert tab.locator("#message").inner_text() == ""
    seen, picture = page.bars(), tab.get_attribute("#picture", "src")
    drop(page, "no picture.png", b"<svg/>")
    assert "the file is not an image" in tab.locator("#message").inner_text()
    assert page.bars() == seen  # what was seen stays, and can be turned
    assert tab.locator("#what").inner_text() == "dropped.png"
    tab.focus("#dial")
    tab.keyboard.press("PageUp")
    page.settle()
    assert tab.get_attribute("#picture", "src") != picture
    assert tab.locator("#message").inner_text() == ""
    tab.locator("#samples button").first.click()  # of a test image, light and dark stay
    page.settle()
    shown = tab.evaluate("""async () => {
      const sent = { sample: Number(document.querySelector("#samples button").dataset.id), angle: 45, steps: 0 };
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(sent) };
      return (await (await fetch("api/inspect", options)).json()).image;
    }""")
    assert tab.get_attribute("#picture", "src") == shown
    page.wrong = [line for line in page.wrong if "400 (Bad Request)" not in line]


def test_late_answers_do_not_mix_images(page: Page) -> None:
    """A sample is chosen and turned before the answer is there: the curve is still that of the new one."""
    tab = page.tab
    held: list[Any] = []
    tab.route("**/api/inspect", lambda route: held.append(route))
    tab.locator("#samples button").nth(5).click()
    tab.focus("#dial")
    tab.keyboard.press("ArrowRight")
    while len(held) < 2:  # one for the new image, one for the turn; pytest's limit ends a wait in vain
        tab.wait_for_timeout(10)
    for route in reversed(held):
        route.continue_()
    page.settle()
    tab.unroute("**/api/inspect")
    drawn = tab.evaluate("document.getElementById('curve').data[0].y.slice(1)")
    expected = tab.evaluate("""async () => {
      const sent = { sample: Number(document.querySelectorAll("#samples button")[5].dataset.id), models: ["mine"] };
      const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(sent) };
      const found = (await (await fetch("api/inspect", options)).json()).networks[0].curve;
      const best = found[0].indexOf(Math.max(...found[0]));
      return found.map(row => row[best]);
    }""")
    assert sorted(drawn) == pytest.approx(sorted(expected))


def test_a_page_of_the_gallery_that_is_not_there(desktop: Any, address: str) -> None:
    page = Page(desktop, f"{address}#offset=5000")
    assert page.tab.locator("#count").inner_text() == "49–60 of 60"
    page.tab.locator("#after").click(force=True)
    assert page.tab.locator("#count").inner_text() == "49–60 of 60"
    page.close()


def test_a_phone_in_the_dark(browser: Any, address: str) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True)
    page = Page(context, address)
    tab = page.tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"
    box = tab.locator("#dial").bounding_box()
    tab.touchscreen.tap(box["x"] + 8, box["y"] + box["height"] / 2)
    page.settle()
    assert tab.locator("#angle").inner_text() == "90°"
    page.close()
    context.close()


def test_without_samples_it_says_what_to_do(desktop: Any, tmp_path: Path) -> None:
    inspector = Inspector(open_networks([save_network(tmp_path / "net.safetensors")], torch.device("cpu"))[0])
    with served(inspector) as address:
        page = Page(desktop, address)
        assert "Drop an image anywhere" in page.tab.locator("#networks").inner_text()
        assert not page.tab.locator("#picture").is_visible()
        page.close()


def test_a_network_has_one_dial_and_its_layers_on_demand(desktop: Any, tmp_path: Path) -> None:
    path = save_network(tmp_path / "color.safetensors", model=COLOR, channels=3)
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits(12, channels=3))
    with served(inspector) as address:
        page = Page(desktop, address)
        tab = page.tab
        assert tab.locator(".levels figure").count() == 1
        assert "mean of 2 levels" in tab.locator(".levels figcaption").inner_text()
        assert not tab.locator(".layers figure").first.is_visible()
        tab.locator(".layers summary").click()
        assert tab.locator(".layers figure:visible").count() == 2
        assert tab.locator(".layers .dot").count() == 6  # three hues of two layers
        thetas = [float(text) for text in tab.locator(".layers svg > text").all_text_contents()]
        assert float(tab.locator(".levels svg > text").text_content()) == pytest.approx(sum(thetas) / 2, abs=0.011)
        tab.focus("#dial")
        tab.keyboard.press("ArrowRight")
        page.settle()
        assert tab.locator(".layers figure:visible").count() == 2  # still unfolded
        page.close()


def test_hue(desktop: Any, tmp_path: Path) -> None:
    path = save_network(tmp_path / "color.safetensors", model=COLOR, channels=3)
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits(12, channels=3))
    with served(inspector) as address:
        page = Page(desktop, address)
        tab = page.tab
        assert tab.locator("#ring path").count() == 72  # the hues
        assert tab.locator(".network").count() == 1
        assert "Shift the hue" in tab.locator("h1").inner_text()
        assert not tab.locator("#invert").is_visible()
        assert not tab.locator("#moves").is_visible()
        assert not tab.locator("#mirror").is_visible()
        assert "±120°" in tab.locator("#promise").inner_text()
        shapes = tab.evaluate("document.getElementById('curve').layout.shapes.map(shape => shape.x0)")
        assert sorted(shapes) == [-120, 0, 120]
        assert tab.evaluate("document.getElementById('curve').layout.xaxis.ticktext")[0] == "−180°"
        page.close()


def test_a_hue_run_and_a_rotation_run_side_by_side(desktop: Any, tmp_path: Path) -> None:
    paths = [save_network(tmp_path / "turns.safetensors", channels=3),
             save_network(tmp_path / "hues.safetensors", model=COLOR, channels=3)]  # fmt: skip
    inspector = Inspector(open_networks(paths, torch.device("cpu"))[0])
    inspector.add_samples(digits(12, channels=3))
    with served(inspector) as address:
        page = Page(desktop, address)
        tab = page.tab
        assert tab.locator(".network").count() == 2
        assert "Rotate an image" in tab.locator("h1").inner_text()
        rotated = tab.evaluate("document.getElementById('curve').data.map(line => line.y)")
        tab.select_option("#moves", "hue")
        page.settle()
        shifted = tab.evaluate("document.getElementById('curve').data.map(line => line.y)")
        assert all(one != other for one, other in zip(rotated, shifted, strict=True))
        assert tab.locator("#ring path").count() == 72
        said = tab.locator("#promise").inner_text()
        assert "turns: its layers do not know this move" in said
        assert "hues: with open windows (θ = 1), the same answer at ±120°" in said
        again = Page(desktop, tab.url)
        assert again.tab.input_value("#moves") == "hue"
        assert again.bars() == page.bars()
        again.close()
        page.close()


def test_charts_of_reports_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    """With their titles: a chart that scrolls sideways cuts them."""
    told = {"told": {"at": [0.9] * 12}, "twins": []}
    said = {"headlines": {}, "reason": "", "command": "", "sentences": {"rotation": []}}
    found = {"verdict": said, "images": 3, "skipped": {}, "of": 3, "classes": [], "folder": "photos"}
    pages = {
        "look": look_page(found | {"changes": {"rotation": told}}, [], ""),
        "tuning": tuning_page([-1, 0], [0.9, 0.9], [0.1, 0.5], chosen=0, promise="", images=9),
    }
    context = browser.new_context(viewport={"width": 390, "height": 800})
    for name, html in pages.items():
        (tmp_path / f"{name}.html").write_text(html, encoding="utf-8")
        tab = context.new_page()
        tab.goto((tmp_path / f"{name}.html").as_uri())
        ends = tab.evaluate(
            "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect().right)"
        )
        assert len(ends) > 5
        assert max(ends) <= 390
        tab.close()
    context.close()


def test_a_network_of_mirrors_offers_the_mirror(desktop: Any, tmp_path: Path) -> None:
    path = save_network(tmp_path / "sides.safetensors", model=replace(DIGIT, group=Dihedral(1), kernel=Table()))
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits(12))
    with served(inspector) as address:
        page = Page(desktop, address)
        tab = page.tab
        assert tab.locator("h1").inner_text() == "Mirror an image and watch the levels"
        assert "the same answer for the mirror image; nothing is promised of rotations" in tab.inner_text("#promise")
        assert "the image as it is" in tab.locator(".network").inner_text()
        before, picture = page.bars(), tab.get_attribute("#picture", "src")
        tab.check("#mirror")
        page.settle()
        assert tab.get_attribute("#picture", "src") != picture
        again = Page(desktop, tab.url)
        assert again.tab.is_checked("#mirror")
        assert again.bars() == page.bars() != before
        again.close()
        page.close()


def test_back_returns_to_the_image_before(page: Page) -> None:
    tab = page.tab
    pictures = [tab.get_attribute("#picture", "src")]
    for number in (3, 5):
        tab.locator("#samples button").nth(number).click()
        page.settle()
        pictures.append(tab.get_attribute("#picture", "src"))
    assert len(set(pictures)) == 3
    for number, pressed in ((1, 3), (0, 0)):
        tab.go_back()
        tab.wait_for_function("src => document.getElementById('picture').src === src", arg=pictures[number])
        page.settle()
        assert tab.locator("#samples button").nth(pressed).get_attribute("aria-pressed") == "true"
