"""Write the notebooks of the tutorials, run them, and store them with their outputs: `make notebooks`.

The plot at the top of docs/read-levels.md is one of these outputs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat
from jupyter_client.manager import AsyncKernelManager

sys.path.insert(0, str(Path(__file__).parent))
from tutorials import ROOT, cells, tutorials

FOLDER = ROOT / "notebooks"


def notebook_of(page: Path) -> nbformat.NotebookNode:
    """The notebook of a tutorial, without outputs."""
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    made = [make[kind](source, id=f"cell-{number}") for number, (kind, source) in enumerate(cells(page))]
    return nbformat.v4.new_notebook(cells=made, metadata=metadata)


def executed(notebook: nbformat.NotebookNode, replaced: dict[str, str] | None = None) -> nbformat.NotebookNode:
    """Run a copy of a notebook from top to bottom.

    Args:
        notebook: With or without outputs.
        replaced: Texts in its code → texts to run instead, such as fewer steps.

    Returns:
        The copy with its outputs.

    Raises:
        ValueError: If no cell has a text that is to be replaced.
    """
    notebook = nbformat.from_dict(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for old, new in (replaced or {}).items():
        if not any(old in cell.source for cell in code):
            raise ValueError(f"no cell has {old!r}")
        for cell in code:
            cell.source = cell.source.replace(old, new)
    with TemporaryDirectory() as sockets:  # rather than ports
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(Path(sockets) / "kernel"))
        client = nbclient.NotebookClient(notebook, timeout=900, startup_timeout=180, km=kernel)
        with client.setup_kernel(cwd=str(FOLDER)):
            for place, cell in enumerate(notebook.cells):
                client.execute_cell(cell, place)
    return notebook


def stored(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without anything that differs from run to run or machine to machine."""
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = outputs(cell.outputs)
    return notebook


def outputs(made: list[Any]) -> list[Any]:
    """The outputs of a cell: printed text in one piece, pictures without a description, no warnings."""
    kept: list[Any] = []
    for output in made:
        if output.output_type == "stream":
            if output.name == "stderr":
                continue
            if kept and kept[-1].output_type == "stream":
                kept[-1].text += output.text
                continue
        elif "image/svg+xml" in output.get("data", {}):
            output.data.pop("text/plain", None)
        kept.append(output)
    return kept


def first_plot(notebook: nbformat.NotebookNode) -> str:
    """The first plot that a notebook shows: an SVG."""
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    plots: list[str] = [output.data["image/svg+xml"] for output in shown if "image/svg+xml" in output.get("data", {})]
    return plots[0]


def main() -> None:
    """All notebooks, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks (default: all)")
    names = parser.parse_args().names
    for name, page in tutorials().items():
        if not names or name in names:
            print(f"running notebooks/{name}.ipynb", flush=True)
            done = stored(executed(notebook_of(page)))
            nbformat.write(done, FOLDER / f"{name}.ipynb")
            if name == "read_levels":
                (ROOT / "docs" / "levels.svg").write_text(first_plot(done), encoding="utf-8")


if __name__ == "__main__":
    main()
