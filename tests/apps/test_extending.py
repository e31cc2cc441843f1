"""The files that docs/extending.md shows: on every fast path, in levels(), convert, export and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import SmallNet
from vpgcnn import SO2, Elbo, Group, Hue, Product, Rotations, Variational, convert, equivariance_error, folded
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported
from vpgcnn.kernels import KernelSpec
from vpgcnn.lab.plugins import load_plugin
from vpgcnn.lab.specs import parse, text
from vpgcnn.levels import Family, LevelSpec
from vpgcnn.measure import levels, read_levels, whole_group, with_mean_levels

FOLDER = Path(__file__).parents[2] / "examples" / "extending"
FILES = sorted(FOLDER.glob("*.py"))
LEVELS = ["Jittered(0.2, 0.8)", "Shared(Bell(0.5))", "Variational(Bell(0.5))"]


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    for path in FILES:
        load_plugin(path)


def images() -> Tensor:
    return torch.rand(3, 3, 12, 12)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)).eval()


def test_each_is_one_short_file() -> None:
    assert [path.stem for path in FILES] == ["arm", "dataset", "family", "group", "kernel", "level"]
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 40


def test_text_and_value_are_the_same_thing() -> None:
    for call, kind in (("Scaled(0.5)", KernelSpec), ("Swap()", Group), *((level, LevelSpec) for level in LEVELS)):
        value: Any = parse(call, kind)
        assert parse(text(value), kind) == value


# 17 and 32 channels take the cyclic algorithm on hues; 24 on quarter turns with 7×7 kernels the Fourier basis.
@pytest.mark.parametrize(("group", "width", "size"), [(Hue(3), 4, 3), (Hue(3), 32, 3), (Rotations(4), 24, 7)])
def test_a_kernel_is_used_on_every_path(group: Group, width: int, size: int) -> None:
    kernel = parse("Scaled(0.5)", KernelSpec)
    net = SmallNet(group, kernel=kernel, width=width, size=size, level=Variational()).eval()
    x = images()
    before = net(x).logits
    with folded(net):
        assert torch.allclose(net(x).logits, before, atol=1e-5)
    with torch.no_grad():
        for conv in net.convs:
            conv.kernel.scale.mul_(torch.linspace(0.5, 2, group.count))
    assert not torch.allclose(net(x).logits, before, atol=1e-4)  # the answer depends on what `expand` says
    net.train()(x).logits.sum().backward()
    assert all(bool(conv.kernel.scale.grad.abs().sum() > 0) for conv in (net.lift, *net.convs))


@pytest.mark.parametrize("group", [Hue(3), SO2(4), Product(Rotations(4), Hue(3))], ids=repr)
@pytest.mark.parametrize("level", LEVELS)
def test_levels_decide_and_can_be_read(level: str, group: Group) -> None:
    net = SmallNet(group, level=parse(level, LevelSpec))
    elbo = Elbo.of(net(images()), torch.tensor([0, 1, 2]))
    elbo.total(0.1).backward()
    assert bool(elbo.kl >= 0)
    reading = read_levels(net, images())
    assert reading.theta["convs.0"].shape == (3, len(group.axes))
    assert torch.allclose(reading.weights["convs.0"].sum(dim=1), torch.ones(3), atol=1e-5)
    assert "convs.0" in repr(levels(net, images()))
    with whole_group(net), torch.no_grad():
        assert not net(images()).theta
    with with_mean_levels(net, images()), torch.no_grad():
        assert net(images()).logits.shape == (3, 5)


def test_a_family_reaches_the_whole_group() -> None:
    q = parse("Bell()", Family).distribution(torch.ones(2, 1), Hue(3), noisy=False, generator=None)
    assert torch.allclose(q.weights(Hue(3).grid()), torch.full((2, 3), 1 / 3))
    assert torch.allclose(q.kl(), torch.zeros(2), atol=1e-6)


def test_a_group_is_a_group() -> None:
    swap = parse("Swap()", Group)
    grid = swap.grid()
    assert torch.equal(swap.compose(grid[1], grid[1]), grid[0])
    x = images()
    assert torch.equal(swap.transform(x, grid[1]), x.flip(1))
    assert equivariance_error(SmallNet(swap).eval(), x, swap).worst < 1e-5


@pytest.mark.parametrize("level", [None, "Full()", *LEVELS])
def test_networks_are_converted_to_it(level: str | None) -> None:
    swap, model, x = parse("Swap()", Group), classifier(), images()
    net = convert(model, swap, level=None if level is None else parse(level, LevelSpec)).eval()
    if level is None:
        assert torch.allclose(net(x).logits, model(x), atol=1e-5)
    if level == "Full()":
        assert equivariance_error(net, x, swap).worst < 1e-5


@pytest.mark.parametrize(
    ("group", "kernel", "level"),
    [("Hue(3)", "Scaled()", "full"), ("Swap()", None, "variational"), *(("SO2(4)", None, level) for level in LEVELS)],
)
def test_networks_are_exported(group: str, kernel: str | None, level: str) -> None:
    made = None if kernel is None else parse(kernel, KernelSpec)
    net = SmallNet(parse(group, Group), kernel=made, level=parse(level, LevelSpec)).eval()
    deployed = Deployed(net, example=images())
    program = exported(deployed, channels=3, size=12)
    more = torch.rand(5, 3, 12, 12)
    for one, two in zip(program.module()(more), deployed(more), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


# ---------------------------------------------------------------- the command line


TINY = ["--epochs", "1", "--data.limit", "64", "--threads", "1", "--json"]
DIGITS = ["mnist67-180", "--data.source", "embedded"]
RUNS = {
    "kernel": [*DIGITS, "--model.group", "Rotations(4)", "--model.kernel", "Scaled()"],
    "level": [*DIGITS, "--model.level", "Jittered(0.2, 0.8)"],
    "family": [*DIGITS, "--model.level", "Variational(Bell(0.5), condition='output')"],
    "group": ["colormnist-lt", "--data.source", "embedded", "--model.group", "Swap()"],
    "dataset": ["mnist67-180", "--data.name", "halves"],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_command_line_takes_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlxtend")
    from vpgcnn.apps.cli import main

    use, run = ["--use", str(FOLDER / f"{name}.py")], str(tmp_path / "run")
    assert main([*use, "train", *RUNS[name], *TINY, "--out", run]) == 0
    assert json.loads(capsys.readouterr().out)["test"]["images"] > 0
    assert main([*use, "evaluate", run, "--json"]) == 0
    assert main([*use, "export", run, "--format", "torch-export", "--out", str(tmp_path / "net.pt2")]) == 0
    assert (tmp_path / "net.pt2").exists()


def test_an_arm_joins_its_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlxtend")
    from vpgcnn.apps.cli import main
    from vpgcnn.lab.experiments import registry

    for entries in (registry.EXPERIMENTS, registry.REPRODUCTIONS):  # the arm does not outlive the test
        monkeypatch.setitem(entries, "fig-mnist67-180", entries["fig-mnist67-180"])  # type: ignore[index]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # without files of MNIST: the embedded digits
    monkeypatch.delenv("VPGCNN_DATA", raising=False)
    command = ["--use", str(FOLDER / "arm.py"), "reproduce", "fig-mnist67-180", "--arms", "few-images", "--seeds", "0"]
    folders = ["--threads", "1", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main([*command, *folders]) == 0
    (result,) = (tmp_path / "results").glob("*.json")
    (row,) = json.loads(result.read_text(encoding="utf-8"))["rows"]
    assert row["arm"] == "few-images"
    assert "few-images" in result.with_suffix(".md").read_text(encoding="utf-8")


def test_a_name_that_no_file_registers_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown kernel 'Wavelet': choose from .*Siren.*--use FILE\.py"):
        parse("Wavelet()", KernelSpec)
