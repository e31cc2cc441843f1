"""What the site adds to the pages in docs/: the API, outputs of the tutorials, and files that pages link to.

A hook of mkdocs (see mkdocs.yml). Links in pages work in the repository; the hook turns them into links that work in
the site.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
from tutorials import BLOCK, COMMENT, tutorials

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "vpgcnn"
BORROWED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
"""Files at the top of the repository, and the pages that stand for them."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
DARK = re.compile(rb"@media \(prefers-color-scheme: dark\) \{[^{}]*\{[^{}]*\} *\}\n?")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)


# ---------------------------------------------------------------- the API


def modules() -> dict[str, list[str]]:
    """The pages of the API: name of the page → the modules on it.

    Every public module or package has a page, and so has each part of `lab` and `apps`. A name that starts with an
    underscore is private. A module without `__all__` offers nothing to import: a command, say.
    """
    found: dict[str, list[str]] = {}
    for path in [*PACKAGE.iterdir(), *(PACKAGE / "lab").iterdir(), *(PACKAGE / "apps").iterdir()]:
        if path.name in ("lab", "apps"):
            continue  # part by part
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        inside = sorted(path.glob("*.py")) if path.is_dir() else [path]
        public = [part for part in inside if part.suffix == ".py" and not part.stem.startswith("_") and _offers(part)]
        if not path.stem.startswith("_") and public:
            found[name] = [".".join(("vpgcnn", *part.relative_to(PACKAGE).with_suffix("").parts)) for part in public]
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith(("apps", "lab")), item[0])))


def _offers(path: Path) -> bool:
    return "__all__ = [" in path.read_text(encoding="utf-8")


def api_page(name: str, parts: list[str]) -> str:
    """The page of a module: its docstring and its members; of a package, module by module."""
    head = f"# vpgcnn.{name}\n\n"
    if parts == [f"vpgcnn.{name}"]:
        return f"{head}::: vpgcnn.{name}\n"
    about = f"::: vpgcnn.{name}\n    options:\n      members: []\n\n"
    options = "    options:\n      heading_level: 3\n"
    return head + about + "\n".join(f"## {part}\n\n::: {part}\n{options}" for part in parts)


# ---------------------------------------------------------------- tutorials


def outputs(name: str) -> tuple[list[str], dict[str, bytes]]:
    """The stored outputs of a notebook as Markdown, one text for each code cell, and its pictures by name."""
    texts, pictures = [], {}
    cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        shown = []
        for place, output in enumerate(cell["outputs"]):
            data: dict[str, Any] = output.get("data", {})
            if "image/svg+xml" in data or "image/png" in data:
                kind = "svg" if "image/svg+xml" in data else "png"
                text = "".join(data["image/svg+xml" if kind == "svg" else "image/png"])
                picture = f"{name}-{number}-{place}.{kind}"
                pictures[picture] = text.encode() if kind == "svg" else base64.b64decode(text)
                shown.append(f"![Output of the code above]({picture})\n")
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                shown.append(f"```text\n{text.rstrip()}\n```\n")
        texts.append("\n".join(shown))
    return texts, pictures


def with_outputs(markdown: str, name: str) -> str:
    """The page of a tutorial with the output of each block below it."""
    texts = iter(outputs(name)[0])
    return BLOCK.sub(lambda found: f"{found[0].rstrip()}\n\n{next(texts)}", COMMENT.sub("", markdown))


# ---------------------------------------------------------------- links


def light(drawing: bytes) -> bytes:
    """A drawing as on paper: the site puts white under its pictures, whatever the reader prefers."""
    return DARK.sub(b"", drawing)


def links(text: str, change: Callable[[str], str]) -> str:
    """The text with every link target changed, except in code blocks."""
    parts = FENCE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = LINK.sub(lambda found: f"{found[1]}{change(found[2])}{found[3]}", parts[place])
    return "".join(parts)


def home(page: str) -> PurePosixPath:
    """Where a page of the site lies in the repository."""
    borrowed = {there: here for here, there in BORROWED.items() if here != "README.md"}
    return PurePosixPath(borrowed[page]) if page in borrowed else PurePosixPath("docs") / page


def place_of(target: PurePosixPath) -> str:
    """Where a file of the repository lies in the site."""
    text = str(target)
    if text in BORROWED:
        return BORROWED[text]
    if target.parts[0] == "docs":
        return str(target.relative_to("docs"))
    return f"repository/{text}"


def resolved(page: str, link: str) -> PurePosixPath | None:
    """The file of the repository that a link of a page leads to; None if it leads elsewhere."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return None
    target = PurePosixPath(os.path.normpath(home(page).parent / link.partition("#")[0]))
    return target if (ROOT / target).is_file() else None


def moved(page: str, link: str) -> str:
    """A link of the repository as a link of the site."""
    target = resolved(page, link)
    if target is None:
        return link
    mark = link.partition("#")[2]
    return os.path.relpath(place_of(target), PurePosixPath(page).parent) + (f"#{mark}" if mark else "")


def wanted(page: str, text: str) -> Iterator[PurePosixPath]:
    """Files of the repository that the site needs a copy of, for the links of a page."""
    found: list[str] = []
    links(text, lambda link: found.append(link) or link)  # type: ignore[func-returns-value]
    for link in found:
        target = resolved(page, link)
        if target is not None and place_of(target).startswith("repository/"):
            yield target


# ---------------------------------------------------------------- hooks


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation of the API."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "API" in entry:
            listed = {name: {name.rpartition(".")[2]: f"api/{name}.md"} for name in modules()}
            entry["API"] = [line for name, line in listed.items() if "." not in name]
            for part in ("lab", "apps"):
                entry["API"].append({part: [line for name, line in listed.items() if name.startswith(f"{part}.")]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, pictures, and the files that pages link to."""
    texts = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")}
    for here, there in BORROWED.items():
        if there not in texts:
            texts[there] = (ROOT / here).read_text(encoding="utf-8")
            files.append(File.generated(config, there, content=texts[there]))
    for drawing in [file for file in files if file.src_uri.endswith(".svg")]:
        drawing.content_bytes = light(drawing.content_bytes)
    for name in tutorials():
        for picture, content in outputs(name)[1].items():
            files.append(File.generated(config, picture, content=light(content)))
    for name, parts in modules().items():
        files.append(File.generated(config, f"api/{name}.md", content=api_page(name, parts)))
    for target in sorted({target for page, text in texts.items() for target in wanted(page, text)}):
        files.append(File.generated(config, f"repository/{target}", content=(ROOT / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links of the repository into links of the site, and show the outputs of tutorials."""
    uri = page.file.src_uri
    if uri.startswith("api/"):
        return markdown
    for name, source in tutorials().items():
        if source.name == uri:
            markdown = with_outputs(markdown, name)
    return links(markdown, lambda link: moved(uri, link))
