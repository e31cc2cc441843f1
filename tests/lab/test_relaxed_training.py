"""Kernels that may break the symmetry, from the command line, and their priors in training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vpgcnn.apps import cli
from vpgcnn.kernels import ConstrainedKernel, ProjectedKernel, ResidualPathwayKernel
from vpgcnn.lab.training.checkpoint import load_model
from vpgcnn.lab.training.run import chosen_weights

KERNELS = [
    "Relaxed(banks=3)",
    "ResidualPathway(free_decay=0.1)",
    "Projected(0.1)",
    "Constrained()",
    "Nonstationary(hidden=8)",
]


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes that only differ in direction: bars that lie or stand."""
    labels = np.arange(96) % 2
    images = np.random.default_rng(0).integers(0, 60, (96, 16, 16)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[(slice(6, 9), slice(2, 14)) if label else (slice(2, 14), slice(6, 9))] += 180
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    np.savez(path, images=images, labels=labels)
    return path


def trained(bars: Path, out: Path, kernel: str, *more: str) -> torch.nn.Module:
    """A network after a few steps from the command line."""
    words = [
        "--data.name",
        str(bars),
        "--model.group",
        "Rotations(4)",
        "--model.kernel",
        kernel,
        "--model.level",
        "full",
    ]
    words += ["--model.widths", "3", "4", "5", "--model.kernel-sizes", "5", "3", "3", "--model.stem-stride", "1"]
    words += ["--epochs", "3", "--batch-size", "16", "--lr", "0.02", "--device", "cpu", "--threads", "1", *more]
    assert cli.main(["train", "mnist67-180", "--out", str(out), *words]) == 0
    return load_model(chosen_weights(out))[0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_trains_from_the_command_line_and_comes_back(bars: Path, tmp_path: Path, kernel: str) -> None:
    net = trained(bars, tmp_path / "run", kernel)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test"]["images"] > 0
    assert net(torch.rand(2, 1, 16, 16)).logits.shape == (2, 2)
    assert cli.main(["evaluate", str(tmp_path / "run"), "--json"]) == 0


def test_multipliers_follow_the_gates_in_training(bars: Path, tmp_path: Path) -> None:
    net = trained(bars, tmp_path / "run", "Constrained(rate=0.5)", "--select", "last")
    found = [part for part in net.modules() if isinstance(part, ConstrainedKernel)]
    assert len(found) == 3
    for kernel in found:
        assert kernel.multiplier > 0.5
        assert kernel.gate < 0.95  # λ pushes it down from 1


def test_a_stronger_prior_holds_the_kernels_nearer_to_equivariant_ones(bars: Path, tmp_path: Path) -> None:
    """Bars that lie and stand cannot be told apart by an equivariant network, so the loss breaks the symmetry."""

    def defect(kernel: str) -> float:
        net = trained(bars, tmp_path / kernel, kernel)
        found = [part for part in net.modules() if isinstance(part, ProjectedKernel | ResidualPathwayKernel)]
        assert len(found) == 3
        each = [part.distance() if isinstance(part, ProjectedKernel) else part.free.square().sum() for part in found]
        return float(torch.stack(each).sum().detach())

    assert defect("Projected(100.0)") < 0.5 * defect("Projected(0.0)")
    assert defect("ResidualPathway(free_decay=100.0)") < 0.5 * defect("ResidualPathway(free_decay=0.0)")
