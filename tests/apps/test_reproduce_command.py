"""vpgcnn reproduce: arms are run one after the other, and what has been run is not run again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_support import vpgcnn

from vpgcnn.lab.experiments import registry, runner
from vpgcnn.lab.experiments.base import Arm

NAME = "fig-mnist67-180"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure of MNIST67-180 after one epoch on few digits, at few angles."""
    chosen = registry.EXPERIMENTS[NAME]

    def small(arm: Arm) -> Arm:
        def change(config: Any) -> Any:
            config = arm(config)
            return replace(config, epochs=1, data=replace(config.data, source="embedded", limit=128))

        return replace(arm, change=change)

    experiment = replace(chosen, arms={name: small(chosen.arm(name)) for name in chosen.arms})
    monkeypatch.setitem(registry.REPRODUCTIONS, NAME, experiment)
    monkeypatch.setattr("vpgcnn.lab.experiments.digits.ANGLES", (-180, -90, 0, 90, 180))


def test_a_trial_never_mixes_with_results(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = vpgcnn("reproduce", NAME, "--arms", "full", "--seeds", 4, "--threads", 1, "--epochs", 2)
    assert result.returncode == 0, result.stderr
    apart = tmp_path / "runs" / "trial-of-2-epochs"
    (row,) = json.loads((apart / "results" / f"{NAME}.json").read_text())["rows"]
    assert row["config"]["epochs"] == 2
    assert "(a trial of 2 epochs, not a result)" in (apart / "results" / f"{NAME}.md").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [apart.name]
    assert not (tmp_path / "results").exists()


def test_an_experiment_is_written_arm_by_arm(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"

    def go(*arms: str, runs: str = "runs") -> dict[str, Any]:
        words = ["--arms", *arms, "--seeds", 4, "--runs", tmp_path / runs, "--results", results, "--threads", 1]
        result = vpgcnn("reproduce", NAME, *words)
        assert result.returncode == 0, result.stderr
        target = results / f"{NAME}.json"
        assert f"written to {target}" in result.stdout
        data: dict[str, Any] = json.loads(target.read_text())
        return data

    first = go("full")
    assert [row["arm"] for row in first["rows"]] == ["full"]
    second = go("variational", "full")
    rows = second["rows"]
    assert [row["arm"] for row in rows] == ["variational", "full"]
    assert rows[1] == first["rows"][0]
    wanted = {"test", "curves", "flip_angles", "theta", "theta_auroc", "figures", "commit", "config", "seconds"}
    assert wanted <= set(rows[0])
    page = (results / f"{NAME}.md").read_text()
    assert page.count("\n| variational | 4 |") == 1
    # Without the folders of the runs, the result alone shows that they are done.
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("it was run again"))
    assert go("variational", "full", runs="elsewhere")["rows"] == rows
    # A row from before a setting existed counts, as long as the setting has its default.
    for row in second["rows"]:
        del row["config"]["model"]["antialias"]
    (results / f"{NAME}.json").write_text(json.dumps(second))
    assert [row["arm"] for row in go("variational", "full", runs="elsewhere")["rows"]] == ["variational", "full"]
    # A row with a setting that no longer exists belongs to another experiment.
    second["rows"][1]["config"]["model"]["colour"] = "red"
    (results / f"{NAME}.json").write_text(json.dumps(second))
    assert [row["arm"] for row in go("variational", runs="elsewhere")["rows"]] == ["variational"]


def test_a_failed_arm_is_named_and_the_others_are_written(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = runner.train

    def fails(config: Any, *rest: Any, **options: Any) -> Any:
        if not config.model.level.is_full:
            raise RuntimeError("out of luck")
        return train(config, *rest, **options)

    monkeypatch.setattr(runner, "train", fails)
    words = ["--seeds", 4, "--runs", tmp_path / "runs", "--results", tmp_path / "results", "--threads", 1]
    result = vpgcnn("reproduce", NAME, "--arms", "variational", "full", *words)
    assert result.returncode == 1
    assert "vpgcnn: 1 run failed: variational (seed 4); the same command tries again" in result.stderr
    assert "Traceback" not in result.stderr
    data = json.loads((tmp_path / "results" / f"{NAME}.json").read_text())
    assert [row["arm"] for row in data["rows"]] == ["full"]
    alone = vpgcnn("reproduce", NAME, "--arms", "variational", *words[:3], tmp_path / "more", *words[4:])
    assert alone.returncode == 1
    assert "out of luck" in alone.stderr + alone.stdout


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    result = vpgcnn("reproduce", NAME, "--seeds", "0", "-1", "--runs", tmp_path / "runs", "--results", tmp_path)
    assert result.returncode == 1
    assert "a seed is a whole number of at least 0, got -1" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_list_names_arms_and_files() -> None:
    listed = vpgcnn("reproduce", "--list").stdout
    for name in registry.REPRODUCTIONS:
        assert f"{name}: " in listed
    assert len(listed.splitlines()) < 3 * len(registry.REPRODUCTIONS)  # without the arms
    one = vpgcnn("reproduce", NAME, "--list").stdout
    assert f"results/{NAME}.json" in one
    assert all(f"  {arm} " in one for arm in registry.EXPERIMENTS[NAME].arms)
    assert f"results/{NAME}-paper.json" in vpgcnn("reproduce", NAME, "--list", "--preset", "paper").stdout
    assert "did you mean" in vpgcnn("reproduce", f"{NAME}s", "--list").stderr


def test_the_list_says_where_minutes_are_known(tmp_path: Path) -> None:
    note = "How many minutes they take is known only where their results are"
    assert note in vpgcnn("reproduce", "--list", "--results", tmp_path / "none").stdout
    (tmp_path / f"{NAME}.json").write_text('{"rows": [{"seconds": 120}]}')
    listed = vpgcnn("reproduce", "--list", "--results", tmp_path).stdout
    assert "2 minutes for 1 run" in listed
    assert note not in listed
