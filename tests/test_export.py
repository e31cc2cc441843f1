"""Networks for other programs: the same logits and levels, for any number of images, checked before they are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vpgcnn import cli
from vpgcnn.analysis import apart, read_theta
from vpgcnn.commands import export
from vpgcnn.deploy import Deployed, exported, onnx_bytes
from vpgcnn.errors import UserError
from vpgcnn.models import AugmenterConfig, ModelConfig, PlainConfig, SE2Config, build, symmetry
from vpgcnn.training.checkpoint import Card, save_model
from vpgcnn.training.recipes import RECIPES

onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
SIZES = {"mnist": 28, "colormnist": 28, "cifar": 32, "flowers": 32}


def shrunk(model: ModelConfig) -> ModelConfig:
    if isinstance(model, SE2Config):
        return replace(model, widths=tuple(max(2, width // 8) for width in model.widths), hidden=8)
    if isinstance(model, PlainConfig):
        return replace(model, width=4)
    return replace(model, width=6 if model.shape == "resnet" else 3)


NETWORKS = {
    f"{name}-{level}": (replace(shrunk(recipe.cpu.model), level=level), recipe.cpu.data.name)
    for name, recipe in RECIPES.items()
    for level in ("variational", "full")
    if name not in ("cifar100-se2", "mnist-ranges", "cifar10-color")  # networks of the same shape are there already
}


NETWORKS["plain-full"] = PlainConfig(width=4, depths=(1, 1)), "flowers102"
NETWORKS["plain-to-hues-variational"] = PlainConfig(width=4, depths=(1, 1), hues=3, level="variational"), "flowers102"


def made(name: str) -> tuple[torch.nn.Module, int, int]:
    config, data = NETWORKS[name]
    channels = 1 if data.startswith("mnist") and symmetry(config) == "rotation" else 3
    torch.manual_seed(0)
    return build(config, channels, 5).eval(), channels, next(v for key, v in SIZES.items() if data.startswith(key))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_recipes_network_says_the_same_in_onnx(name: str) -> None:
    model, channels, size = made(name)
    deployed = Deployed(model, mean=0.3, std=0.4)
    program = exported(deployed, channels, size)
    session = onnxruntime.InferenceSession(onnx_bytes(program, {"classes": list("abcde")}))
    assert session.get_inputs()[0].shape == ["batch", channels, size, size]
    for count in (1, 3):
        images = torch.rand(count, channels, size, size)
        with torch.no_grad():
            expected = model((images - 0.3) / 0.4)[0]
            theta = list(apart(model, read_theta(model, (images - 0.3) / 0.4, all_levels=True)).values())
        logits, levels = session.run(None, {"images": images.numpy()})
        assert np.abs(logits - expected.numpy()).max() < 1e-4 * max(1.0, float(expected.abs().max()))
        assert levels.shape == (count, len(deployed.layers))
        for column, values in zip(levels.T, theta, strict=True):
            assert column == pytest.approx(values.numpy(), abs=1e-4)
        again = program.module()(images)
        assert torch.allclose(again[0], expected, atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["vpgcnn"]) == {"classes": list("abcde")}
    assert not any(layer.startswith("network.") for layer in deployed.layers)
    assert bool(deployed.layers) == name.endswith("variational")


def run(tmp_path: Path, **changes: Any) -> Path:
    torch.manual_seed(0)
    small = shrunk(RECIPES["mnist67-180"].cpu.model)
    card = Card(
        **{"model": small, "classes": ("6", "7", "9"), "channels": 1, "size": 28, "mean": 0.1, "std": 0.3} | changes
    )
    save_model(tmp_path / "net.safetensors", card.build(), card, {})
    return tmp_path / "net.safetensors"


def test_the_command_checks_before_it_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = run(tmp_path), tmp_path / "made.onnx"
    assert cli.main(["export", str(path), "--out", str(target)]) == 0
    said = capsys.readouterr().out
    assert "differs from PyTorch by at most" in said
    assert said.strip().splitlines()[-1].startswith(f"written: {target}")
    target.unlink()
    monkeypatch.setattr(export, "_compared", lambda *_: 0.5)
    assert cli.main(["export", str(path), "--out", str(target)]) == 1
    assert "differs from PyTorch by 5.0e-01" in capsys.readouterr().err
    assert not target.exists()


def test_a_difference_is_noticed() -> None:
    model, channels, size = made("mnist67-180-variational")
    deployed, images = Deployed(model, mean=0.3, std=0.4), torch.rand(80, channels, size, size)
    assert export._compared(deployed, deployed, images) == 0
    for column in (0, 1):  # the logits, the levels

        def other(part: torch.Tensor, column: int = column) -> list[torch.Tensor]:
            answer = [values.clone() for values in deployed(part)]
            if len(part) == 8:  # the last batch of these 80
                answer[column][-1, 0] += 0.1
            return answer

        assert export._compared(deployed, other, images) > 1e-3


def test_other_formats_and_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path)
    assert cli.main(["export", str(path), "--format", "torch-export", "--out", str(tmp_path / "a.pt2")]) == 0
    images = torch.rand(3, 1, 28, 28)
    again = torch.export.load(tmp_path / "a.pt2").module()(images)
    assert again[0].shape == (3, 3)
    assert again[1].shape == (3, 1)
    assert cli.main(["export", str(path), "--format", "safetensors", "--out", str(tmp_path / "b.safetensors")]) == 0
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    assert cli.main(["export", str(path), "--out", str(tmp_path / "c.pt2")]) == 1
    assert "ends in .onnx, got 'c.pt2'" in capsys.readouterr().err
    moved = run(tmp_path, augmenter=AugmenterConfig("image"))
    assert cli.main(["export", str(moved)]) == 1
    assert "behind an augmentation (image) cannot be exported" in capsys.readouterr().err
    with pytest.raises(UserError, match="pathwise"):
        Deployed(
            build(replace(shrunk(RECIPES["mnist67-180"].cpu.model), family="pathwise", sees="input"), 1, 3),
            mean=0.0,
            std=1.0,
        )
