"""The pages for each kind of user: every command runs, in the order of the page, on a folder of small pictures."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from app_support import vpgcnn
from PIL import Image

from vpgcnn.lab import plugins

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["day-photographs", "day-trained-model", "day-own-network", "day-compare", "day-carry-on"]
COMMAND = re.compile(r"(?m)^vpgcnn (.*?)(?:  +#.*)?$")
SMALL = {
    "day-photographs": [
        "--epochs",
        "1",
        "--group",
        "rotation",
        "--data.size",
        "20",
        "--model.widths",
        "4",
        "4",
        "4",
        "4",
    ],
    "day-trained-model": [],
}
"""What makes the training of a page short."""
NOT_RUN = {"serve": "waits for a browser (test_page.py)", "reproduce": "trains for minutes, except for the list"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the pictures that the pages name: photos/, new/ and new.png."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_ALLOWED", set())
    for key in [key for key in sys.modules if key.startswith(plugins.PREFIX) or key == "my_models"]:
        monkeypatch.delitem(sys.modules, key)
    Path("names.txt").write_text("0\n1\n")
    random = np.random.default_rng(0)
    for number in range(24):
        name = "01"[number % 2]
        pixels = random.integers(0, 90, (24, 24, 3), dtype=np.uint8)
        pixels[4:20, 4:20, number % 2] += 150
        for folder in (Path("photos", name), Path("new")):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    Image.fromarray(pixels).save("new.png")
    return tmp_path


def commands(page: str) -> list[list[str]]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text)
    return [shlex.split(line) for kind, block in blocks if not kind for line in COMMAND.findall(block)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(page: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = re.search(r"(?ms)^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert first is not None
    Path("my_models.py").write_text(first[1])
    monkeypatch.syspath_prepend(str(desk))
    for words in commands(page):
        if words[0] in NOT_RUN and "--list" not in words:
            continue
        found = vpgcnn(*words, *(SMALL[page] if "train" in words else []))
        assert found.returncode == 0, f"{shlex.join(words)}: {found.stderr}"
    if page == "day-photographs":
        assert Path("look/report.html").exists()
        assert len(Path("new.csv").read_text().splitlines()) == 25
        assert Path("runs/photos/net.onnx").exists()


def test_the_pages_have_commands_and_are_linked() -> None:
    assert [len(commands(page)) for page in PAGES] == [7, 4, 0, 3, 0]
    index, nav = (DOCS / "index.md").read_text(), (DOCS.parent / "mkdocs.yml").read_text()
    readme = (DOCS.parent / "README.md").read_text()
    for page in PAGES:
        assert f"({page}.md)" in index
        assert f": {page}.md" in nav
        assert f"(docs/{page}.md)" in readme


def test_the_windows_of_the_own_network_open_where_images_may_be_rotated() -> None:
    text = (DOCS / "day-own-network.md").read_text(encoding="utf-8")
    program = re.search(r"(?ms)^```python\n(.*?)^```$", text)
    assert program is not None
    names: dict = {"__name__": "block"}
    exec(compile(program[1], "block", "exec"), names)
    top, bottom, corner = (names["table"].theta["conv"][names["labels"] == label, 0].mean() for label in range(3))
    assert names["table"].idle == ()
    assert max(top, bottom) < corner - 0.2
