"""Every code block in the README and the documents runs, and every link leads somewhere."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TOGETHER = "<!-- blocks build on each other"
"""In a tutorial: its blocks are run as one program, with fewer steps."""


def programs(text: str) -> list[str]:
    """The python blocks of a page, as they are run."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return [re.sub(r"(?m)^steps = \d+", "steps = 3", "\n".join(blocks))] if TOGETHER in text else blocks


BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(programs(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "block", "exec"), {"__name__": "block"})


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 5
    (tutorial,) = programs((ROOT / "docs" / "first-network.md").read_text(encoding="utf-8"))
    assert "\nsteps = 3 " in tutorial


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_named_tests_exist() -> None:
    """The theory page names tests; a renamed one must be renamed there too."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py"))
    named = re.findall(r"::(test_\w+)", text)
    assert len(named) >= 8
    assert [test for test in named if f"def {test}(" not in sources] == []
