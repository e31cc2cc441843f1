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
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def names_in(name: str) -> set[str]:
    """The tests of a file in tests/."""
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / "tests" / name).read_text(encoding="utf-8"), re.MULTILINE))


def test_named_tests_exist() -> None:
    """Pages name tests; a renamed one must be renamed there too."""
    named = {
        (file, test)
        for page in PAGES
        for file, test in re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text(encoding="utf-8"))
    }
    assert [f"{file}::{test}" for file, test in sorted(named) if test not in names_in(file)] == []


def test_every_statement_of_the_theory_has_its_test() -> None:
    """Each line of the tables names one, with its file, and both propositions of the paper are there."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| statement")]
    assert len(lines) >= 15
    assert [line for line in lines if not re.search(r"`test_\w+\.py::test_\w+`", line)] == []
    assert all(f"prop. {label}" in text for label in ("partial-dist", "one-layer"))
