"""What all tests share: seeds, float64 on request, data. Helpers of the core are in `support`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # the suite runs one process for each core
settings.register_profile("default", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("default")

if importlib.util.find_spec("torchvision"):
    # `make foreign` installs torchvision without its compiled operators; whatever imports it asks for these two.
    OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def pytest_make_parametrize_id(val: object, argname: str) -> None:
    """Refuse bytes as a test's name: compressed ones hold the time, and the workers must agree on names."""
    if isinstance(val, bytes):
        raise pytest.UsageError(f"parameter {argname!r} holds bytes: name the cases with ids=…")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def double() -> Iterator[None]:
    """Everything made in the test is float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- data: imported on use, the core needs none of it


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six images in the layout of Flowers102, no larger than they must be."""
    import numpy as np
    from PIL import Image
    from scipy.io import savemat

    folder = tmp_path / "data" / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    monkeypatch.setattr("vpgcnn.lab.data.flowers.COUNT", 6)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    savemat(folder / "imagelabels.mat", {"labels": np.array([[1, 2, 102, 1, 2, 102]], np.uint8)})
    parts = {"trnid": [[2, 1]], "valid": [[3, 4]], "tstid": [[6, 5]]}
    savemat(folder / "setid.mat", {key: np.array(value, np.uint16) for key, value in parts.items()})
    for number in range(1, 7):
        pixels = np.full((40, 60, 3), 40 * number, np.uint8)
        pixels[:, :8], pixels[:, -8:] = 0, 0  # outside the centre square
        Image.fromarray(pixels).save(folder / "jpg" / f"image_{number:05}.jpg", quality=95)
    return tmp_path / "data"
