"""vpgcnn export: every recipe's network gives the same in ONNX, and files are checked before they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_support import vpgcnn

from vpgcnn.apps.commands import export
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.groups import Hue
from vpgcnn.kernels import Siren
from vpgcnn.lab.networks import AugmenterConfig, ColorConfig, ModelConfig, PlainConfig, SE2Config, build, symmetry
from vpgcnn.lab.training.checkpoint import Card, save_model
from vpgcnn.lab.training.recipes import RECIPES
from vpgcnn.levels import Full, ReparametrizedWindow, Variational
from vpgcnn.measure import read_levels

onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
SIZES = {"mnist": 28, "colormnist": 28, "cifar": 32, "flowers": 32}


def shrunk(model: ModelConfig) -> ModelConfig:
    """The same network with few channels and few blocks."""
    if isinstance(model, SE2Config):
        kernel = replace(model.kernel, hidden=8) if isinstance(model.kernel, Siren) else model.kernel
        return replace(model, widths=tuple(max(2, width // 8) for width in model.widths), kernel=kernel)
    if isinstance(model, ColorConfig) and model.shape == "resnet":
        return replace(model, width=6, depths=(1, 1, 1, 1))
    return replace(model, width=4 if isinstance(model, PlainConfig) else 3)


def recipe_network(name: str, preset: str = "cpu") -> tuple[ModelConfig, str]:
    config = getattr(RECIPES[name], preset)
    return shrunk(config.model), config.data.name


# Networks of the other recipes have the same shape as one of these.
NETWORKS = {
    "mnist67-180": recipe_network("mnist67-180"),
    "mnist-turn-hue": recipe_network("mnist-turn-hue"),
    "cifar10-se2": recipe_network("cifar10-se2"),
    "colormnist-lt": recipe_network("colormnist-lt", "paper"),  # with ranked softmax
    "flowers102": recipe_network("flowers102"),
    "converted": (PlainConfig(width=4, depths=(1, 1), group=Hue(3), level=Variational()), "flowers102"),
    "plain": (PlainConfig(width=4, depths=(1, 1)), "flowers102"),
}
NETWORKS["mnist67-180-full"] = replace(NETWORKS["mnist67-180"][0], level=Full()), "mnist67-180"


def made(name: str) -> tuple[torch.nn.Module, int, int]:
    config, data = NETWORKS[name]
    channels = 1 if data.startswith("mnist") and symmetry(config) == "rotation" else 3
    torch.manual_seed(0)
    network = build(config, channels, 5, (0.3,), (0.4,)).eval()
    return network, channels, next(size for key, size in SIZES.items() if data.startswith(key))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_recipes_network_gives_the_same_in_onnx(name: str) -> None:
    model, channels, size = made(name)
    deployed = Deployed(model, torch.rand(1, channels, size, size))
    program = exported(deployed, channels, size)
    session = onnxruntime.InferenceSession(onnx_bytes(program, {"classes": list("abcde")}))
    assert session.get_inputs()[0].shape == ["batch", channels, size, size]
    for count in (1, 3):
        images = torch.rand(count, channels, size, size)
        reading = read_levels(model, images)
        expected, theta = reading.logits, list(reading.circles().values())
        logits, levels = session.run(None, {"images": images.numpy()})
        assert np.abs(logits - expected.numpy()).max() < 1e-4 * max(1.0, float(expected.abs().max()))
        assert levels.shape == (count, len(deployed.layers))
        for column, values in zip(levels.T, theta, strict=True):
            assert column == pytest.approx(values.expand(count).numpy(), abs=1e-4, rel=1e-4)
        again = program.module()(images)
        assert torch.allclose(again[0], expected, atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["vpgcnn"]) == {"classes": list("abcde")}
    assert deployed.layers == list(reading.circles())
    assert not any(layer.startswith("network.") for layer in deployed.layers)
    assert bool(deployed.layers) == (name != "plain" and not name.endswith("-full"))


def network_file(folder: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    small = shrunk(RECIPES["mnist67-180"].cpu.model)
    usual = {"model": small, "classes": ("6", "7", "9"), "channels": 1, "size": 28, "mean": (0.1,), "std": (0.3,)}
    card = Card(**usual | changes)
    save_model(folder / "net.safetensors", card.build(), card, {})
    return folder / "net.safetensors"


def test_the_command_checks_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, target = network_file(tmp_path), tmp_path / "made.onnx"
    result = vpgcnn("export", path, "--out", target)
    assert result.returncode == 0, result.stderr
    assert "differs from PyTorch by at most" in result.stdout
    assert "on 256 images of noise" in result.stdout
    assert result.stdout.strip().splitlines()[-1].startswith(f"written: {target}")
    about = onnxruntime.InferenceSession(target).get_modelmeta().custom_metadata_map
    assert json.loads(about["vpgcnn"])["classes"] == ["6", "7", "9"]
    monkeypatch.setattr(export, "_compare", lambda *_: 0.5)
    other = tmp_path / "other.pt2"
    result = vpgcnn("export", path, "--format", "torch-export", "--out", other)
    assert result.returncode == 1
    assert "nothing was written" in result.stderr
    assert "differs from PyTorch by 5.0e-01" in result.stderr
    assert not other.exists()


def test_a_difference_is_noticed() -> None:
    model, channels, size = made("mnist67-180")
    images = torch.rand(80, channels, size, size)
    deployed = Deployed(model, images[:1])
    assert export._compare(deployed, deployed, images) == 0
    for column in (0, 1):  # the logits, the levels

        def other(part: torch.Tensor, column: int = column) -> list[torch.Tensor]:
            answer = [values.clone() for values in deployed(part)]
            if len(part) == 8:  # the last batch of these 80
                answer[column][-1, 0] += 0.1
            return answer

        assert export._compare(deployed, other, images) > 1e-3


def test_other_formats_and_what_cannot_be_exported(tmp_path: Path) -> None:
    path = network_file(tmp_path)
    assert vpgcnn("export", path, "--format", "torch-export", "--out", tmp_path / "a.pt2").returncode == 0
    again = torch.export.load(tmp_path / "a.pt2").module()(torch.rand(3, 1, 28, 28))
    assert again[0].shape == (3, 3)
    assert again[1].shape == (3, 1)
    copied = vpgcnn("export", path, "--format", "safetensors", "--out", tmp_path / "b.safetensors")
    assert copied.returncode == 0
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    result = vpgcnn("export", path, "--out", tmp_path / "c.pt2")
    assert result.returncode == 1
    assert "must end in .onnx, got 'c.pt2'" in result.stderr
    moved = network_file(tmp_path, augmenter=AugmenterConfig("image"))
    result = vpgcnn("export", moved)
    assert result.returncode == 1
    assert "a network behind an augmenter (image) cannot be exported" in result.stderr
    for kind in ("policy", "reweighted", "autoaugment"):  # they only change training: the network is an ordinary one
        ordinary = network_file(tmp_path, augmenter=AugmenterConfig(kind))
        assert vpgcnn("export", ordinary, "--format", "torch-export").returncode == 0
    small = replace(shrunk(RECIPES["mnist67-180"].cpu.model), level=Variational(ReparametrizedWindow()))
    result = vpgcnn("export", network_file(tmp_path, model=small))
    assert result.returncode == 1
    assert "ReparametrizedWindow" in result.stderr
    with pytest.raises(UserError, match="ReparametrizedWindow"):
        Deployed(build(small, 1, 3), torch.rand(1, 1, 28, 28))
