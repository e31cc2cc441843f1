"""Code blocks in the documents run, links lead somewhere, and what pages say about the repository is true."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def tool(name: str) -> ModuleType:
    """A module in tools/, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tutorials = tool("tutorials")


def programs(page: Path) -> list[str]:
    """The python blocks of a page, as they are run: a tutorial as one program with few steps, without shown files."""
    text = tutorials.FILE.sub("", page.read_text(encoding="utf-8"))
    blocks = tutorials.BLOCK.findall(text)
    return [tutorials.LENGTH.sub(r"\1 = 1", "\n".join(blocks))] if tutorials.MARK in text else blocks


BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}") for page in PAGES for number, code in enumerate(programs(page))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(code, "block", "exec"), {"__name__": "block"})


def test_tutorials_are_run_with_fewer_steps() -> None:
    assert len(BLOCKS) > 15
    assert sorted(tutorials.tutorials()) == ["first_network", "read_levels"]
    for page in tutorials.tutorials().values():
        (program,) = programs(page)
        assert re.search(r"(?m)^(steps|epochs) = 1\b", program)


@pytest.mark.parametrize("page", ["README.md", "docs/convert.md"])
def test_the_first_program_prints_what_the_page_says(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    code, expected = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.DOTALL)[0]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "block", "exec"), {"__name__": "block"})
    assert printed.getvalue() == expected


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readme_installs_what_its_commands_need() -> None:
    block = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[2].split("```")[1]
    assert block.index("-m venv") < block.index("pip install")
    (extras,) = re.findall(r"pip install '\.\[(.*?)\]'", block)
    assert {"train", "demo", "export"} <= set(extras.split(","))


def test_each_network_for_own_images_has_a_width_that_the_page_names() -> None:
    from vpgcnn.lab.diagnosis.suggest import NETWORKS

    page = (ROOT / "docs/own-data.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| network |"))
    named = set(re.findall(r"--model\.(widths?)\b", row))
    for symmetry, network in NETWORKS.items():
        (width,) = {"width", "widths"} & set(vars(network))
        assert width in named, symmetry


# ---------------------------------------------------------------- one source


def test_scripts_and_shown_files_are_those_of_their_source() -> None:
    for path, content in tutorials.derived().items():
        assert path.read_text(encoding="utf-8") == content, f"{path.relative_to(ROOT)}: run `make tutorials`"


def test_notebooks_have_the_cells_of_their_page() -> None:
    """Outputs are stored when a notebook is run, so a cell that differs from the page also has outputs that are old."""
    stored = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert stored.keys() == tutorials.tutorials().keys()
    for name, page in tutorials.tutorials().items():
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in stored[name]["cells"]]
        assert cells == tutorials.cells(page), f"notebooks/{name}.ipynb: run `make notebooks`"


def test_figures_are_those_of_the_code() -> None:
    figures = tool("figures")
    assert figures.TARGET.read_text(encoding="utf-8") == figures.figure(), "run `make tutorials`"
    notebook = json.loads((ROOT / "notebooks" / "read_levels.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    plots = [
        "".join(output["data"]["image/svg+xml"]) for output in outputs if "image/svg+xml" in output.get("data", {})
    ]
    assert (ROOT / "docs" / "levels.svg").read_text(encoding="utf-8") == plots[0], "run `make notebooks`"


# ---------------------------------------------------------------- what pages say


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_contributing_lists_the_tree() -> None:
    """Every module and package of the first two levels is in the table, and nothing else."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    package, top = re.findall(r"(?s)\| in `src/vpgcnn/` .*?\n\n|\| at the top .*?\n\n", text)
    listed = {
        name.rstrip("/") for row in package.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])
    }
    source = ROOT / "src" / "vpgcnn"

    def children(folder: Path) -> set[str]:
        found = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
        return {path.relative_to(source).as_posix() for path in found if not path.name.startswith("__")}

    expected = (children(source) | children(source / "lab") | children(source / "apps")) - {"lab", "apps"}
    assert listed == expected
    for row in top.splitlines()[2:]:
        for name in re.findall(r"`([^`]+)`", row.split(" | ")[0]):
            assert (ROOT / name).exists(), name


def test_the_glossary_names_what_exists() -> None:
    """Names in the column "code" are public names of the core, or are told apart by a dot, a bracket or an option."""
    import vpgcnn
    from vpgcnn import features, groups, levels, nn, objective

    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    known = {name for module in (vpgcnn, features, groups, levels, nn, objective) for name in module.__all__}
    rows = [row.rsplit(" | ", 1)[1] for row in text.splitlines() if row.startswith("| ") and "---" not in row]
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)", row)}
    assert len(named) > 20
    assert named - known <= {"Card", "Split"}


def names_in(name: str) -> set[str]:
    """The tests of a file of that name, wherever it is in tests/."""
    found = sorted((ROOT / "tests").rglob(name))
    return {test for path in found for test in re.findall(r"(?m)^def (test_\w+)\(", path.read_text(encoding="utf-8"))}


def test_named_tests_exist() -> None:
    """Pages name tests; a renamed one must be renamed there too."""
    named = {
        (file, test)
        for page in PAGES
        for file, test in re.findall(r"(test_\w+\.py)::(test_\w+)", page.read_text(encoding="utf-8"))
    }
    assert [f"{file}::{test}" for file, test in sorted(named) if test not in names_in(file)] == []


def test_every_statement_of_the_theory_has_its_test() -> None:
    """Each line of the tables names one, with its file, and all four propositions are there."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| statement")]
    assert len(lines) >= 15
    assert [line for line in lines if not re.search(r"`test_\w+\.py::test_\w+`", line)] == []
    assert all(f"| proposition {number}" in text for number in range(1, 5))
    assert all(f"prop. {label}" in text for label in ("partial-dist", "one-layer"))


def test_the_citation_is_that_of_the_package() -> None:
    import vpgcnn

    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert vpgcnn.__version__.startswith(re.findall(r"(?m)^version: (\S+)", text)[0])
    for author in ("Hyunsu", "Yegon", "Hongseok", "Juho"):
        assert author in text
        assert author in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_setting_in_the_documents_exists() -> None:
    """`--model.level` and the like, in code blocks and in text."""
    tyro = pytest.importorskip("tyro")
    from vpgcnn.apps.commands.common import spec_registry
    from vpgcnn.lab.networks.config import COLOR_CNN, PLAIN_RESNET, RESNET
    from vpgcnn.lab.training.config import OBJECTIVES, TrainConfig

    known: set[str] = set()
    for model in (RESNET, COLOR_CNN, PLAIN_RESNET):
        for objective in OBJECTIVES.values():
            default = TrainConfig(model=model, objective=objective())
            with spec_registry(), contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
                tyro.cli(TrainConfig, default=default, args=["--help"], config=(tyro.conf.AvoidSubcommands,))
            known |= set(re.findall(r"--[a-z][\w.-]*\.[\w-]+", re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue())))
    assert "--model.level" in known
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    groups = "data|model|augmenter|objective|optimiser|level-optimiser|network|levels"
    named = {
        setting
        for page in pages
        for setting in re.findall(rf"--(?:{groups})\.[a-z][\w-]*", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 15
    assert sorted(named - known) == []


def test_the_map_in_the_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Map of the package")[2].partition("## ")[0]
    names = [name for row in text.splitlines()[3:] for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(names) > 8
    assert [name for name in names if not (ROOT / "src" / "vpgcnn" / name).exists()] == []
