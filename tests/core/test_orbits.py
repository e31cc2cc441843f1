"""How classifiers answer to moved images: against closed forms, kornia, and networks whose symmetry is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from support import SmallNet
from vpgcnn import Hue, Rotations
from vpgcnn.errors import UserError
from vpgcnn.measure import MOVES, follow, hues, linear_hues, moves_of, rotations

SCALE = 3.0


def colors(images: Tensor) -> Tensor:
    """Logits that are the mean of each channel: a third of the circle permutes them."""
    return SCALE * images.mean(dim=(-2, -1))


def brightness(images: Tensor) -> Tensor:
    """Logits that no rotation of RGB changes."""
    grey = images.mean(dim=(1, 2, 3))
    return torch.stack([grey, 1 - grey, 0 * grey], dim=1)


def painted(labels: list[int]) -> tuple[Tensor, Tensor]:
    """Images of one pure channel, and which."""
    index = torch.tensor(labels)
    return torch.eye(3)[index][..., None, None].expand(-1, -1, 8, 8).clone(), index


def test_errors_are_those_of_the_closed_form() -> None:
    images, labels = painted([0, 1, 0])
    orbit = follow(colors, [(images, labels)], linear_hues(3), ["red", "green", "blue"])
    sure, other = math.exp(SCALE) / (math.exp(SCALE) + 2), 1 / (math.exp(SCALE) + 2)
    for place in (1, 2):
        assert torch.allclose(orbit.distance[place], torch.full((3,), sure - other, dtype=torch.float64), atol=1e-6)
        assert torch.allclose(orbit.confidence[place], torch.full((3,), other, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(orbit.distance[0], torch.zeros(3, dtype=torch.float64))
    assert orbit.floor.max() < 1e-6
    assert orbit.consistency.tolist() == [0, 0, 0]
    assert torch.allclose(orbit.certainty, torch.full((3, 3), sure, dtype=torch.float64), atol=1e-6)
    squares = [(1 - sure) ** 2 + 2 * other**2, sure**2 + (1 - other) ** 2 + other**2]
    assert torch.allclose(orbit.brier[:, 0], torch.tensor([squares[0], squares[1], squares[1]]).double(), atol=1e-6)
    assert orbit.calibration(0)["ece"] == pytest.approx(1 - sure, abs=1e-6)
    assert orbit.calibration()["ece"] == pytest.approx(sure - 1 / 3, abs=1e-6)
    found = orbit.summary()
    assert found["accuracy"]["as it is"] == 1
    assert found["accuracy"]["mean"] == pytest.approx(1 / 3)
    assert found["accuracy"]["lowest"] == 0
    # The mean prediction over the circle is uniform: its loss is log 3.
    whole = -(math.log(sure) + 2 * math.log(other)) / 3
    assert found["loss"]["mean"] == pytest.approx(whole, rel=1e-6)
    assert found["loss"]["broken"] == pytest.approx(1 - math.log(3) / whole, rel=1e-6)
    assert [(row["class"], row["images"]) for row in orbit.by_class()] == [("red", 2), ("green", 1)]
    assert orbit.by_class()[0]["lowest_at"] == pytest.approx(1 / 3)


def test_an_invariant_classifier_has_no_error() -> None:
    images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    orbit = follow(brightness, [(images, labels)], linear_hues(12), "abc")
    assert orbit.errors()["largest"] < 1e-6
    assert orbit.broken < 1e-6
    assert orbit.consistency.mean() == 1
    assert torch.allclose(orbit.averaged, orbit.confidence[0], atol=1e-6)
    assert torch.equal(orbit.averaged_guess, orbit.guesses[0])


def test_partial_equivariance_is_the_largest_error_inside_and_outside() -> None:
    """Grey images stay where they are: S is they, and ε is what the others have."""
    images, labels = painted([0, 1, 2, 0])
    images[2:] = 0.5
    orbit = follow(colors, [(images, labels)], linear_hues(6), "abc")
    grey = torch.tensor([False, False, True, True])
    found = orbit.partial(grey)
    assert found["on"] < 1e-6
    assert found["epsilon"] == pytest.approx(float(orbit.distance[:, :2].max()))
    assert found["epsilon"] > 0.5


@pytest.mark.parametrize("kind", ["hue", "rotation"])
def test_an_equivariant_network_scores_0_and_an_ordinary_one_does_not(kind: str) -> None:
    torch.manual_seed(0)
    group, moves = (Hue(3), linear_hues(3)) if kind == "hue" else (Rotations(4), rotations(4))
    images, labels = torch.rand(6, 3, 16, 16), torch.arange(6) % 3
    found = {}
    for name, chosen in (("equivariant", group), ("ordinary", Rotations(1))):
        model = SmallNet(chosen).eval()
        model.head.weight.data *= 20 / model.head.weight.norm()
        orbit = follow(model, [(images, labels)], moves, "abcde")
        found[name] = orbit.errors()
    assert found["equivariant"]["largest"] < 1e-4
    assert found["ordinary"]["largest"] > 100 * found["equivariant"]["largest"]
    assert found["ordinary"]["floor"] < 1e-5  # thirds and quarters are exact


def test_the_floor_is_what_resampling_does() -> None:
    images, labels = torch.rand(4, 1, 17, 17), torch.zeros(4, dtype=torch.long)

    def fine(part: Tensor) -> Tensor:
        """Sees the contrast of neighbouring pixels, which interpolation blurs."""
        contrast = (part[..., 1:] - part[..., :-1]).abs().mean(dim=(1, 2, 3))
        return torch.stack([20 * contrast, 0 * contrast], dim=1)

    orbit = follow(fine, [(images, labels)], rotations(8), "ab")
    assert orbit.floor[1].min() > 0.005  # 45°
    assert orbit.floor[2].max() < 1e-5  # 90°
    quick = follow(fine, [(images, labels)], rotations(8), "ab", floor=False)
    assert torch.equal(quick.distance, orbit.distance)
    assert quick.floor.max() == 0


def test_batches_change_nothing() -> None:
    images, labels = torch.rand(7, 3, 9, 9), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    counts: list[int] = []
    whole = follow(colors, [(images, labels)], hues(4), "abc")
    parts = follow(
        colors, zip(images.split(3), labels.split(3), strict=True), hues(4), "abc", on_progress=counts.append
    )
    assert counts == [3, 3, 1]
    for name in ("labels", "guesses", "confidence", "distance", "floor", "averaged"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name)), name
    assert whole.summary()["loss"] == pytest.approx(parts.summary()["loss"])


def test_curves_have_bands() -> None:
    images, labels = painted([0] * 5)
    images *= torch.linspace(0.2, 1, 5)[:, None, None, None]
    orbit = follow(colors, [(images, labels)], linear_hues(4), "abc")
    band = orbit.curve(torch.tensor([True] * 5))
    assert all(low <= mean <= high for low, mean, high in zip(band["low"], band["mean"], band["high"], strict=True))
    assert band["high"][0] - band["low"][0] > 0.1


@pytest.mark.parametrize("degrees", [30.0, 90.0, -45.0])
def test_turns_are_those_of_kornia(degrees: float) -> None:
    kornia = pytest.importorskip("kornia")
    y, x = torch.meshgrid(torch.linspace(-1, 1, 41), torch.linspace(-1, 1, 41), indexing="ij")
    images = torch.exp(-8 * ((x - 0.3).square() + (y + 0.2).square()))[None, None]
    ours = rotations(4)(images, degrees)
    theirs = kornia.geometry.rotate(images, torch.tensor([degrees]), mode="bilinear")
    assert torch.allclose(ours, theirs, atol=0.03)


def test_moves_are_circles_that_start_with_the_identity() -> None:
    images = torch.rand(2, 3, 16, 16)
    for name in MOVES:
        moves = moves_of(name, 6)
        assert moves.places[0] == 0
        assert moves(images, 0) is images
        assert len(moves.places) == 6
        if name != "rotation":  # whose corners are lost
            assert torch.allclose(moves(images, moves.whole), images, atol=1e-5)
            assert torch.allclose(moves.there_and_back(images, moves.whole / 3), images, atol=1e-5)
    with pytest.raises(UserError, match="unknown moves 'scale': choose from rotation, hue, linear-hue"):
        moves_of("scale")
    with pytest.raises(UserError, match="needs at least 2 places, got 1"):
        hues(1)
    with pytest.raises(UserError, match="hue needs colour images, got 1 channel"):
        hues(3)(torch.rand(1, 1, 4, 4), 0.5)


def test_any_answer_of_a_classifier_will_do_and_its_mode_is_kept() -> None:
    images, labels = painted([0, 1, 2, 0])

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm2d(3)

        def forward(self, part: Tensor) -> dict[str, Tensor]:
            return {"chances": colors(self.norm(part)).softmax(dim=1), "more": part}

    odd = Odd().train()
    before = odd.norm.running_mean.clone()
    orbit = follow(odd, [(images, labels)], linear_hues(3), "abc")
    assert odd.training
    assert torch.equal(odd.norm.running_mean, before)
    plain = follow(colors, [(images, labels)], linear_hues(3), "abc")
    assert torch.allclose(orbit.confidence, plain.confidence, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    images, labels = painted([0, 1])
    with pytest.raises(UserError, match="has 3 classes, but got names for 2"):
        follow(colors, [(images, labels)], hues(3), "ab")
    with pytest.raises(UserError, match="labels must be in 0 … 2, got 0 … 7"):
        follow(colors, [(images, torch.tensor([0, 7]))], hues(3), "abc")
    with pytest.raises(UserError, match="numbers in"):
        follow(colors, [(255 * images, labels)], hues(3), "abc")

    def holes(part: Tensor) -> Tensor:
        return torch.where(part[:, :1].mean((-2, -1)) == 1, torch.nan, colors(part))

    with pytest.raises(UserError, match="1 of 2 images with NaN"):
        follow(holes, [(images, labels)], hues(3), "abc")
    with pytest.raises(UserError, match="no images"):
        follow(colors, [], hues(3), "abc")
    with pytest.raises(UserError, match="images × classes; got a Tensor of shape"):
        follow(lambda part: part, [(images, labels)], hues(3), "abc")
    assert hues(4).shown(0.75) == "-90°"
    assert rotations(4).shown(90) == "+90°"
