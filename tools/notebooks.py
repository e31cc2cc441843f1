"""Run the notebooks and store them with their outputs: `make notebooks`.

With every notebook goes a fingerprint of the code that made its outputs, so that a test can tell when they are old.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat
from jupyter_client.manager import AsyncKernelManager

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"


def fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Of the code in it."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def read(path: Path) -> nbformat.NotebookNode:
    """A notebook, checked."""
    notebook: nbformat.NotebookNode = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def executed(notebook: nbformat.NotebookNode, replaced: dict[str, str] | None = None) -> nbformat.NotebookNode:
    """A copy that was run from top to bottom. replaced: texts of its code that are others in this run."""
    notebook = nbformat.from_dict(notebook)
    for cell in notebook.cells:
        for old, new in (replaced or {}).items():
            if cell.cell_type == "code":
                cell.source = cell.source.replace(old, new)
    with TemporaryDirectory() as sockets:  # rather than ports
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(Path(sockets) / "kernel"))
        client = nbclient.NotebookClient(notebook, timeout=600, startup_timeout=180, km=kernel)
        with client.setup_kernel(cwd=str(FOLDER)):
            for place, cell in enumerate(notebook.cells):
                client.execute_cell(cell, place)
    return notebook


def stored(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without what differs from run to run and machine to machine, and with its fingerprint."""
    kernel: dict[str, Any] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": kernel, "language_info": {"name": "python"}, "vpgcnn": {"code": fingerprint(notebook)}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = nbformat.from_dict({}), f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = outputs(cell.outputs)
    return notebook


def outputs(made: list[Any]) -> list[Any]:
    """What a cell printed as one text; of a picture nothing but the picture; no warnings, which name paths."""
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


def main() -> None:
    """All of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="notebooks (default: all)")
    names = parser.parse_args().names
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(f"running {path.relative_to(ROOT)}", flush=True)
            nbformat.write(stored(executed(read(path))), path)


if __name__ == "__main__":
    main()
