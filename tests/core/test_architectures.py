"""Thirty networks of torchvision and timm: the same logits, invariance, KL and gradients, where both are installed."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from support import lite0
from vpgcnn import Full, Hue, Rotations
from vpgcnn.conversion import convert


def _tool() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "architectures.py"
    spec = importlib.util.spec_from_file_location("architectures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()


@pytest.fixture(scope="module")
def packages() -> None:
    try:
        TOOL.load()
    except ImportError as error:
        pytest.skip(f"torchvision and timm are needed: {error}")


@pytest.mark.parametrize("name", TOOL.FEW)
def test_it_is_converted(name: str, packages: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages' own
        found = TOOL.tried(name, lambda model, least: TOOL.usual(model, least)[:2])  # half of the images, half the time
    assert "refused" not in str(found), found
    assert TOOL.faults(found) == []


@pytest.mark.parametrize("name", TOOL.SUSPECTS)
@pytest.mark.parametrize("group", [Hue(3), Rotations(4)], ids=str)
@pytest.mark.parametrize("kind", ["pointwise", "low-rank"])
def test_a_mistake_in_mixing_is_noticed(kind: str, group: object, name: str, packages: None) -> None:
    """What is measured is not blind."""
    assert TOOL.noticed(name, kind, group).images > 0.1


# ---------------------------------------------------------------- the measurement itself, without either package


def tower() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(lite0(), nn.ReLU(), nn.Linear(4, 5)).eval()


def test_a_prepared_network_depends_on_the_image() -> None:
    images = TOOL.shapes(32)
    plain = tower()
    with torch.no_grad():
        plain[0][3].project.weight.zero_()  # a branch that starts at 0
        before = plain(images)
        TOOL.prepare(plain, images)
        after = plain(images)
    assert float(TOOL.apart(before, before, before).images) == 0
    assert float((before - before.mean(dim=0)).std() / before.abs().max()) < 0.05
    assert float((after - after.mean(dim=0)).std() / after.abs().max()) > 0.2
    assert plain[0][3].project.weight.any()


@pytest.mark.parametrize("group", [Hue(3), Rotations(4)], ids=str)
@pytest.mark.parametrize("kind", TOOL.MISTAKES)
def test_mistakes_are_told_from_rounding(kind: str, group: Any) -> None:
    images = TOOL.shapes(32)
    plain = tower()
    TOOL.prepare(plain, images)
    how: dict[str, Any] = {"mix": "pointwise"} if kind == "pointwise" else {"budget": 1.0}
    with TOOL.mistake(kind):
        net = convert(plain, group, level=Full(), example=images, **how).eval()
        moved, mixing = TOOL.moving(net, images, group)
    assert mixing.images > 0.1
    assert moved.images < 1e-4 if kind == "none" else moved.images > 0.1


def test_faults_are_named() -> None:
    right = {"same": [1e-7, 1e-6], "moved": [1e-7, 1e-6], "mixing": [0.1, 1.0], "mixed": "2 of 5", "kl": 1.0}
    row = {"spread": 0.2, "hue": right, "turns": {"refused": "it is too wide"}, "without": []}
    assert TOOL.faults(row) == []
    assert TOOL.faults(row | {"error": "IndexError"}) == ["fails: IndexError"]
    assert TOOL.faults(row | {"without": ["a.cross.0.weight"]}) == ["no gradient: a.cross.0.weight"]
    assert TOOL.faults(row | {"spread": 1e-4}) == ["logits depend on the image by 1e-04 only"]
    assert TOOL.faults(row | {"hue": right | {"moved": [1e-4, 1e-3]}}) == ["hue: moved 1e-03"]
    rounding = {"float64": {"same": [0.0, 1e-15], "moved": [0.0, 1e-15]}}
    assert TOOL.faults(row | {"hue": right | {"moved": [1e-4, 1e-3]} | rounding}) == []
    assert TOOL.faults(row | {"hue": right | {"mixing": [1e-6, 1e-5]}}) == ["hue: mixing kernels change 1e-05"]
    assert TOOL.faults(row | {"hue": right | {"kl": 0.0}}) == ["hue: no KL"]
