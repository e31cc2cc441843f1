"""What the site has beside the pages in docs/: the API, the notebooks, and files of the repository that pages link to.

A hook of mkdocs (see mkdocs.yml). Links are written as they work in the repository; here they are turned into links
that work in the site.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "vpgcnn"
INTERNAL = {
    "__init__",
    "__main__",
    "cli",
    "commands",
    "cyclic",
    "layout",
    "own",
    "precision",
    "processes",
    "resample",
    "serial",
    "spectral",
}
"""Modules that users of the package have no use for: they get no page."""
BORROWED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "README.md": "index.md"}
"""Files at the top of the repository, and the pages that stand for them."""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
DARK = re.compile(rb"@media \(prefers-color-scheme: dark\) \{[^{}]*\{[^{}]*\} *\}\n?")
FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.DOTALL | re.MULTILINE)


def modules() -> dict[str, list[str]]:
    """The pages of the API: name of a public module or package → the modules on its page."""
    found = {}
    for path in sorted(PACKAGE.iterdir()):
        name = path.stem
        if name in INTERNAL:
            continue
        if path.suffix == ".py":
            found[name] = [f"vpgcnn.{name}"]
        elif (path / "__init__.py").exists():
            inner = [part for part in sorted(path.glob("*.py")) if part.stem != "__init__"]
            found[name] = [f"vpgcnn.{name}.{part.stem}" for part in inner]
    return found


def api_page(name: str, parts: list[str]) -> str:
    """The page of a module: its docstring and what is in it; of a package, module by module."""
    head = f"# vpgcnn.{name}\n\n"
    if parts == [f"vpgcnn.{name}"]:
        return f"{head}::: vpgcnn.{name}\n"
    about = f"::: vpgcnn.{name}\n    options:\n      members: []\n\n"
    options = "    options:\n      heading_level: 3\n"
    return head + about + "\n".join(f"## {part}\n\n::: {part}\n{options}" for part in parts)


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its outputs as Markdown, and its pictures by name. Nothing is run."""
    pages, pictures = [], {}
    name = f"[`{path.relative_to(ROOT).as_posix()}`]({path.name}?raw)"
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pages.append(source)
            if number == 0:
                pages.append(f"*This page is the notebook {name}, with the outputs that are stored in it.*")
            continue
        pages.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            data: dict[str, Any] = output.get("data", {})
            if "image/svg+xml" in data or "image/png" in data:
                kind = "svg" if "image/svg+xml" in data else "png"
                text = "".join(data["image/svg+xml" if kind == "svg" else "image/png"])
                picture = f"{path.stem}-{number}-{place}.{kind}"
                pictures[picture] = text.encode() if kind == "svg" else base64.b64decode(text)
                pages.append(f"![Output of the cell above]({picture})")
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                pages.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(pages) + "\n", pictures


def light(drawing: bytes) -> bytes:
    """A drawing as on paper: the site puts white under its pictures, whatever the reader prefers."""
    return DARK.sub(b"", drawing)


def links(text: str, change: Callable[[str], str]) -> str:
    """The text with every link target changed, but for what is in code blocks."""
    parts = FENCE.split(text)
    for place in range(0, len(parts), 2):
        parts[place] = LINK.sub(lambda found: f"{found[1]}{change(found[2])}{found[3]}", parts[place])
    return "".join(parts)


def home(page: str) -> PurePosixPath:
    """Where a page of the site lies in the repository."""
    borrowed = {there: here for here, there in BORROWED.items() if here != "README.md"}
    if page in borrowed:
        return PurePosixPath(borrowed[page])
    if page.startswith("notebooks/"):
        return PurePosixPath(page).with_suffix(".ipynb")
    return PurePosixPath("docs") / page


def place_of(target: PurePosixPath) -> str:
    """Where a file of the repository lies in the site."""
    text = str(target)
    if text in BORROWED:
        return BORROWED[text]
    if target.parts[0] == "docs":
        return str(target.relative_to("docs"))
    if target.parts[0] == "notebooks" and target.suffix == ".ipynb":
        return str(target.with_suffix(".md"))
    return f"repository/{text}"


def resolved(page: str, link: str) -> PurePosixPath | None:
    """The file of the repository that a link of a page leads to, if it leads to one that lies outside of its folder."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return None
    path = link.partition("#")[0].removesuffix("?raw")
    target = PurePosixPath(os.path.normpath(home(page).parent / path))
    return target if (ROOT / target).is_file() else None


def moved(page: str, link: str) -> str:
    """A link of the repository as a link of the site."""
    target = resolved(page, link)
    if target is None:
        return link
    place = f"repository/{target}" if link.endswith("?raw") else place_of(target)
    mark = link.partition("#")[2]
    return os.path.relpath(place, PurePosixPath(page).parent) + (f"#{mark}" if mark else "")


def wanted(page: str, text: str) -> Iterator[PurePosixPath]:
    """Files of the repository that have to be copied into the site for a page."""
    found: list[str] = []
    links(text, lambda link: found.append(link) or link)  # type: ignore[func-returns-value]
    for link in found:
        target = resolved(page, link)
        if target is not None and (link.endswith("?raw") or place_of(target).startswith("repository/")):
            yield target


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation of the API."""
    for entry in config.nav or []:
        if isinstance(entry, dict) and "API" in entry:
            entry["API"] = [{name: f"api/{name}.md"} for name in modules()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the files that pages link to."""
    texts = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")}
    for here, there in BORROWED.items():
        if there not in texts:
            texts[there] = (ROOT / here).read_text(encoding="utf-8")
            files.append(File.generated(config, there, content=texts[there]))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        page = f"notebooks/{path.stem}.md"
        texts[page], pictures = notebook_page(path)
        files.append(File.generated(config, page, content=texts[page]))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=light(content)))
    for drawing in [file for file in files if file.src_uri.endswith(".svg")]:
        drawing.content_bytes = light(drawing.content_bytes)
    for name, parts in modules().items():
        files.append(File.generated(config, f"api/{name}.md", content=api_page(name, parts)))
    for target in sorted({target for page, text in texts.items() for target in wanted(page, text)}):
        files.append(File.generated(config, f"repository/{target}", content=(ROOT / target).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links of the repository into links of the site."""
    uri = page.file.src_uri
    return markdown if uri.startswith("api/") else links(markdown, lambda link: moved(uri, link))
