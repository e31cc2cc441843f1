"""Write what is derived from the pages in docs/: example scripts, the text of notebooks, and files that pages show.

    make tutorials                         # this file
    make notebooks                         # after a change of code: also runs the notebooks and stores their outputs

A tutorial is a page with the mark `<!-- tutorial`. Its python blocks form one program, and the page is the source of
examples/NAME.py and notebooks/NAME.ipynb. A page shows a file of the repository between the marks
`<!-- file: PATH -->` and `<!-- /file -->`; there the file is the source.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).parent.parent
MARK = "<!-- tutorial"
BLOCK = re.compile(r"```python\n(.*?)```\n?", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
LINK = re.compile(r"(?<=\]\()[^)\s#:]+")
PICTURE = re.compile(r"^((?:plot_levels|Picture)\(.*?\))(?= *#| *$)")
LENGTH = re.compile(r"(?m)^(steps|epochs) = (\d+)")
FILE = re.compile(r"(<!-- file: (\S+) -->\n).*?(<!-- /file -->)", re.DOTALL)
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml"}
HEADER = '''"""{title}.

    python examples/{name}.py

Written by `make tutorials` from docs/{page}: change the page, which also explains the code.
"""

# mypy: ignore-errors
# ruff: noqa: D101, D103, E402, I001, RUF100
import sys
'''


def tutorials() -> dict[str, Path]:
    """Name of a script and notebook → the page that they are written from."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    return {page.stem.replace("-", "_"): page for page in pages if MARK in page.read_text(encoding="utf-8")}


def parts(page: Path) -> list[tuple[str, str]]:
    """The text and the code of a page in turn, without comments: ("markdown" or "code", source)."""
    pieces = BLOCK.split(COMMENT.sub("", page.read_text(encoding="utf-8")))
    kinds = ["markdown", "code"] * len(pieces)
    return [(kind, piece.strip()) for kind, piece in zip(kinds, pieces, strict=False) if piece.strip()]


def script(name: str, page: Path) -> str:
    """The program of a tutorial, with the headings of the page as comments.

    Its first argument, if any, is the number of steps or epochs. A plot that a notebook would show is saved.
    """
    pieces = parts(page)
    title = pieces[0][1].partition("\n")[0].removeprefix("# ")
    lines = [HEADER.format(title=title, name=name, page=page.name)]
    for number, (kind, source) in enumerate(pieces):
        if kind == "markdown":
            lines += [f"# %% {heading}" for heading in re.findall(r"(?m)^## (.*)$", source)]
            continue
        *before, last = LENGTH.sub(r"\1 = int(sys.argv[1]) if sys.argv[1:] else \2", source).split("\n")
        plot = PICTURE.match(last)
        lines += ["\n".join([*before, last if plot is None else f'print({plot[1]}.save("{name}-{number}.svg"))'])]
    while lines[-1].startswith("# %%"):
        lines.pop()
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "examples/x.py", "-"]
    source = "\n\n".join(lines)
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def cells(page: Path) -> list[tuple[str, str]]:
    """The cells of a tutorial's notebook: as `parts`, with links that work in notebooks/."""

    def moved(found: re.Match[str]) -> str:
        return relpath(normpath(PurePosixPath("docs", found[0])), "notebooks")

    return [(kind, LINK.sub(moved, source) if kind == "markdown" else source) for kind, source in parts(page)]


def notebook(name: str, page: Path) -> str | None:
    """The stored notebook with the text of its page; None if the code has changed, so that it has to run again."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cells": []}
    ran = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    if ["".join(cell["source"]) for cell in ran] != [source for kind, source in cells(page) if kind == "code"]:
        return None
    made: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(cells(page)):
        cell = ran.pop(0) if kind == "code" else {"cell_type": kind, "metadata": {}}
        made.append({**cell, "id": f"cell-{number}", "source": source.splitlines(keepends=True)})
    return json.dumps({**stored, "cells": made}, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def with_files(page: Path) -> str:
    """The text of a page with the files that it shows."""

    def shown(found: re.Match[str]) -> str:
        path = page.parent / found[2]
        return f"{found[1]}```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n{found[3]}"

    return FILE.sub(shown, page.read_text(encoding="utf-8"))


def derived() -> dict[Path, str]:
    """Everything that this tool writes: path → content."""
    found = {ROOT / "examples" / f"{name}.py": script(name, page) for name, page in tutorials().items()}
    notebooks = {ROOT / "notebooks" / f"{name}.ipynb": notebook(name, page) for name, page in tutorials().items()}
    found |= {path: content for path, content in notebooks.items() if content is not None}
    pages = sorted((ROOT / "docs").glob("*.md"))
    return found | {page: with_files(page) for page in pages if FILE.search(page.read_text(encoding="utf-8"))}


def main() -> None:
    """Write what has changed."""
    for path, content in derived().items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
