"""Every name that `vpgcnn reproduce` takes, end to end on a tiny setting, and what happens when something fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from vpgcnn import GroupFeature
from vpgcnn.errors import UserError
from vpgcnn.groups import Hue
from vpgcnn.kernels import Siren
from vpgcnn.lab.data import Dataset, Split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.flowers import CLASSES
from vpgcnn.lab.data.sign_colors import CLASSES as SIGN_COLORS
from vpgcnn.lab.data.turn_hue import CLASSES as TURN_HUE
from vpgcnn.lab.experiments import cost, hue, registry, runner, verdicts
from vpgcnn.lab.experiments.base import Arm, Claim, Experiment, markdown
from vpgcnn.lab.experiments.color import LINES
from vpgcnn.lab.experiments.stability import fluctuation, follow
from vpgcnn.lab.networks import ColorConfig, PlainConfig, SE2Config, build, count_parameters
from vpgcnn.lab.networks.config import NO_GROUP
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.loop import Interrupted
from vpgcnn.lab.training.optimisers import rate_factor
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import Fixed, Full, GumbelSoftmax, RankedSoftmax, Shared, Variational, VariationalLevel, Window

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "src/vpgcnn/lab/experiments/result.schema.json").read_text())


def tiny_data(config: DataConfig, directory: Path | None = None) -> Dataset:
    """Noise in the shape of a dataset: a few images of a few of its classes."""
    classes, channels, size = {
        "mnist67-180": (("6", "7", "9"), 1, 28),
        "mnist-ranges": (("4", "4 turned", "7", "7 turned"), 1, 28),
        "mnist-ranges-eighth": (("4", "4 turned", "7", "7 turned"), 1, 28),
        "mnist-turn-hue": (TURN_HUE, 3, 28),
        "gtsrb-turn": (tuple(f"c{number}" for number in range(43)), 3, 40),
        "gtsrb-mirror": (tuple(f"c{number}" for number in range(43)), 3, 40),
        "mnist": (tuple("0123456789"), 1, 28),
        "mnist-multiple": (tuple("0123456789"), 1, 28),
        "gtsrb-colors": (SIGN_COLORS, 3, 28),
        "colormnist": (tuple(f"c{number}" for number in range(30)), 3, 28),
        "colormnist-lt": (tuple(f"c{number}" for number in range(30)), 3, 28),
        "flowers102": (CLASSES, 3, 32),
        "cifar10": (tuple(f"c{number}" for number in range(10)), 3, 32),
        "cifar100": (tuple(f"c{number}" for number in range(100)), 3, 32),
    }[config.name]
    wanted = [CLASSES.index(name) for name in ("barberton daisy", "snapdragon", "canterbury bells")]
    wanted += [CLASSES.index(name) for name in ("english marigold", "tiger lily", "moon orchid")]
    some = torch.tensor(wanted if classes is CLASSES else [0, 1, 2])
    generator = torch.Generator().manual_seed(config.seed)

    def part(count: int) -> Split:
        images = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
        place = torch.arange(count)
        known = {
            "mnist-ranges": torch.tensor([0.25, 0.5, 1.0])[place % 3],
            "mnist-ranges-eighth": torch.tensor([0.125, 0.5, 1.0])[place % 3],
            "gtsrb-turn": torch.tensor([0.25, 0.375, 1.0])[place % 3],
            "gtsrb-mirror": torch.tensor([0.5, 1.0])[place % 2],
            "mnist-multiple": torch.tensor([0.0, 0.1, 0.2])[place % 3],
            "gtsrb-colors": torch.tensor([[1.0, 1.0], [1.0, 0.25], [0.25, 1.0], [0.25, 0.25]])[place % 4],
            "mnist-turn-hue": torch.tensor([[1.0, 1.0], [1.0, 1 / 3], [0.5, 1.0], [0.5, 1 / 3]])[place % 4],
        }
        digits = torch.tensor([TURN_HUE.index(name) for name in ("3", "7 red", "6", "4 blue")])
        labels = digits[place % 4] if classes is TURN_HUE else some[place % len(some)]
        return Split(images, labels, known.get(config.name))

    parts = part(10), part(6), part(12)
    return Dataset(config.name, classes, *parts, (f"{config.name}, made up",), 0.5, 0.3)


def shrunk(config: TrainConfig, epochs: int) -> TrainConfig:
    """The same run with a network of a few channels."""
    model = config.model
    if isinstance(model, SE2Config):
        model = replace(model, widths=(2,) * len(model.widths), kernel=Siren(hidden=4))
    elif isinstance(model, PlainConfig):
        model = replace(model, width=2, depths=(1, 1))
    else:
        model = replace(model, width=6 if model.shape == "resnet" else 2)
    augmenter = replace(config.augmenter, width=2, search=1, samples=min(2, config.augmenter.samples))
    return replace(config, model=model, augmenter=augmenter, epochs=epochs, batch_size=4, device="cpu")


def tiny(experiment: Experiment, epochs: int = 1) -> Experiment:
    """The same arms and measurements, one seed, networks of a few channels."""

    def shallow(config: TrainConfig) -> TrainConfig:  # before the arm, which may name layers
        model = config.model
        return replace(config, model=replace(model, depths=(1, 1, 1, 1))) if isinstance(model, ColorConfig) else config

    def small(arm: Arm) -> Arm:
        return replace(arm, change=lambda config: shrunk(arm(shallow(config)), epochs), seeds=None, optional=False)

    return replace(experiment, arms={name: small(experiment.arm(name)) for name in experiment.arms}, seeds=(0,))


class Heard(Quiet):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> runner.Places:
    monkeypatch.setattr(runner, "load", tiny_data)
    monkeypatch.setattr("vpgcnn.lab.training.loop.load", tiny_data)
    monkeypatch.setattr("vpgcnn.lab.experiments.digits.ANGLES", (-180, -90, -60, 0, 60, 90, 180))
    monkeypatch.setattr("vpgcnn.lab.experiments.hue.FOLLOWED", 2)
    monkeypatch.setattr("vpgcnn.lab.experiments.hue.STEPS", 4)
    return runner.Places(tmp_path / "runs", tmp_path / "results", {}, Heard())


def checked(target: Path, name: str, *, figure: bool) -> dict[str, Any]:
    """The result, once it is known to be whole: by the schema, as a page, as a figure."""
    result: dict[str, Any] = json.loads(target.read_text())
    jsonschema.validate(result, SCHEMA)
    assert result["name"] == name
    text = target.with_suffix(".md").read_text()
    assert f"# {name} (preset cpu)" in text
    assert f"vpgcnn reproduce {name} --preset cpu" in result["command"]
    assert f"`{result['command']}`" in text
    assert target.with_suffix(".png").exists() == target.with_suffix(".html").exists() == figure
    assert (f"({target.stem}.png)" in text) == figure == bool(result["figure"])
    if figure:
        assert target.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        page = target.with_suffix(".html").read_text()
        assert page.startswith("<!doctype html>")
        assert 'src="http' not in page
    return result


@pytest.mark.parametrize(
    "name", [name for name in registry.EXPERIMENTS if name != "table-flowers" and not name.startswith("relaxed-")]
)
def test_every_experiment_runs(name: str, places: runner.Places) -> None:
    experiment = tiny(registry.EXPERIMENTS[name], epochs=2 if name == "fig-stability" else 1)
    target = runner.run(experiment, places, preset="cpu")
    result = checked(target, name, figure=experiment.chart is not None)
    assert [row["arm"] for row in result["rows"]] == experiment.arms_of("cpu")
    assert result["failed"] == []
    text = target.with_suffix(".md").read_text()
    if name == "fig-principle":
        assert text.count("\n| 0.") == 6
    else:
        for arm in experiment.arms_of("cpu"):
            assert f"\n| {arm} |" in text
            assert f"- `{arm}`: {experiment.arm(arm).about}" in text  # the legend
            assert f"| {experiment.arm(arm).published} |" in text or not experiment.arm(arm).published
    assert all(f"\n- {note}" in text for note in (*experiment.notes, *experiment.tried))
    for row in result["rows"]:
        assert experiment.arm(row["arm"]).keep_curves or not set(experiment.curves) & set(row)
    if name == "fig-stability":
        for row in result["rows"]:
            levels = row["levels"]
            assert levels["epochs"] == [1, 2]
            assert levels["shown"]["layer"] in levels["fluctuation"]["evaluated"]
            weights = torch.tensor(levels["shown"]["drawn"])
            assert weights.shape == (2, 3)  # epochs, elements
            assert torch.allclose(weights.sum(-1), torch.ones(2), atol=2e-3)
        assert result["rows"][2]["levels"]["fluctuation"]["drawn"]["lift"] > 0  # each epoch has other Gumbel noise


def test_the_views_of_the_color_experiments(places: runner.Places) -> None:
    """Five views of two experiments, whose arms are trained once."""
    experiments = {name: tiny(registry.EXPERIMENTS[name]) for name in ("table-colormnist", "table-flowers")}
    chosen = ["cnn-19k", "ce3", "vp3", "resnet"]
    color = runner.run(registry.VIEWS["table-color"], places, preset="cpu", arms=chosen, experiments=experiments)
    result = checked(color, "table-color", figure=False)
    assert result["command"] == (
        "vpgcnn reproduce table-colormnist --preset cpu --arms cnn-19k ce3 vp3 --seeds 0; "
        "vpgcnn reproduce table-flowers --preset cpu --arms resnet vp3 --seeds 0; "
        "vpgcnn reproduce table-color --preset cpu --no-training"
    )
    assert [row["elements"] for row in result["rows"]] == [elements for _, elements, *_ in LINES]
    assert {row["colormnist"]["arm"] for row in result["rows"] if row["colormnist"]} == {"cnn-19k", "ce3", "vp3"}
    text = color.with_suffix(".md").read_text()
    assert text.count("not run") == 7 + 8
    assert "| T(2) × H₃ | 3 | VP | – |" in text
    for name, figure in (
        ("table-calibration", True),
        ("fig-flowers-confidence", True),
        ("fig-equivariance-error", True),
        ("table-adaaug", False),
    ):
        target = runner.run(registry.VIEWS[name], places, preset="cpu", experiments=experiments)
        result = checked(target, name, figure=figure)
        assert result["command"] == f"vpgcnn reproduce {name} --preset cpu"
        # What is in the view is what the experiment found.
        rows = json.loads((places.results / "table-flowers.json").read_text())["rows"]
        own = {row["arm"]: row for row in rows if row["arm"] in registry.VIEWS[name].sources["table-flowers"]}
        assert {row["arm"] for row in result["rows"]} == set(own)
        for row in result["rows"]:
            if "accuracies" in row:
                assert row["accuracies"] == [own[row["arm"]]["test"]["accuracy"]]
            if "nll" in row:
                assert row["nll"] == own[row["arm"]]["scores"]["nll"]
    lines = places.progress.lines  # type: ignore[attr-defined]
    assert sum(line.startswith("vp3, seed 0: ") and "already done" not in line for line in lines) == 2  # one each
    with pytest.raises(UserError, match="unknown arm 'left'"):
        runner.run(registry.VIEWS["table-color"], places, preset="cpu", arms=["left"])


def test_a_reliability_diagram_is_what_the_calibration_error_sums() -> None:
    from vpgcnn.measure import calibration_error, reliability

    chances, labels = torch.rand(200, 4, dtype=torch.float64).softmax(1), torch.randint(4, (200,))
    bins = reliability(chances, labels, 10)
    assert float(bins[:, 2].sum()) == pytest.approx(1)
    by_hand = 0.0
    for number in range(10):
        sure, guess = chances.max(1)
        inside = (sure >= number / 10) & (sure < (number + 1) / 10)
        if inside.any():
            right = (guess == labels)[inside].double().mean()
            assert bins[number, 0] == pytest.approx(float(sure[inside].mean()))
            assert bins[number, 1] == pytest.approx(float(right))
            by_hand += float(inside.double().mean() * (sure[inside].mean() - right).abs())
    assert calibration_error(chances, labels, 10) == pytest.approx(by_hand)


def test_an_arm_that_fails_does_not_lose_the_others(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    whole = runner.train
    broken = {"full"}

    def fails(config: TrainConfig, out: Path, **options: Any) -> dict[str, Any]:
        if out.name.split("-")[0] in broken:
            raise KeyError("out of memory")
        return whole(config, out, **options)

    monkeypatch.setattr(runner, "train", fails)
    target = runner.run(experiment, places, preset="cpu")
    result = checked(target, "table-cifar100", figure=False)
    assert [row["arm"] for row in result["rows"]] == ["t2", "shared", "variational"]
    assert result["failed"] == [{"arm": "full", "seed": 0, "error": "KeyError: 'out of memory'"}]
    assert "Failed: full, seed 0 (KeyError: 'out of memory')." in target.with_suffix(".md").read_text()
    lines = places.progress.lines  # type: ignore[attr-defined]
    assert any(line.startswith("4 of 4 runs") and "failed" in line for line in lines)

    # Another arm does not make it forgotten.
    runner.run(experiment, places, preset="cpu", arms=["shared", "t2"])
    assert [one["arm"] for one in json.loads(target.read_text())["failed"]] == ["full"]

    broken.clear()
    before = json.loads(target.read_text())["rows"]
    after = checked(runner.run(experiment, places, preset="cpu"), "table-cifar100", figure=False)
    assert after["failed"] == []
    assert [row for row in after["rows"] if row["arm"] != "full"] == before

    broken.update({"t2", "full", "shared", "variational"})
    elsewhere = replace(places, runs=places.runs / "x", results=places.results / "x")
    with pytest.raises(UserError, match="all runs of table-cifar100 failed; the first, t2: KeyError: 'out of memory'"):
        runner.run(experiment, elsewhere, preset="cpu")


def test_a_view_does_without_a_source_that_fails(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiments = {name: tiny(registry.EXPERIMENTS[name]) for name in ("table-colormnist", "table-flowers")}

    def only_flowers(config: DataConfig, directory: Path | None = None) -> Dataset:
        if config.name != "flowers102":
            raise UserError("no digits here")
        return tiny_data(config)

    monkeypatch.setattr(runner, "load", only_flowers)
    view = registry.VIEWS["table-color"]
    target = runner.run(view, places, preset="cpu", arms=["ce3", "vp3"], experiments=experiments)
    result = checked(target, "table-color", figure=False)
    assert [row["arm"] for row in result["rows"] if row["flowers102"]] == ["T(2) × H₃ VP"]
    assert not any(row["colormnist"] for row in result["rows"])
    assert "no digits here" in result["failed"][0]["error"]


def test_what_has_been_run_is_shown_without_training(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-flowers"])
    experiments = {**registry.EXPERIMENTS, "table-flowers": experiment}
    view = registry.VIEWS["table-color"]
    for entry, name in ((experiment, "table-flowers"), (view, "table-color")):
        with pytest.raises(UserError, match=f"nothing of {name} has been run yet"):
            runner.run(entry, places, preset="cpu", train=False, experiments=experiments)
    runner.run(experiment, places, preset="cpu", arms=["vp3"], seeds=[1])
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("trains"))
    target = runner.run(view, places, preset="cpu", train=False, experiments=experiments)
    result = checked(target, "table-color", figure=False)
    assert [row["arm"] for row in result["rows"] if row["flowers102"]] == ["T(2) × H₃ VP"]
    made = "vpgcnn reproduce table-flowers --preset cpu --arms vp3 --seeds 1"
    assert result["command"] == f"{made}; vpgcnn reproduce table-color --preset cpu --no-training"
    target = runner.run(experiment, places, preset="cpu", train=False)
    assert [(row["arm"], row["seed"]) for row in json.loads(target.read_text())["rows"]] == [("vp3", 1)]


def test_rows_of_other_data_do_not_count(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    target = runner.run(experiment, places, preset="cpu", arms=["t2", "full"])

    def others(config: DataConfig, directory: Path | None = None) -> Dataset:
        return replace(tiny_data(replace(config, seed=9)), notes=("others",))

    monkeypatch.setattr(runner, "load", others)
    monkeypatch.setattr("vpgcnn.lab.training.loop.load", others)
    moved = replace(places, runs=places.runs / "new")
    runner.run(experiment, moved, preset="cpu", arms=["t2"])
    result = json.loads(target.read_text())
    assert [row["arm"] for row in result["rows"]] == ["t2"]
    assert result["data"] == "others"
    text = target.with_suffix(".md").read_text()
    assert "Not run yet (seeds): full (0), shared (0), variational (0)." in text
    kept = json.loads(target.with_name("table-cifar100.other-data.json").read_text())
    assert [row["arm"] for row in kept["rows"]] == ["t2", "full"]
    assert isinstance(places.progress, Heard)
    lines = [line for line in places.progress.lines if "for other data" in line]
    assert len(lines) == 1
    assert lines[0].startswith("2 of 2 rows in ")
    monkeypatch.setattr(runner, "load", tiny_data)
    monkeypatch.setattr("vpgcnn.lab.training.loop.load", tiny_data)
    runner.run(experiment, replace(places, runs=places.runs / "newer"), preset="cpu", arms=["t2"])
    first, second = (target.with_name(f"table-cifar100.other-data{end}.json") for end in ("", "-2"))
    assert len(json.loads(first.read_text())["rows"]) == 2  # not written over
    assert json.loads(second.read_text())["data"] == "others"


def test_rows_without_a_fingerprint_are_compared_by_what_is_said_of_their_data(
    places: runner.Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    target = runner.run(experiment, places, preset="cpu", arms=["t2"])
    older = json.loads(target.read_text())
    for row in older["rows"]:
        del row["fingerprint"]
    target.write_text(json.dumps(older))
    moved = replace(places, runs=places.runs / "new")
    runner.run(experiment, moved, preset="cpu", arms=["t2"])
    assert "t2, seed 0: already done" in places.progress.lines  # type: ignore[attr-defined]

    def others(config: DataConfig, directory: Path | None = None) -> Dataset:
        return replace(tiny_data(config), notes=("others, from a folder",))

    monkeypatch.setattr(runner, "load", others)
    monkeypatch.setattr("vpgcnn.lab.training.loop.load", others)
    runner.run(experiment, moved, preset="cpu", arms=["t2"])
    assert json.loads(target.read_text())["data"] == "others"


def test_a_result_is_of_use_without_its_data(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    target = runner.run(experiment, places, preset="cpu", arms=["t2"])
    before = target.read_text()

    def nothing(config: DataConfig, directory: Path | None = None) -> Dataset:
        raise UserError("there is no CIFAR-100 here")

    monkeypatch.setattr(runner, "load", nothing)
    runner.run(experiment, places, preset="cpu", arms=["t2"])
    assert target.read_text() == before
    with pytest.raises(UserError, match="there is no CIFAR-100 here"):
        runner.run(experiment, places, preset="cpu", arms=["full"])


def test_a_row_of_an_earlier_version_is_measured_again(places: runner.Places) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    runner.run(experiment, places, preset="cpu", arms=["t2", "full"])
    newer = replace(experiment, measure=lambda *_: {"theta": {}, "found": 3}, keys=("found",))
    target = runner.run(newer, places, preset="cpu", arms=["t2"])
    rows = json.loads(target.read_text())["rows"]
    assert [row.get("found") for row in rows] == [3, None]
    (places.runs / "table-cifar100/cpu/full-0/result.json").unlink()
    with pytest.raises(UserError, match="lacks 'found', and its weights are not in"):
        runner.run(newer, places, preset="cpu", arms=["full"])


def test_the_command_that_is_written_makes_these_rows(places: runner.Places) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    arms = {**experiment.arms, "full": replace(experiment.arm("full"), optional=True)}
    experiment = replace(experiment, arms=arms)
    target = runner.run(experiment, places, preset="cpu", arms=["t2"])
    assert json.loads(target.read_text())["command"] == "vpgcnn reproduce table-cifar100 --preset cpu"
    runner.run(experiment, places, preset="cpu", arms=["full"], seeds=[3])
    lines = json.loads(target.read_text())["command"]
    base = "vpgcnn reproduce table-cifar100 --preset cpu"
    assert lines == f"{base} --arms t2 --seeds 0; {base} --arms full --seeds 3"
    runner.run(experiment, places, preset="cpu", arms=["t2"], seeds=[3])
    runner.run(experiment, places, preset="cpu", arms=["full"], seeds=[0])
    assert json.loads(target.read_text())["command"] == f"{base} --arms t2 full --seeds 0 3"


@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_every_arm_of_every_preset_has_settings(preset: str) -> None:
    for name, experiment in registry.EXPERIMENTS.items():
        listing = registry.listing(name, preset)
        for arm in experiment.arms:
            config = experiment.config(arm, 0, preset)
            assert isinstance(config.model.level, Fixed | Full | Shared | Variational), f"{name}: {arm}"
            about = experiment.arm(arm).about
            assert about, f"{name}: {arm}"
            assert "\n" not in about
            assert any(line.split()[0] == arm and about in line for line in listing.splitlines())
    stability = registry.EXPERIMENTS["fig-stability"]
    families = [stability.config(arm, 0, preset).model.level.family for arm in stability.arms]  # type: ignore[union-attr]
    assert families == [Window(), RankedSoftmax(), GumbelSoftmax(final=0.1)]
    assert stability.arms_of(preset) == list(stability.arms)
    policy = registry.EXPERIMENTS["table-flowers"].config("resnet-adaaug", 0, preset)
    assert policy.augmenter.search == policy.epochs // 3


def test_an_interrupted_reproduction_goes_on(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    whole, calls = runner.train, []

    def stops(config: TrainConfig, out: Path, **options: Any) -> dict[str, Any]:
        calls.append(out.name)
        if len(calls) == 3:
            raise Interrupted("stopped")
        return whole(config, out, **options)

    monkeypatch.setattr(runner, "train", stops)
    with pytest.raises(Interrupted):
        runner.run(experiment, places, preset="cpu")
    half = json.loads((places.results / "table-cifar100.json").read_text())
    assert [row["arm"] for row in half["rows"]] == ["t2", "full"]
    result = checked(runner.run(experiment, places, preset="cpu"), "table-cifar100", figure=False)
    assert calls == ["t2-0", "full-0", "shared-0", "shared-0", "variational-0"]
    assert result["rows"][:2] == half["rows"]


def test_measuring_again_trains_nothing(places: runner.Places, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(registry.EXPERIMENTS["table-cifar100"])
    target = runner.run(experiment, places, preset="cpu", arms=["t2", "full"])
    before = json.loads(target.read_text())["rows"]
    other = replace(experiment, measure=lambda *_: {"theta": {}, "found": 3})
    monkeypatch.setattr("vpgcnn.lab.training.loop._Training._one_step", lambda *_: pytest.fail("it was trained again"))
    runner.run(other, places, preset="cpu", arms=["t2"], again=True)
    after = json.loads(target.read_text())["rows"]
    assert after[0]["found"] == 3
    assert after[0]["commit"] == before[0]["commit"]
    assert after[0]["measured"]
    assert after[1] == before[1]


def test_costs_are_counted(monkeypatch: pytest.MonkeyPatch, places: runner.Places) -> None:
    monkeypatch.setattr(cost, "SIZES", {"cpu": (32, 2, 6)})
    monkeypatch.setattr(cost, "COUNTED", (32, 6))
    monkeypatch.setattr(cost, "ROUNDS", 1)
    kept = "CEResNet", "ResNet", "VP CEResNet", "ResNet w/ InstaAug"
    monkeypatch.setattr(cost, "ARMS", {name: cost.ARMS[name] for name in kept})
    measured = cost._peak_of("ResNet", 32, 2, 6)  # in another process
    assert measured > 1_000_000
    monkeypatch.setattr(cost, "_peak_of", lambda *_: measured)
    target = runner.run(registry.COUNTS["table-cost"], places, preset="cpu")
    rows = checked(target, "table-cost", figure=False)["rows"]
    assert rows[0]["ratios"]["parameters"] == 1
    assert rows[2]["parameters"] > rows[0]["parameters"]
    assert rows[1]["flops"] < rows[0]["flops"] < rows[2]["flops"]
    assert rows[3]["parameters"] == pytest.approx(2 * rows[1]["parameters"], rel=0.1)  # as wide as the network
    assert all(row["bytes"] == measured for row in rows)
    with pytest.raises(UserError, match="no arms to train"):
        runner.run(registry.COUNTS["table-cost"], places, preset="cpu", arms=["ResNet"])


def test_what_the_data_say_is_measured_on_those_that_are_here(
    monkeypatch: pytest.MonkeyPatch, places: runner.Places
) -> None:
    def some(config: DataConfig) -> Dataset:
        if config.name == "cifar10":
            raise UserError("no cifar here")
        return tiny_data(config)

    monkeypatch.setattr("vpgcnn.lab.experiments.evidence.load", some)
    target = runner.run(registry.COUNTS["table-evidence"], places, preset="cpu")
    rows = checked(target, "table-evidence", figure=False)["rows"]
    assert [row["arm"].split(",")[0] for row in rows] == [
        "mnist67-180",
        "mnist",
        "colormnist",
        "flowers102",
        "flowers102",
    ]
    assert {row["carried"] for row in rows} == {"few"}  # a handful of images says nothing
    assert "cifar10 is left out: no cifar here" in places.progress.lines  # type: ignore[attr-defined]


def test_parameters_are_the_papers() -> None:
    """Within 1 % of the ratios that the paper prints, where the architecture is the same."""
    found = {arm: count_parameters(cost._make(arm, 64)) for arm in cost.ARMS}
    for arm, (_, _, paper, _) in cost.ARMS.items():
        if paper is not None:
            assert found[arm] / found["CEResNet"] == pytest.approx(paper, rel=0.01), arm


def test_operations_are_counted_by_hand() -> None:
    """An ordinary convolution of C×O channels and k×k taps: 2·C·O·k²·positions, and the linear layer."""
    from vpgcnn.lab.networks.config import COLOR_CNN

    config = replace(COLOR_CNN, group=NO_GROUP, level=Full(), width=5)
    flops = cost.count_flops(build(config, 3, 30), torch.rand(2, 3, 28, 28), expanded=True)
    sides = [26, 24, 10, 8, 6, 4, 1]
    inner, sizes = [3, 5, 5, 5, 5, 5, 5], [3, 3, 3, 3, 3, 3, 4]
    lift, *rest = (2 * c * 5 * k * k * s * s for c, k, s in zip(inner, sizes, sides, strict=True))
    norms = 2 * 2 * 5 * sum(side**2 for side in sides)  # sums of values and of squares, as products with ones
    by_hand = lift + sum(rest) + 2 * 5 * 30
    assert by_hand <= flops <= by_hand + norms
    hues = cost.count_flops(build(replace(config, group=Hue(3)), 3, 30), torch.rand(2, 3, 28, 28), expanded=True)
    by_hand = 3 * lift + 9 * sum(rest) + 3 * 2 * 5 * 30
    assert by_hand <= hues <= by_hand + 3 * norms + 10_000  # and the kernels


def test_fluctuation_is_the_mean_change_in_the_last_third() -> None:
    weights = torch.zeros(9, 2, 3)
    weights[1] = 5.0  # early: not counted
    weights[7, 0, 0] = 0.6
    assert fluctuation(weights) == pytest.approx((0.6 + 0.6) / 2 / 6)
    assert follow([])["levels"]["epochs"] == []


def rows_of(accuracies: dict[str, list[float]]) -> list[dict[str, Any]]:
    return [
        {"arm": arm, "seed": seed, "test": {"accuracy": value}, "scores": {"nll": 1 - value}}
        for arm, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def test_claims_are_judged_by_paired_differences() -> None:
    judge = verdicts.better("a", "b")
    assert judge([]).verdict == "not measured"
    assert judge(rows_of({"a": [0.5]})).verdict == "not measured"
    assert judge(rows_of({"a": [0.5], "b": [0.4]})).verdict == "open"
    above = rows_of({"a": [0.5, 0.8, 0.3], "b": [0.4, 0.71, 0.2]})
    assert judge(above).verdict == "yes"  # paired: seeds differ by far more than arms
    assert "+9.67 ± 0.33 points" in judge(above).evidence
    assert judge(rows_of({"a": [0.4, 0.71, 0.2], "b": [0.5, 0.8, 0.3]})).verdict == "no"
    assert judge(rows_of({"a": [0.5, 0.4], "b": [0.4, 0.5]})).verdict == "open"
    assert judge(rows_of({"a": [0.5, 0.4, 0.3], "b": [0.5, 0.4, 0.3]})).verdict == "open"  # the same
    assert verdicts.better("a", "b", verdicts.negative_nll)(above).verdict == "yes"
    same = verdicts.better_by("a", "b", -2.0)
    assert same(rows_of({"a": [0.495, 0.704], "b": [0.50, 0.71]})).verdict == "yes"
    assert same(rows_of({"a": [0.445, 0.66], "b": [0.50, 0.71]})).verdict == "no"
    far = verdicts.better_by("a", "b", 5.0)
    assert far(above).verdict == "yes"
    assert far(rows_of({"a": [0.42, 0.73, 0.21], "b": [0.4, 0.71, 0.2]})).verdict == "no"
    assert judge(rows_of({"a": [0.50, 0.52], "b": [0.49, 0.50]})).verdict == "open"  # three standard errors, two seeds
    assert judge(rows_of({"a": [0.50, 0.52], "b": [0.488, 0.504]})).verdict == "rather yes"  # seven
    assert verdicts.every(judge, verdicts.better("a", "c"))(above).verdict == "open"
    text = verdicts.table_claims(registry.claims(), {})
    assert text.count("not measured") == len(list(registry.claims())) > 15


@pytest.mark.parametrize(
    ("seeds", "sure", "likely"),
    [(2, 12.71, 6.31), (3, 4.30, 2.92), (4, 3.18, 2.35), (5, 2.78, 2.13), (7, 2.45, 1.94), (10, 2.26, 1.83)],
)
def test_intervals_are_those_of_students_t(seeds: int, sure: float, likely: float) -> None:
    """Verdicts change where the printed tables of Student's t say, within their two decimals."""

    def verdict(distance: float) -> str:
        noise = torch.linspace(-1, 1, seeds, dtype=torch.float64)
        noise = noise / noise.std() * seeds**0.5  # a standard error of 1
        return verdicts.judged((noise + distance).tolist(), "").verdict

    assert verdict(sure + 0.01) == "yes"
    assert verdict(sure - 0.01) == "rather yes"
    assert verdict(likely + 0.01) == "rather yes"
    assert verdict(likely - 0.01) == "open"
    assert verdict(-sure - 0.01) == "no"


def claim(text: str) -> Claim:
    """The claim that contains a text."""
    (found,) = [each for _, each in registry.claims() if text in each.text]
    return found


def test_daisies_and_snapdragons_are_compared_by_their_windows() -> None:
    judge = claim("snapdragons").judge

    def row(seed: int, daisy: float, snapdragon: float) -> dict[str, Any]:
        theta = [0.5] * len(CLASSES)
        theta[CLASSES.index("barberton daisy")], theta[CLASSES.index("snapdragon")] = daisy, snapdragon
        return {"arm": "vp3", "seed": seed, "theta_by_class": {"lift": theta, "last": [1.0] * len(CLASSES)}}

    wide = [row(seed, 0.4, 0.8 + 0.01 * seed) for seed in range(3)]
    assert judge(wide).verdict == "yes"
    assert "+0.21" in judge(wide).evidence  # the mean over layers
    assert judge([row(seed, 0.8 + 0.01 * seed, 0.4) for seed in range(3)]).verdict == "no"
    assert judge([{"arm": "vp3", "seed": 0, "theta_by_class": {}}]).verdict == "not measured"


def test_a_mean_over_some_of_the_seeds_says_so() -> None:
    assert hue._percent([0.5, 0.5, None]).endswith("(2 of 3 seeds)")
    assert hue._percent([None]) == "–"
    assert "seeds" not in hue._percent([0.5, 0.5])


def test_the_principle_is_that_windows_widen_at_no_cost_and_then_at_one() -> None:
    judge = claim("with a larger λ").judge

    def verdict(six: tuple[float, ...], losses: tuple[float, ...]) -> str:
        rows = [
            {
                "config": {"objective": {"start": 0.1 * number}},
                "theta": {"6": [theta, 0.0], "7": [1.0, 0.0]},
                "test": {"nll": nll},
            }
            for number, (theta, nll) in enumerate(zip(six, losses, strict=True), start=1)
        ]
        return judge(rows[::-1]).verdict

    assert verdict((0.2, 0.5, 0.9, 1.0), (0.01, 0.02, 0.02, 0.5)) == "yes"
    assert verdict((0.2, 0.5, 0.9, 1.0), (0.01, 0.02, 0.02, 0.02)) == "no"  # never touched
    assert verdict((0.2, 0.5, 0.9, 1.0), (0.01, 0.5, 0.5, 0.5)) == "no"  # touched before any is wider
    assert verdict((0.2, 0.9, 0.5, 1.0), (0.01, 0.02, 0.02, 0.5)) == "no"  # narrower with a larger λ
    assert verdict((0.2, 0.5, 0.9, 1.0), (0.01, 0.5, 0.02, 0.5)) == "no"  # touched on the way
    assert judge([]).verdict == "not measured"


def test_stability_is_judged_by_what_is_drawn_and_by_what_is_evaluated() -> None:
    def row(arm: str, seed: int, drawn: float, evaluated: float) -> dict[str, Any]:
        change = {"drawn": {"lift": drawn}, "evaluated": {"lift": evaluated}}
        return {"arm": arm, "seed": seed, "levels": {"fluctuation": change}}

    judge = claim("Gumbel-softmax fluctuates").judge
    rows = [row("gumbel", 0, 0.3, 0.1), row("ranked", 0, 0.02, 0.01)]
    assert judge(rows[:1]).verdict == "not measured"
    assert judge(rows).verdict == "open"  # one seed
    more = [*rows, row("gumbel", 1, 0.2, 0.1), row("ranked", 1, 0.02, 0.01)]
    assert judge(more).verdict == "yes"
    assert "gumbel 0.2500 (0.1000)" in judge(more).evidence
    assert judge([*more, row("ranked", 2, 0.02, 1.0)]).verdict == "open"  # chances settle, draws not
    assert judge([*more, row("ranked", 2, 1.0, 1.0)]).verdict == "no"


def test_the_wide_arms_are_as_large_as_the_variational_one() -> None:
    flowers = registry.EXPERIMENTS["table-flowers"]
    arms = [*(arm for arm in flowers.arms if arm.endswith("-wide")), "vp3"]
    assert len(arms) > 7
    for preset in ("cpu", "paper"):
        sizes = [count_parameters(build(flowers.config(arm, 0, preset).model, 3, 102)) for arm in arms]
        assert max(sizes) / min(sizes) < 1.05


def test_a_table_is_markdown() -> None:
    assert markdown(["a", "b"], [[1, "x"]]) == "| a | b |\n|---|---|\n| 1 | x |"


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.name)
def test_results_in_the_repository_follow_the_schema(path: Path) -> None:
    if path.name == "bench.json":
        pytest.skip("ratios of times have another form")
    result = json.loads(path.read_text())
    jsonschema.validate(result, SCHEMA)
    assert result["name"] in registry.REPRODUCTIONS


def test_the_schema_refuses() -> None:
    result = json.loads((ROOT / "results/fig-mnist67-180.json").read_text())
    for change in ({"name": "nonsense"}, {"rows": []}, {"commits": []}, {"preset": "large"}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(result | change, SCHEMA)
    del result["rows"][0]["commit"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(result, SCHEMA)


@pytest.mark.parametrize(
    ("name", "arm"),
    [("table-colormnist", "partial3"), ("table-flowers", "partial3"), ("table-flowers", "vp3-drawn")],
)
def test_levels_keep_what_they_draw(name: str, arm: str) -> None:
    """The chance of an element in every residual sum is that of one level, and evaluation expects what is drawn."""
    torch.manual_seed(0)
    config = registry.EXPERIMENTS[name].config(arm, 0, "cpu")
    level = config.model.level
    assert isinstance(level, Shared | Variational)
    level = replace(level, family=replace(level.family, initial=0.8))  # type: ignore[type-var]
    model = build(replace(config.model, width=4, level=level), 3, 5).train()
    for module in model.modules():
        if isinstance(module, VariationalLevel):  # the same level for every batch, in training and after it
            nn.init.zeros_(module.encoder.linear.weight)
    seen: dict[str, list[torch.Tensor]] = {}

    def note(place: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, GroupFeature) and output.weights is not None:
                seen.setdefault(place, []).append(output.weights[0].detach())

        return hook

    for place, module in model.named_modules():
        module.register_forward_hook(note(place))
    images = torch.rand(2, 3, 32 if config.data.size else 28, 32 if config.data.size else 28)
    with torch.no_grad():
        for _ in range(150):
            model(images)
        drawn = {place: torch.stack(weights).mean(dim=0) for place, weights in seen.items()}
        seen.clear()
        model.eval()(images)
    assert drawn
    for place, weights in drawn.items():
        torch.testing.assert_close(weights, seen[place][0], rtol=0, atol=0.06, msg=lambda text, p=place: f"{p}: {text}")


def test_partial_gcnn_can_learn() -> None:
    """Adam moves a parameter by its rate at most in a step: enough to bring a chance of 0.9 to a half, nearly."""
    for name in ("table-colormnist", "table-flowers"):
        config = registry.EXPERIMENTS[name].config("partial3", 0, "cpu")
        steps = config.epochs * 15
        way = sum(rate_factor(step, steps, config.warmup, config.final) for step in range(steps))
        assert config.level_optimiser.beside(config.optimiser).lr * way > math.log(9) - 0.2
