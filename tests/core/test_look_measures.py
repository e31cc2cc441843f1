"""What images say without a network: features that move, whether images are spread, and what carries the class."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.color import shift_hue
from vpgcnn.errors import UserError
from vpgcnn.groups import SO2
from vpgcnn.measure import Carried, carried, folds_of, moving_features, spread
from vpgcnn.measure.carried import _copies, _Distances, _held_out

SIZE = 24


def hands(angles: Tensor, hues: Tensor | None = None, *, noise: float = 0.1, seed: int = 0) -> Tensor:
    """Clock hands with a mark beside them: they point to `angles` in degrees, and have a hue in degrees."""
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(*(2 * (torch.arange(SIZE, dtype=torch.float32) + 0.5) / SIZE - 1,) * 2, indexing="ij")
    angle = torch.deg2rad(angles.float())[:, None, None]
    along, beside = x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()
    hand = torch.exp(-((beside / 0.2) ** 2)) * torch.sigmoid(12 * along) * torch.sigmoid(12 * (0.8 - along))
    mark = torch.exp(-(((along - 0.6) / 0.2) ** 2) - ((beside - 0.4) / 0.2) ** 2)
    images = (hand + mark)[:, None].clamp(0, 1)
    if hues is not None:
        red = torch.cat([images, 0.2 * images, 0.2 * images], dim=1)
        images = shift_hue(red, hues.float() / 360)
    return (images + noise * torch.rand(images.shape, generator=generator)).clamp(0, 1)


def anywhere(count: int, seed: int = 0) -> Tensor:
    return 360 * torch.rand(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("change", "place", "moved"),
    [
        ("rotation", 6, lambda images: images.rot90(1, (2, 3))),
        ("rotation", 18, lambda images: images.rot90(3, (2, 3))),
        ("hue", 8, lambda images: shift_hue(images, 1 / 3)),
        ("hue", 3, lambda images: shift_hue(images, 1 / 8)),
        ("mirror", 1, lambda images: images.flip(-1)),
    ],
)
def test_a_copy_has_the_features_of_the_moved_image(change: str, place: int, moved) -> None:
    images = hands(anywhere(12), anywhere(12, 1))
    here, there = moving_features(images, change), moving_features(moved(images), change)
    assert torch.allclose(here.copy(place), there.copy(0), atol=1e-4)
    assert not torch.allclose(here.copy(0), there.copy(0), atol=1e-2)


def test_between_right_angles_a_copy_is_close_to_the_rotated_image() -> None:
    images = hands(anywhere(12), noise=0.0)
    here = moving_features(images, "rotation")
    there = moving_features(SO2().transform(images, math.radians(30), mode="bicubic"), "rotation").copy(0)
    errors = torch.stack([(here.copy(place) - there).square().sum(dim=1).mean() for place in range(24)])
    assert int(errors.argmin()) == 2
    assert errors[2] < 0.05 * errors.mean()


@pytest.mark.parametrize("change", ["rotation", "hue", "mirror"])
def test_spread_images_are_not_told_from_their_copies_and_others_are(change: str) -> None:
    count = 200
    spread_out = hands(anywhere(count), anywhere(count, 1))
    if change == "mirror":
        some = torch.rand(count, 1, 1, 1, generator=torch.Generator().manual_seed(2)) < 0.5
        spread_out = torch.where(some, spread_out, spread_out.flip(-1))
    upright = hands(90 + 20 * torch.randn(count), 20 * torch.randn(count))
    even, one = (spread(moving_features(images, change), folds_of(count)) for images in (spread_out, upright))
    assert abs(even.told - 0.5) < 3.5 * even.error
    assert one.told > 0.9
    assert one.of_images.shape == (count,)


def test_images_at_two_places_are_told_only_from_copies_between_them() -> None:
    angles = 90 + 180 * (torch.arange(200) % 2) + 10 * torch.randn(200)
    at = spread(moving_features(hands(angles), "rotation"), folds_of(200)).at_places
    assert abs(float(at[12]) - 0.5) < 0.1  # upside down
    assert at[6] > 0.95
    assert at[18] > 0.95


@pytest.mark.parametrize(("change", "times"), [("rotation", 80), ("mirror", 25)])
def test_a_share_is_as_uncertain_as_it_claims(change: str, times: int) -> None:
    """Images that differ in little but their place, at random places: the errors of the folds are dependent."""
    upright = moving_features(hands(90 + 10 * torch.randn(40)), change)
    copies = torch.stack([upright.copy(place).view_as(upright.values) for place in range(upright.count)])
    off = []
    for seed in range(times):
        place = torch.randint(upright.count, (40,), generator=torch.Generator().manual_seed(seed))
        found = spread(replace(upright, values=copies[place, torch.arange(40)]), folds_of(40))
        off.append((found.told - 0.5) / found.error)
    assert 0.6 < torch.tensor(off).std() < (1.2 if times == 80 else 1.4)


def test_noise_shows_nothing_and_shapes_do() -> None:
    noise = torch.rand(100, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    shapes = hands(anywhere(100), anywhere(100, 1))
    for change in ("rotation", "hue"):
        assert moving_features(noise, change).reliability < 0.1
        assert moving_features(shapes, change).reliability > 0.5


def test_what_looks_the_same_everywhere_does_not_move() -> None:
    rings = moving_features(
        torch.cos(20 * (torch.stack(torch.meshgrid(*(torch.linspace(-1, 1, SIZE),) * 2, indexing="ij"))).norm(dim=0))
        .mul(torch.linspace(0.3, 0.5, 10)[:, None, None]).add(0.5)[:, None],
        "rotation",
    )  # fmt: skip
    assert rings.motion < 0.1
    assert moving_features(hands(anywhere(10)), "rotation").motion > 0.3


def test_the_class_is_carried_where_it_is_the_place_and_only_there() -> None:
    count = 240
    labels = torch.arange(count) % 3
    by_turn = hands(120.0 * labels + 15 * torch.randn(count), anywhere(count))
    by_hue = hands(anywhere(count), 120.0 * labels + 15 * torch.randn(count))
    folds = folds_of(labels)
    for images, yes, no in ((by_turn, "rotation", "hue"), (by_hue, "hue", "rotation")):
        bound = carried(moving_features(images, yes), labels, folds)
        free = carried(moving_features(images, no), labels, folds)
        assert bound.aware.mean() > 0.9
        assert bound.gain[0] > 0.4
        assert free.gain[0] < 2.576 * free.gain[1]
        assert free.averaged.mean() > 0.9
        assert len(bound.twins()) == 3
        assert not free.twins()


def test_twins_are_the_classes_that_a_mirror_exchanges() -> None:
    count = 240
    labels = torch.arange(count) % 3  # left, right, up
    angles = torch.tensor([180.0, 0.0, 90.0])[labels] + 10 * torch.randn(count)
    images = torch.where(
        (labels == 0)[:, None, None, None], hands(angles - 180).flip(-1), hands(angles)
    )  # the mark of "left" is the mirror image of that of "right"
    both = carried(moving_features(images, "mirror"), labels, folds_of(labels))
    assert both.aware.mean() > 0.95
    assert both.averaged[labels < 2].mean() < 0.7  # what a mirror exchanges, no invariant can tell
    assert both.averaged[labels == 2].mean() > 0.95
    found = both.twins()
    assert {(twin.label, twin.other) for twin in found} == {(0, 1), (1, 0)}
    assert all(twin.share > 0.4 for twin in found)


def test_classes_are_twins_only_if_each_is_taken_for_the_other() -> None:
    labels = torch.arange(40) % 2
    right = torch.ones(40, dtype=torch.float64)
    taken = labels[:, None].repeat(1, 4)
    taken[labels == 0, 1] = 1  # moved by a quarter, class 0 looks like class 1
    taken[labels == 1, 3] = -1  # moved back, class 1 looks like nothing
    assert Carried(labels, right, right, taken, 0.5).twins() == []
    taken[labels == 1, 3] = 0
    found = Carried(labels, right, right, taken, 0.5).twins()
    assert {(twin.label, twin.other, twin.place) for twin in found} == {(0, 1, 1), (1, 0, 3)}
    assert Carried(labels, 0 * right, right, taken, 0.5).twins() == []  # classes that nobody can predict


def test_one_inverse_gives_the_predictions_of_every_fold_fitted_without_it() -> None:
    """For the images and for their copies, against fits that never see the fold."""
    labels = torch.arange(45) % 3
    features = moving_features(hands(40.0 * labels + 30 * torch.randn(45)), "rotation")
    folds = folds_of(labels, 5)
    truth = F.one_hot(labels, 3).double() - 1 / 3
    kernel = next(_Distances(features).kernels())
    products = kernel.at(0).double()
    inverse = torch.linalg.inv(products + 0.3 * torch.eye(45))
    fast, copies = _held_out(inverse, truth, folds), _copies(inverse, kernel, truth, folds)
    width = 2 * kernel.width * float(torch.stack([
        torch.cdist(features.copy(0), features.copy(place)).square().mean() for place in range(features.count)
    ]).mean())  # fmt: skip
    for fold in range(5):
        inside = folds == fold
        rest = products[~inside][:, ~inside]
        fitted = torch.linalg.solve(rest + 0.3 * torch.eye(len(rest)), truth[~inside])
        assert torch.allclose(fast[inside], products[inside][:, ~inside] @ fitted, atol=1e-6)
        apart = torch.cdist(features.copy(5)[inside].double(), features.copy(0)[~inside].double()).square()
        assert torch.allclose(copies[5][inside], torch.exp(-apart / width) @ fitted, atol=1e-4)


def test_folds_hold_neighbours_of_every_class() -> None:
    folds = folds_of(torch.tensor([0] * 40 + [1] * 20), 10)
    assert folds[:40].tolist() == sorted(folds[:40].tolist())
    assert folds[:40].bincount().tolist() == [4] * 10
    assert folds[40:].bincount().tolist() == [2] * 10
    assert len(folds_of(torch.arange(10) // 2, 10).unique()) > 4  # classes of two images do not share two folds


def test_bad_images_are_refused() -> None:
    images = hands(anywhere(4))
    with pytest.raises(UserError, match="hue needs colour images"):
        moving_features(images, "hue")
    with pytest.raises(UserError, match=r"one of rotation, hue, mirror, got 'turn'"):
        moving_features(images, "turn")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="N×1×S×S"):
        moving_features(torch.rand(2, 1, 8, 9), "rotation")
    with pytest.raises(UserError, match="at least 20 images"):
        spread(moving_features(images, "rotation"), folds_of(4))
