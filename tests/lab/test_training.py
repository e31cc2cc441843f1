"""Runs that survive: resumed anywhere, the end is the same, bit for bit."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch
from accelerate import Accelerator
from torch.testing import assert_close

from processes import forkserver
from vpgcnn import O2, SO2, Full, ReparametrizedWindow, Siren, Variational
from vpgcnn._ops import choice
from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, scratch_beside, to_json, write_json
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.networks import AugmenterConfig, PlainConfig, SE2Config
from vpgcnn.lab.specs import text
from vpgcnn.lab.training.checkpoint import Card, load_model, read_tensors, save_model, save_tensors
from vpgcnn.lab.training.config import LevelOptimiserConfig, Objective, OptimiserConfig, TrainConfig, settled
from vpgcnn.lab.training.loop import Interrupted, StopSignal, ThetaByClass, restart_warning, train
from vpgcnn.lab.training.progress import Progress, in_time
from vpgcnn.lab.training.run import OtherSettingsError, chosen_weights
from vpgcnn.measure import read_levels
from vpgcnn.objective import Band, DualWeight, KlSchedule, Price

TINY = SE2Config(
    group=SO2(4), block="plain", widths=(3, 4, 5), kernel_sizes=(5, 3, 3), group_pool="mean",
    kernel=Siren(hidden=8, omega=4.0),
)  # fmt: skip


CARD = Card(TINY, ("a", "b"), 1, 16, (0.0,), (1.0,))


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 noisy images of three classes: bars that lie, stand, or are not there."""
    import numpy as np

    random_numbers = np.random.default_rng(0)
    labels = np.arange(200) % 3
    images = random_numbers.integers(0, 60, (200, 16, 16)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        if label < 2:
            image[(slice(6, 9), slice(2, 14)) if label else (slice(2, 14), slice(6, 9))] += 180
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture
def config(arrays: Path) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(name=str(arrays), augment="crop-flip"), model=TINY, epochs=3, batch_size=32,
        optimiser=OptimiserConfig(lr=1e-2), device="cpu", threads=1, log_steps=1, save_seconds=0.0,
    )  # fmt: skip


def command(config: TrainConfig, out: Path, *more: str) -> list[str]:
    """The same run from the command line."""
    model, data = config.model, config.data
    words = ["mnist67-180", "--out", str(out), "--data.name", data.name, "--data.augment", data.augment]
    assert isinstance(model, SE2Config)
    words += ["--model.group", text(model.group), "--model.kernel", text(model.kernel), "--model.where", *model.where]
    words += ["--model.widths", "3", "4", "5", "--model.kernel-sizes", "5", "3", "3", "--model.stem-stride", "1"]
    words += ["--model.elsewhere", text(model.elsewhere), "--epochs", str(config.epochs), "--batch-size", "32"]
    words += ["--lr", str(config.optimiser.lr), "--device", config.device, "--threads", "1", "--log-steps", "1"]
    return [sys.executable, "-m", "vpgcnn", "train", *words, "--save-seconds", str(config.save_seconds), *more]


def settings(config: TrainConfig, out: Path, *more: str) -> list[str]:
    """The arguments of `vpgcnn` alone, for a process that has it in memory."""
    return command(config, out, *more)[3:]


def started(config: TrainConfig, out: Path, *more: str) -> BaseProcess:
    """The same run in a process of its own, which need not import torch first."""
    process = forkserver().Process(target=quiet, args=(settings(config, out, *more),))
    process.start()
    return process


def quiet(words: list[str]) -> None:
    """`vpgcnn` without its lines about each epoch."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(cli.main(words))


def lines(run: Path) -> list[dict[str, float]]:
    """The metrics, without time and memory; θ of each layer and class by a name of its own."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        for layer, values in row.pop("theta", {}).items():
            row |= {f"theta {layer} {number}": value for number, value in enumerate(values)}
    return [{key: value for key, value in row.items() if key not in ("seconds", "memory")} for row in rows]


def same_weights(one: Path, two: Path) -> None:
    for name in ("best.safetensors", "last.safetensors"):
        first, second = read_tensors(one / name)[0], read_tensors(two / name)[0]
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.equal(value, second[key]), f"{name}: {key}"
    assert lines(one) == lines(two)


def test_nothing_is_measured_in_a_run(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms differ in rounding: chosen by the clock, the same command would give other bits."""
    monkeypatch.setenv(choice.VARIABLE, "measure")
    monkeypatch.setattr(choice, "_times", lambda *_: pytest.fail("measured"))
    train(replace(config, epochs=1), tmp_path / "run")


def test_it_learns_and_keeps_everything(config: TrainConfig, tmp_path: Path) -> None:
    result = train(replace(config, epochs=40), tmp_path / "run")
    assert result["test"]["accuracy"] > 0.8
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "state.safetensors", "result.json"}
    assert names == files
    epochs = [line for line in lines(tmp_path / "run") if "epoch" in line]
    assert [line["epoch"] for line in epochs] == list(range(1, 41))
    best = max(line["validation_accuracy"] for line in epochs)
    assert result["validation"]["accuracy"] == best
    model, card = load_model(chosen_weights(tmp_path / "run"))
    assert card.classes == ("0", "1", "2")
    assert model(torch.zeros(2, 1, 16, 16)).logits.shape == (2, 3)


@pytest.mark.parametrize(
    "objective", [Price(), KlSchedule(), DualWeight(), Band()], ids=lambda objective: objective.name
)
def test_stopped_at_every_place_the_end_is_the_same(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: Objective
) -> None:
    """In one process: interrupted after each single step in turn, mid-epoch and at epoch ends."""
    config = replace(config, epochs=2, objective=objective)
    train(config, tmp_path / "whole")
    steps = sum("epoch" not in line for line in lines(tmp_path / "whole"))
    assert steps == 8
    from vpgcnn.lab.training import loop

    step = loop._Training._one_step

    def stop_after(self: object, stop: object) -> None:
        step(self, stop)
        self.stopping = True  # type: ignore[attr-defined]

    monkeypatch.setattr(loop._Training, "_one_step", stop_after)
    for _ in range(steps):
        with pytest.raises(Interrupted, match="saved in"):
            train(config, tmp_path / "parts", resume=True)
    monkeypatch.undo()
    train(config, tmp_path / "parts", resume=True)
    same_weights(tmp_path / "whole", tmp_path / "parts")


def test_killed_at_random_places_the_end_is_the_same(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten SIGKILLs of the real command; then it finishes, and nobody can tell."""
    config = replace(config, epochs=40)
    assert cli.main(settings(config, tmp_path / "whole")) == 0
    out, dice = tmp_path / "killed", random.Random(0)
    kills, reached = 0, []
    while kills < 10:
        process = started(config, out, "--resume")
        seen = _steps(out)
        while _steps(out) <= seen and process.is_alive():  # it has come further than before
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended before it was killed"
        kills += 1
        reached.append(_steps(out))
    assert sorted(set(reached)) == reached, "every kill came at another place"
    capsys.readouterr()
    assert cli.main(settings(config, out, "--resume")) == 0
    assert "resuming after step" in capsys.readouterr().out
    same_weights(tmp_path / "whole", out)
    assert not list(out.glob(".*tmp"))


def _steps(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b'"lambda"') if path.exists() else 0


def test_control_c_finishes_the_step_and_prints_how_to_continue(config: TrainConfig, tmp_path: Path) -> None:
    long = replace(config, epochs=500)
    process = subprocess.Popen(
        command(long, tmp_path / "run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while _steps(tmp_path / "run") < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with: vpgcnn train mnist67-180" in errors
    assert errors.strip().endswith("--resume")
    assert "Traceback" not in errors
    step = read_tensors(tmp_path / "run" / "state.safetensors")[1]["step"]
    assert step == [line for line in lines(tmp_path / "run") if "epoch" not in line][-1]["step"]


def torchrun(*options: str) -> list[str]:
    """torchrun on this machine with two processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]


ALONE = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""The environment of torchrun: restarted workers must not read addresses of those before them."""


@pytest.fixture(scope="module")
def together(arrays: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[TrainConfig], Path]:
    """The run of two processes by a configuration; each is trained once."""

    @cache
    def trained(config: TrainConfig) -> Path:
        out = tmp_path_factory.mktemp("two") / "run"
        words = [*torchrun(), *command(config, out)[1:]]
        both = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **ALONE}, check=False)
        assert both.returncode == 0, both.stderr
        return out

    return trained


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_two_processes_take_the_steps_of_one(
    config: TrainConfig, tmp_path: Path, device: str, together: Callable[[TrainConfig], Path]
) -> None:
    """torchrun with two processes (gloo): the same losses as one process that has the whole batch."""
    config = replace(config, device=device)  # type: ignore[arg-type]
    assert cli.main(settings(config, tmp_path / "one")) == 0
    both = together(config)
    one, two = lines(tmp_path / "one"), lines(both)
    assert len(one) == len(two) == 3 * 4 + 3
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys()
        for key in first:
            assert second[key] == pytest.approx(first[key], rel=1e-3, abs=2e-4), (first, key)
    both_weights = (read_tensors(folder / "last.safetensors")[0] for folder in (tmp_path / "one", both))
    for key, (first, second) in _pairs(*both_weights).items():
        assert_close(first, second, rtol=1e-2, atol=1e-3, msg=key)


def test_a_worker_that_is_killed_starts_again_and_the_end_is_the_same(
    config: TrainConfig, tmp_path: Path, together: Callable[[TrainConfig], Path]
) -> None:
    """torchrun --max-restarts: the process that writes the files is killed; nobody can tell."""
    out, said = tmp_path / "run", tmp_path / "said"
    words = [*torchrun("--max-restarts", "1"), *command(config, out, "--resume")[1:]]
    with said.open("w") as stream:
        launcher = subprocess.Popen(words, stdout=stream, stderr=stream, env={**os.environ, **ALONE})
    try:
        while _steps(out) < 3:
            assert launcher.poll() is None, said.read_text()
            time.sleep(0.002)
        os.kill(_worker(launcher.pid, 0), signal.SIGKILL)
        assert launcher.wait(200) == 0, said.read_text()
    finally:
        launcher.kill()
        launcher.wait()
    assert "resuming after step" in said.read_text()
    same_weights(together(config), out)
    assert not list(out.glob(".*"))


def test_it_says_when_torchrun_cannot_restart_workers() -> None:
    elastic = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in restart_warning(elastic)
    assert restart_warning({**elastic, "TORCHELASTIC_MAX_RESTARTS": "0"}) == ""
    assert restart_warning({**elastic, "TORCHELASTIC_USE_AGENT_STORE": "False"}) == ""
    assert restart_warning({}) == ""


def _worker(torchrun: int, rank: int) -> int:
    """The process with this rank among the children of torchrun."""
    for child in psutil.Process(torchrun).children():
        if child.environ().get("RANK") == str(rank):
            return child.pid
    raise AssertionError(f"there is no worker of rank {rank}")


def _pairs(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    assert one.keys() == two.keys()
    return {key: (one[key], two[key]) for key in one}


def test_the_same_seed_is_the_same_run_and_another_is_not(config: TrainConfig, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(config, epochs=1, seed=seed), tmp_path / name)
    same_weights(tmp_path / "a", tmp_path / "b")
    assert lines(tmp_path / "a") != lines(tmp_path / "c")


def test_settings_without_effect_do_not_make_another_run(config: TrainConfig) -> None:
    other = LevelOptimiserConfig("sgd", 0.5)
    full = replace(config, model=replace(config.model, level=Full()))
    assert settled(replace(full, level_optimiser=other)) == settled(full)
    assert settled(replace(config, level_optimiser=other)) != settled(config)
    ranged = replace(full, augmenter=AugmenterConfig("image"))
    assert settled(replace(ranged, level_optimiser=other)) != settled(ranged)  # the ranges are levels
    assert settled(replace(full, augmenter=AugmenterConfig(initial=0.3))) == settled(full)
    assert settled(replace(full, optimiser=OptimiserConfig("sgd", 0.5))) != settled(full)
    assert settled(replace(full, objective=KlSchedule())) == settled(full)  # there is no KL
    assert settled(replace(config, objective=KlSchedule())) != settled(config)
    explicit = LevelOptimiserConfig(config.optimiser.kind, config.optimiser.lr)
    assert settled(replace(config, level_optimiser=explicit)) == settled(config)  # what it is anyway


def test_levels_can_be_watched_without_changing_the_run(config: TrainConfig, tmp_path: Path) -> None:
    train(config, tmp_path / "bare")
    train(replace(config, watch=3), tmp_path / "watched")
    one, two = (load_model(tmp_path / name / "last.safetensors")[0].state_dict() for name in ("bare", "watched"))
    assert all(torch.equal(value, two[key]) for key, value in one.items())
    epochs = [line for line in lines(tmp_path / "watched") if "epoch" in line]
    assert len(epochs) == config.epochs
    for line in epochs:
        for kind in ("evaluated", "drawn"):
            every = line["levels"][kind]  # type: ignore[index]
            assert {"lift", "last"} <= set(every)
            for weights in every.values():
                assert len(weights) == 3
                assert all(sum(image) == pytest.approx(1, abs=1e-3) for image in weights)
    assert not any("levels" in line for line in lines(tmp_path / "bare"))


def test_each_epoch_tells_theta_time_and_memory(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config, tmp_path / "run", progress=Progress())
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert re.search(r"nll \S+, unused \S+, \d+ s, \d+ s left, (\d+ MB|\d\.\d GB)$", said[0]), said
    assert " left" not in said[-1]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["steps"] for row in rows} == {12}
    assert 1e8 < rows[-1]["memory"] < 1e11
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    model, _ = load_model(tmp_path / "run" / "last.safetensors")
    split = load(config.data).validation
    theta = read_levels(model, split.images).theta["last"].mean(dim=1)
    expected = [float(theta[split.labels == label].mean()) for label in range(3)]
    assert rows[-1]["theta"]["last"] == pytest.approx(expected, abs=1e-4)


def test_theta_is_averaged_in_each_class() -> None:
    theta = ThetaByClass(3)
    theta.add(
        {"a": torch.tensor([[0.1, 0.3], [0.5, 0.5], [1.0, 0.8]]), "b": torch.tensor([[0.7]])}, torch.tensor([0, 2, 0])
    )
    theta.add({"a": torch.tensor([[0.6, 0.8]]), "b": torch.tensor([[0.7]])}, torch.tensor([2]))
    assert theta.means(Accelerator(cpu=True)) == {"a": [0.55, None, 0.6], "b": [0.7, None, 0.7]}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7300, "2 h 2 min"), (200_000, "2 d 7 h")],
)
def test_time_in_words(seconds: float, words: str) -> None:
    assert in_time(seconds) == words


def test_tensorboard_reads_what_a_stopped_and_resumed_run_tracked(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard's own reader finds each step once, with the numbers of metrics.jsonl."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = replace(config, track="tensorboard", save_seconds=1000.0)
    from vpgcnn.lab.training import loop

    step = loop._Training._one_step

    def crash(self: loop._Training, stop: StopSignal) -> None:
        if self.step == 6:
            raise KeyboardInterrupt
        step(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_one_step", crash)
        with pytest.raises(KeyboardInterrupt):  # after the state of step 4: two steps are taken again
            train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume=True)
    found = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    rows = lines(tmp_path / "run")
    for name in ("nll", "validation_accuracy", "theta/last", "theta/last/2"):
        key = {"theta/last/2": "theta last 2"}.get(name, name)
        wanted = {row["step"]: row[key] for row in rows if key in row}
        if name == "theta/last":
            wanted = {row["step"]: sum(row[f"theta last {n}"] for n in range(3)) / 3 for row in rows if "epoch" in row}
        read = [(event.step, event.value) for event in found.Scalars(name)]
        assert [place for place, _ in read] == list(wanted), name
        assert dict(read) == pytest.approx(wanted, rel=1e-6), name
    train(replace(config, track="none"), tmp_path / "bare")
    same_weights(tmp_path / "bare", tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "advice"), [("tensorboard", r"pip install 'vpgcnn\[track\]'"), ("wandb", "pip install wandb")]
)
def test_a_tracker_that_is_not_installed_is_named(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, advice: str
) -> None:
    monkeypatch.setattr("vpgcnn.lab.training.trackers.find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"--track {kind} needs the package {kind}: {advice}"):
        train(replace(config, track=kind), tmp_path / "run")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_mixed_precision_and_clipping_train(config: TrainConfig, tmp_path: Path) -> None:
    result = train(replace(config, precision="bf16", clip=0.5, epochs=40, seed=1), tmp_path / "run")
    assert result["test"]["accuracy"] > 0.8


def test_a_clipped_step_is_shorter(config: TrainConfig, tmp_path: Path) -> None:
    """With SGD the first step is rate × gradient, so clipping to c bounds how far weights move."""
    sgd = OptimiserConfig("sgd", 1.0, 0.0)
    moved = {}
    for clip in (0.0, 0.01):
        once = replace(config, optimiser=sgd, epochs=1, clip=clip, warmup=0.0, batch_size=150)
        train(once, tmp_path / f"{clip}")
        after = read_tensors(tmp_path / f"{clip}" / "last.safetensors")[0]
        from vpgcnn.lab.networks import build
        from vpgcnn.lab.training.seeds import seed_of

        torch.manual_seed(seed_of(0, "weights"))
        before = build(TINY, 1, 3)
        parts = [(after[name] - value.detach()).flatten() for name, value in before.named_parameters()]
        moved[clip] = float(torch.cat(parts).norm())
    assert moved[0.01] <= 0.0101
    assert moved[0.0] > 0.05


def test_a_folder_belongs_to_one_process(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(config, epochs=500)
    process = started(config, tmp_path / "run")
    try:
        while _steps(tmp_path / "run") < 2:
            assert process.is_alive(), "the first run ended"
            time.sleep(0.02)
        assert cli.main(settings(config, tmp_path / "run", "--resume")) == 1
        assert "another process is training in" in capsys.readouterr().err
    finally:
        process.kill()
        process.join()


# ---------------------------------------------------------------- what is refused


def test_a_run_is_not_overwritten(config: TrainConfig, tmp_path: Path) -> None:
    train(replace(config, epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match="holds a run already"):
        train(replace(config, epochs=1), tmp_path / "run")
    with pytest.raises(UserError, match=r"data\.augment: 'crop-flip' then, 'none' now"):
        train(replace(config, epochs=1, data=replace(config.data, augment="none")), tmp_path / "run", resume=True)
    others: list[tuple[dict[str, object], str]] = [
        ({"objective": DualWeight()}, "objective.name: 'price' then, 'dual' now"),
        ({"objective": Price(0.5)}, "objective.nats: 0.05 then, 0.5 now"),
        ({"model": PlainConfig()}, "model.name: 'se2' then, 'plain' now"),
        ({"model": replace(TINY, level=Full())}, r"model.level: Variational\(\) then, Full\(\) now"),
        ({"seed": 1}, "seed: 0 then, 1 now"),
    ]
    for change, message in others:
        with pytest.raises(OtherSettingsError, match=message):
            train(replace(config, epochs=1, **change), tmp_path / "run", resume=True)  # type: ignore[arg-type]
    again = train(replace(config, epochs=1, threads=2), tmp_path / "run", resume=True)  # finished: nothing to do
    assert again["steps"] == 4
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        train(config, tmp_path / "other")


def test_unwritable_and_full_disks_give_a_sentence(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        train(config, tmp_path / "file" / "run")
    with pytest.raises(UserError, match="is a file"):
        train(config, tmp_path / "file")
    if Path("/dev/full").exists():  # every write to it fails as on a full disk
        from vpgcnn.lab import config_io

        real = os.fsync

        def full(descriptor: int) -> None:
            real(descriptor)
            with Path("/dev/full").open("wb", buffering=0) as disk:
                disk.write(b"x")

        monkeypatch.setattr(config_io.os, "fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            train(config, tmp_path / "run")
        assert not list((tmp_path / "run").iterdir())  # nothing by half


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 10_000}, "batch_size is 10000, but there are only"),
        ({"warmup": 2.0}, "warmup is a share of the training, from 0 to below 1, got 2"),
        ({"final": 2.0}, "final is a share of the highest learning rate, from 0 to 1, got 2"),
        ({"optimiser": OptimiserConfig(lr=-1.0)}, "optimiser.lr must be > 0, got -1.0"),
        ({"level_optimiser": LevelOptimiserConfig(weight_decay=-1.0)}, "level_optimiser.weight_decay must not be"),
        ({"level_optimiser": LevelOptimiserConfig(lr=-1.0)}, "level_optimiser.lr must be > 0, got -1.0"),
        ({"balance": -1.0}, "balance must not be negative, got -1.0"),
        ({"optimiser": OptimiserConfig("sgd", 1e30, 0.0)}, "not finite after step"),
        ({"optimiser": OptimiserConfig(lr=float("nan"))}, "optimiser.lr must be a finite number, got nan"),
        ({"objective": KlSchedule(peak=float("nan"))}, "objective.peak must be a finite number, got nan"),
        ({"model": replace(TINY, kernel=Siren(omega=float("nan")))}, "model.kernel.omega must be a finite number"),
        ({"model": replace(TINY, level=Full()), "optimiser": OptimiserConfig("adamw", 1e30)}, "not finite"),
        ({"model": replace(TINY, group=O2(4), level=Variational(ReparametrizedWindow()))}, "network cannot be built"),
        ({"model": replace(TINY, smooth=1e9)}, "0 to 10 pixels"),
        ({"threads": 100_000}, "threads must be from 0 to"),
        ({"threads": -1}, "threads must be from 0 to"),
        ({"clip": -1.0}, "clip must not be negative"),
        ({"precision": "fp16"}, "needs a CUDA device"),
        ({"data": DataConfig(name="~nosuchuser/x")}, "neither a dataset nor a path"),
        ({"data": DataConfig(name="x" * 5000)}, "neither a dataset nor a path"),
        (
            {"data": DataConfig(name="mnist67-180", source="embedded", seed=10**20)},
            "data.seed must be a whole number from 0",
        ),
        ({"data": DataConfig(name="mnist67-180", source="embedded", validation=0.0)}, "no validation images"),
        ({"data": DataConfig(name="no-such-set")}, "unknown dataset 'no-such-set'"),
        (
            {"model": replace(TINY, where=("first",))},
            "is called 'first': choose from lift, stage1, last",
        ),
        ({"model": replace(TINY, kernel_sizes=(5, 3, 9))}, "cannot take 16×16 images"),
        ({"model": replace(TINY, widths=(3,))}, "widths must be those of"),
    ],
)
def test_nonsense_is_refused_by_name(
    config: TrainConfig, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        train(replace(config, **change), tmp_path / "run")  # type: ignore[arg-type]
    assert "result.json" not in [path.name for path in tmp_path.rglob("*")]


def test_lambda_of_a_schedule_may_be_zero(config: TrainConfig, tmp_path: Path) -> None:
    train(replace(config, epochs=1, objective=KlSchedule(start=0.0, peak=2.0)), tmp_path / "run")


def test_without_validation_and_test_images_the_last_epoch_is_kept(config: TrainConfig, tmp_path: Path) -> None:
    data = replace(config.data, validation=0.0, test=0.0)
    result = train(replace(config, epochs=1, data=data, select="last"), tmp_path / "run")
    assert result["test"] == {"images": 0}
    assert result["validation"] == {"images": 0}
    assert not (tmp_path / "run" / "best.safetensors").exists()
    load_model(chosen_weights(tmp_path / "run"))


def test_other_data_are_noticed(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    from vpgcnn.lab.training import loop

    path = tmp_path / "changing.npz"
    arrays = dict(np.load(config.data.name))
    np.savez(path, **arrays)
    config = replace(config, data=replace(config.data, name=str(path)))
    step = loop._Training._one_step

    def stop_after(self: object, stop: object) -> None:
        step(self, stop)
        self.stopping = True  # type: ignore[attr-defined]

    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "_one_step", stop_after)
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run")
    train(config, tmp_path / "finished")
    arrays["images"][0, 0, 0] ^= 255
    np.savez(path, **arrays)
    for folder in ("run", "finished"):
        with pytest.raises(UserError, match="other data"):
            train(config, tmp_path / folder, resume=True)


def test_what_a_killed_process_leaves_is_no_obstacle(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.123.tmp").write_text("{")
    (tmp_path / "run" / ".lock").write_text("")
    train(replace(config, epochs=1), tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".*"))


def test_what_killed_processes_left_beside_a_file_goes_with_the_next_write(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, mine, other = (
        scratch_beside(tmp_path / "a.json").with_name(f".a.json.{host}.{number}.tmp")
        for host, number in ((re.sub("[^A-Za-z0-9-]", "-", platform.node()), gone.pid),
                             (re.sub("[^A-Za-z0-9-]", "-", platform.node()), os.getppid()), ("elsewhere", gone.pid))
    )  # fmt: skip
    for path in (dead, mine, other):
        path.write_text("{")
    folder = dead.with_name(dead.name.replace("a.json", "saved"))
    (folder / "inside").mkdir(parents=True)
    write_json(tmp_path / "a.json", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((mine.name, other.name, folder.name, "a.json")), (
        "only what nobody writes any more"
    )
    scratch_beside(tmp_path / "saved")
    assert not folder.exists()


def test_a_share_of_no_images_is_evaluated() -> None:
    """The second of two processes has nothing to do when there is one image."""
    from vpgcnn.lab.data import Split
    from vpgcnn.lab.training.loop import evaluate, make_accelerator

    class Second:
        device, process_index, num_processes = torch.device("cpu"), 1, 2
        autocast = staticmethod(make_accelerator(TrainConfig(device="cpu")).autocast)

        @staticmethod
        def reduce(sums: torch.Tensor, _: str) -> torch.Tensor:
            return sums

    split = Split(torch.zeros(1, 1, 16, 16, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    assert evaluate(CARD.build(), split, Second())["nll"] == 0  # type: ignore[arg-type]


def test_foreign_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    card = CARD
    save_model(tmp_path / "good.safetensors", card.build(), card, {"epoch": 1})
    load_model(tmp_path / "good.safetensors")
    whole = (tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "short.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.safetensors").write_text("hello")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    save_file({"a": torch.zeros(1)}, str(tmp_path / "foreign.safetensors"))
    save_tensors(tmp_path / "bare.safetensors", {"a": torch.zeros(1)}, {})
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickle.safetensors")
    other = replace(card, model=replace(TINY, widths=(3, 4, 6)))
    save_model(tmp_path / "mixed.safetensors", other.build(), card, {})
    save_tensors(tmp_path / "number.safetensors", {"a": torch.zeros(1)}, 5)  # type: ignore[arg-type]
    save_tensors(tmp_path / "blank.safetensors", {"a": torch.zeros(1)}, {"card": {}})
    flat = {"card": {**to_json(card), "std": [0.0]}}
    save_tensors(tmp_path / "flat.safetensors", {"a": torch.zeros(1)}, flat)
    hollow = card.build()
    torch.nn.init.constant_(hollow.head.weight, float("nan"))  # type: ignore[union-attr]
    save_model(tmp_path / "hollow.safetensors", hollow, card, {})
    for name in (
        "short",
        "text",
        "empty",
        "foreign",
        "bare",
        "pickle",
        "mixed",
        "missing",
        "number",
        "blank",
        "hollow",
    ):
        with pytest.raises(UserError, match=name):
            load_model(tmp_path / f"{name}.safetensors")
    with pytest.raises(UserError, match="std"):
        load_model(tmp_path / "flat.safetensors")
    with pytest.raises(UserError, match="holds no weights"):
        chosen_weights(tmp_path)


def test_networks_of_version_0_2_are_refused_in_a_sentence(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "old.safetensors"
    description = json.dumps({"card": {"mean": 0.13, "std": 0.31}})
    save_file({"a": torch.zeros(1)}, str(path), metadata={"format": "vpgcnn-1", "description": description})
    for read in (load_model, read_tensors):
        with pytest.raises(UserError) as found:
            read(path)
        message = str(found.value)
        assert str(path) in message
        assert "vpgcnn 0.2" in message
        assert "train it again" in message
        assert "\n" not in message


def test_the_weights_file_holds_the_mean_and_deviation(tmp_path: Path) -> None:
    """So that the file alone, without the card, is the whole network."""
    card = replace(CARD, mean=(0.13,), std=(0.31,))
    save_model(tmp_path / "net.safetensors", card.build(), card, {})
    tensors, _ = read_tensors(tmp_path / "net.safetensors")
    assert float(tensors["mean"]) == pytest.approx(0.13)
    assert float(tensors["std"]) == pytest.approx(0.31)
    again, _ = load_model(tmp_path / "net.safetensors")
    assert torch.equal(again.get_buffer("mean"), tensors["mean"])


@pytest.mark.parametrize(
    "change",
    [
        {"channels": 2},
        {"size": 0},
        {"classes": ("a",)},
        {"std": (0.0,)},
        {"mean": (float("nan"),)},
        {"mean": (0.1, 0.2)},
    ],
    ids=str,
)
def test_cards_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UserError, match="card"):
        replace(CARD, **change)  # type: ignore[arg-type]


def test_a_second_signal_stops_at_once() -> None:
    with StopSignal() as stop:
        assert not stop.received
        signal.raise_signal(signal.SIGTERM)
        assert stop.received
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# ---------------------------------------------------------------- configurations


def test_configurations_survive_json(config: TrainConfig) -> None:
    config = replace(config, data_dir=Path("somewhere"))
    assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epoch": 3}, "no field 'epoch'"),
        ({"epochs": "many"}, "epochs must be int, got 'many'"),
        ({"epochs": True}, "epochs must be int, got True"),
        ({"precision": "int8"}, "precision must be one of no, bf16, fp16, got 'int8'"),
        ({"model": 3}, "model must be an object with fields"),
        ({"model": {"widths": ["a"]}}, "model.widths must be int"),
        ({"model": {"name": "vit"}}, "model.name must be one of se2, color, plain, got 'vit'"),
        ({"model": {"name": "color", "widths": [1]}}, "model has no field 'widths'"),
        ({"model": {"level": "Variatonal()"}}, r"model.level: unknown level 'Variatonal': did you mean Variational\?"),
        ({"model": {"group": 8}}, r"model.group must be a text such as 'SO2\(8\)', got 8"),
        ({"objective": {"name": "linear"}}, "objective.name must be one of price, schedule, dual, band, got 'linear'"),
        ({"objective": {"name": "dual", "peak": 1.0}}, "objective has no field 'peak'"),
        (
            {"objective": {"name": "schedule", "start": -1.0}},
            "start, peak and end are values of λ and must not be negative, got -1.0",
        ),
        ({"objective": {"nats": -1.0}}, "a price must not be negative, got -1.0"),
        ({"objective": {"name": "schedule", "hold": 0.9}}, "hold, ramp, stay and fall"),
    ],
)
def test_wrong_configurations_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_json(TrainConfig, change)
