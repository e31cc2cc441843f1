"""In a training step on a GPU the host never waits, in no network of the lab. See tests/core/test_host_reads.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support import host_reads
from vpgcnn.groups import Dihedral, Hue
from vpgcnn.lab.networks import ModelConfig, build
from vpgcnn.lab.networks.config import (
    COLOR_CNN,
    COLOR_RESNET,
    COLOR_RESNET50,
    DIGITS,
    DIGITS_IN_COLOR,
    PLAIN_RESNET_SMALL,
    RESNET,
    RESNET_SMALL,
    SIGNS_MIRRORED,
)
from vpgcnn.levels import Full, ReparametrizedWindow, Shared, Variational

MOVING = Variational(ReparametrizedWindow())
NETWORKS: dict[str, tuple[ModelConfig, int, int]] = {
    "digits": (DIGITS, 1, 28),
    "digits in colour": (DIGITS_IN_COLOR, 3, 28),
    "signs": (SIGNS_MIRRORED, 3, 40),
    "resnet": (RESNET, 3, 32),
    "small resnet": (RESNET_SMALL, 3, 32),
    "moving elements": (replace(RESNET_SMALL, level=MOVING, elsewhere=Shared(ReparametrizedWindow())), 3, 32),
    "full": (replace(RESNET_SMALL, level=Full(), elsewhere=Full()), 3, 32),
    "colour cnn": (COLOR_CNN, 3, 28),
    "colour resnet": (COLOR_RESNET, 3, 64),
    "colour resnet50": (COLOR_RESNET50, 3, 64),
    "plain": (PLAIN_RESNET_SMALL, 3, 32),
    "converted to hues": (replace(PLAIN_RESNET_SMALL, group=Hue(3), level=Variational()), 3, 32),
    "converted to turns": (replace(PLAIN_RESNET_SMALL, group=Dihedral(4), level=Variational()), 3, 32),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_makes_the_host_wait(name: str) -> None:
    config, channels, size = NETWORKS[name]
    assert set(host_reads(build(config, channels, 10), torch.rand(2, channels, size, size))) == set()
