"""Thirty networks of torchvision and timm: the same logits, invariance, KL and gradients, where both are installed."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from types import ModuleType

import pytest


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
        found = TOOL.tried(name, TOOL.usual)
    assert "refused" not in found, found
    assert found["same"] <= 1e-5
    assert found["moved"] <= 1e-5
    assert found["kl"] > 0
    assert found["without"] == []
