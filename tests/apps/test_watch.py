"""The page that shows a run as it trains: what it says is what the folder holds, and it changes nothing there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_support import PATIENCE, served, vpgcnn
from fastapi.testclient import TestClient

from vpgcnn.apps.serve.watch import make_watch_app
from vpgcnn.apps.serve.watching import SILENT, Watcher

CHROMIUM = shutil.which("chromium")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run that has finished one of its two epochs and is still training, as far as its folder tells."""
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    (folder / "result.json").unlink()
    (folder / ".lock").touch()
    whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    end = next(number for number, line in enumerate(whole) if '"epoch": 1' in line) + 1
    (folder / "metrics.jsonl").write_text("".join(whole[:end]) + whole[end][:20])  # a line is being written
    (folder / "rest").write_text("".join(whole[end:]))
    (folder / "metrics.jsonl").touch()
    return folder


def finish(run: Path, trained: Path) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write((run / "rest").read_text()[20:])
    shutil.copy(trained / "run" / "result.json", run)
    (run / ".lock").unlink()


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_the_page_tells_what_the_folder_holds(run: Path, trained: Path) -> None:
    before = state(run)
    client = TestClient(make_watch_app(Watcher(run), ["testserver"]))
    now = client.get("/api/run").json()
    rows = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in rows if "epoch" in row]
    assert (now["state"], now["step"], now["steps"]) == ("training", epochs[0]["step"], epochs[1]["step"])
    numbers = {text: number for number, text in now["numbers"]}
    assert numbers["epochs"] == "1 of 2"
    assert {"so far", "left", "memory at most"} <= set(numbers)
    curves = {curve["name"]: curve for curve in now["accuracy"]}
    assert curves["validation"]["values"] == [epochs[0]["validation_accuracy"]]
    theta = {curve["name"]: curve["values"] for curve in now["theta"]}
    assert list(theta) == ["all classes", "bright", "dark"]
    assert [theta["bright"][0], theta["dark"][0]] == epochs[0]["theta"]["last"]
    assert theta["bright"] != theta["dark"]
    assert state(run) == before, "nothing was written"
    finish(run, trained)
    after = client.get("/api/run").json()
    assert (after["state"], after["step"]) == ("finished", after["steps"])
    test = json.loads((run / "result.json").read_text())["test"]
    assert [f"{test['accuracy']:.1%}", "test accuracy on 9 images"] in after["numbers"]
    assert [curve["values"][-1] for curve in after["theta"][1:]] == epochs[1]["theta"]["last"]
    assert json.loads(vpgcnn("watch", run, "--json").stdout) == after


def test_it_says_whether_the_run_is_alive(run: Path) -> None:
    touched = (run / "metrics.jsonl").stat().st_mtime
    assert Watcher(run).look(touched + 10).sentence == "training, last line 10 s ago"
    assert Watcher(run).look(touched + SILENT + 600).sentence == "no sign of life for 15 min: it may have been killed"
    (run / "metrics.jsonl").unlink()
    os.utime(run / "config.json", (touched, touched))  # that of the fixture may be minutes old
    assert Watcher(run).look(touched).state == "starting"
    (run / ".lock").unlink()
    assert Watcher(run).look(touched).sentence == "stopped: --resume continues it"


def test_many_classes_and_many_steps_are_thinned_out(run: Path) -> None:
    lines = [json.dumps({"step": n, "steps": 5000, "nll": 1.0, "accuracy": n / 5000}) for n in range(1, 1002)]
    theta = [n / 100 for n in range(100)]
    lines.append(json.dumps({"epoch": 1, "step": 1002, "steps": 5000, "theta": {"a": theta, "b": theta}}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    seen = Watcher(run).look()
    assert len(seen.loss[0].steps) <= 401
    assert (seen.loss[0].steps[0], seen.loss[0].steps[-1]) == (1, 1001)
    assert [curve.values for curve in seen.theta[1:]] == [[value] for value in (0, 0.01, 0.02, 0.97, 0.98, 0.99)]
    assert seen.note == "the 3 classes with the narrowest and the widest windows, of 100"


@pytest.mark.parametrize(
    "line", ['{"epoch": 1, "step": 3, "theta": {"a": [1], "b": [1, 2]}}', '{"step": 3, "steps": "x"}']
)
def test_damaged_metrics_are_named(run: Path, line: str) -> None:
    (run / "metrics.jsonl").write_text(line + "\n")
    result = vpgcnn("watch", run, "--json")
    assert result.returncode == 1
    assert "metrics.jsonl is damaged" in result.stderr
    assert "Traceback" not in result.stderr
    client = TestClient(make_watch_app(Watcher(run), ["testserver"]), raise_server_exceptions=False)
    assert "metrics.jsonl is damaged" in client.get("/api/run").json()["detail"]


def test_folders_without_a_run_and_other_hosts_are_refused(run: Path, tmp_path: Path) -> None:
    result = vpgcnn("watch", tmp_path / "none")
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "is not the folder of a run: it has no config.json" in result.stderr
    assert "--port must be a number" in vpgcnn("watch", run, "--port", "99999", "--no-browser").stderr
    client = TestClient(make_watch_app(Watcher(run), ["testserver"]))
    assert client.get("/api/run", headers={"host": "evil.example"}).status_code == 400
    for path in ("/", "/watch.js", "/watch.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "http" not in answer.text


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_follows_the_run(run: Path, trained: Path, browser: Any, width: int) -> None:
    with served(make_watch_app(Watcher(run), ["127.0.0.1"])) as (host, port):
        tab = browser.new_context(viewport={"width": width, "height": 900}).new_page()
        tab.set_default_timeout(1000 * PATIENCE)
        wrong: list[str] = []
        tab.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.goto(f"http://{host}:{port}/")
        tab.wait_for_selector("#theta .legend")
        assert "1 of 2" in tab.inner_text("#numbers")
        assert "left" in tab.inner_text("#numbers")
        names = tab.locator("#theta .legendtext").all_text_contents()
        assert names == ["all classes", "bright", "dark"]
        finish(run, trained)
        tab.wait_for_selector("#state:has-text('finished')")
        assert "2 of 2" in tab.inner_text("#numbers")
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "no scrolling sideways"
        if picture := os.environ.get("VPGCNN_PICTURES"):
            tab.screenshot(path=f"{picture}/watch-{width}.png", full_page=True)
        assert not wrong
