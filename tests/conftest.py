"""What tests share: small networks, one of each kind of layer, and float64 on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from scipy.io import savemat
from torch import Tensor, nn

from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Drawn,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    GumbelSoftmax,
    Hue,
    Learned,
    LiftConv2d,
    Pathwise,
    Product,
    RankedSoftmax,
    Rotations,
    SpatialPool,
    Variational,
    resample,
)
from vpgcnn.data.files import VARIABLE
from vpgcnn.groups import translate_index
from vpgcnn.kernels import KernelFactory
from vpgcnn.levels import LevelFactory

torch.set_num_threads(1)  # the suite runs one process for each core
settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("default")


def pytest_make_parametrize_id(val: object, argname: str) -> None:
    """Refuse bytes as a test's name: compressed ones hold the time, and the workers must agree on names."""
    if isinstance(val, bytes):
        raise pytest.UsageError(f"parameter {argname!r} holds bytes: name the cases with ids=…")


GROUPS: list[Group] = [
    SO2(),
    O2(),
    Rotations(1),
    Rotations(4),
    Rotations(6),
    Hue(3),
    Hue(6),
    Dihedral(1),
    Dihedral(4),
    Product(Rotations(4), Hue(3)),
    Product(O2(), Hue(6)),
]
FINITE = [group for group in GROUPS if group.order]
TABLES = [Rotations(4), Hue(3), Hue(6), Dihedral(4), Product(Rotations(4), Hue(3))]

FAMILIES: dict[str, tuple[Group, int | None, LevelFactory]] = {
    "full": (Hue(3), None, Full),
    "window-hue": (Hue(3), None, Variational),
    "window-rotations": (Rotations(4), None, Variational),
    "window-so2": (SO2(), 4, Variational),
    "window-product": (Product(SO2(), Hue(3)), 3, Variational),
    "learned-o2": (O2(), 3, Learned),
    "drawn": (Hue(3), None, partial(Variational, family=Drawn())),
    "drawn-product": (Product(Rotations(4), Hue(3)), None, partial(Learned, family=Drawn())),
    "pathwise": (SO2(), 4, partial(Variational, family=Pathwise())),
    "ranked": (Hue(3), None, partial(Variational, family=RankedSoftmax())),
    "permuted": (Hue(6), None, partial(Variational, family=RankedSoftmax(noise="permuted"))),
    "exchangeable": (Hue(3), None, partial(Variational, family=RankedSoftmax(noise="exchangeable"))),
    "gumbel": (Hue(3), None, partial(Variational, family=GumbelSoftmax())),
    "learned-gumbel": (Rotations(4), None, partial(Learned, family=GumbelSoftmax())),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def double() -> Iterator[None]:
    """Everything made in the test is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class SmallNet(nn.Module):
    """Lift and three group convolutions, each with a level; then logits and the KL."""

    def __init__(
        self,
        group: Group,
        elements: int | None = None,
        *,
        level: LevelFactory = Full,
        levels: list[LevelFactory] | None = None,
        kernel: KernelFactory | None = None,
        in_channels: int = 3,
        width: int = 6,
        size: int = 3,
        pool: bool = True,
        mode: str = "mean",
    ) -> None:
        super().__init__()
        chosen = levels or [level] * 4
        common = {"points": elements, "kernel": kernel, "padding": "same"}
        self.lift = LiftConv2d(in_channels, width, size, group, level=chosen[0], **common)
        self.convs = nn.ModuleList(GroupConv2d(width, width, size, group, level=q, **common) for q in chosen[1:])
        self.norms = nn.ModuleList(GroupBatchNorm(width) for _ in range(4))
        self.pool = SpatialPool("avg", 2) if pool else None
        self.group_pool = GroupPool(mode)
        self.head = nn.Linear(width, 5)

    def feature(self, images: Tensor) -> GroupFeature:
        feature = self.norms[0](self.lift(images)).map(torch.relu)
        for conv, norm in zip(self.convs, self.norms[1:], strict=True):
            feature = norm(conv(feature)).map(torch.relu)
        return feature if self.pool is None else self.pool(feature)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.feature(images)
        return self.head(self.group_pool(feature).mean(dim=(-2, -1))), feature.divergence


def set_theta(model: nn.Module, value: float) -> None:
    """Make every variational level answer θ = value, for every image."""
    for module in model.modules():
        if isinstance(module, Variational):
            nn.init.zeros_(module.encoder.linear.weight)
            nn.init.constant_(module.encoder.linear.bias, value)


def warm(model: nn.Module, images: Tensor) -> nn.Module:
    """Give batch norms real statistics, then switch to evaluation."""
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(images)
    return model.eval()


def random_feature(
    group: Group, points: int | None = None, *, channels: int = 4, size: int = 7, batch: int = 2
) -> GroupFeature:
    grid = group.grid(points)
    values = torch.randn(batch, channels, len(grid), size, size)
    return GroupFeature(values, grid, None, torch.zeros(batch), group)


def moved(feature: GroupFeature, group: Group, g: Tensor) -> GroupFeature:
    """L_g of a feature whose group axis is a grid."""
    index = translate_index(group, g, group.points_of(feature.shape[2]))
    values = feature.values[:, :, index]
    if group.acts_on_plane:
        values = resample.move(values.flatten(0, 1), group.plane(g)).view_as(values)
    weights = None if feature.weights is None else feature.weights[:, index]
    return replace(feature, values=values, weights=weights)


def real_data(folder: str) -> Path:
    """The data directory, through the setting that users have, if it holds this folder; else the test is skipped."""
    root = Path(os.environ.get(VARIABLE) or Path(__file__).parents[2] / "shared" / "data")
    if not (root / folder).is_dir():
        pytest.skip(f"no {folder} in {root}")
    return root


def name(value: object) -> str:
    return repr(value)


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images in the layout of Flowers102, no larger than they must be."""
    folder = tmp_path / "data" / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    monkeypatch.setattr("vpgcnn.data.flowers.COUNT", 6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 102, 1, 2, 102]], np.uint8)})
    parts = {"trnid": [[2, 1]], "valid": [[3, 4]], "tstid": [[6, 5]]}
    savemat(folder / "setid.mat", {key: np.array(value, np.uint16) for key, value in parts.items()})
    for number in range(1, 7):
        pixels = np.full((40, 60, 3), 40 * number, np.uint8)
        pixels[:, :8], pixels[:, -8:] = 0, 0  # outside the centre square
        Image.fromarray(pixels).save(folder / "jpg" / f"image_{number:05}.jpg", quality=95)
    return tmp_path / "data"
