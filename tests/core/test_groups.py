import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support import FINITE, GROUPS, name
from vpgcnn import O2, SO2, Dihedral, Hue, Product, Rotations
from vpgcnn.groups import Group, neighbour_index, relative_index, translate_index, wrap

# In steps of 1e-4, whose sums stay clear of the 2e-6 around quarter turns in which matrices are rounded to exact ones.
ANGLE = st.integers(-31415, 31415).map(lambda step: 1e-4 * step)
every_group = pytest.mark.parametrize("group", GROUPS, ids=name)


@st.composite
def elements(draw: st.DrawFn, group: Group) -> Tensor:
    def coordinate(order: int | None) -> float:
        return draw(ANGLE) if order is None else 2 * math.pi * draw(st.integers(0, order - 1)) / order

    return wrap(torch.tensor([coordinate(axis.order) for axis in group.axes], dtype=torch.float64))


def distance(group: Group, u: Tensor, v: Tensor) -> float:
    return float(group.angle(group.relative(u, v)))


@every_group
@given(data=st.data())
def test_axioms(group: Group, data: st.DataObject) -> None:
    u, v, w = (data.draw(elements(group)) for _ in range(3))
    identity = group.identity().double()
    assert distance(group, group.compose(group.compose(u, v), w), group.compose(u, group.compose(v, w))) < 1e-12
    assert distance(group, group.compose(u, identity), u) < 1e-12
    assert distance(group, group.compose(identity, u), u) < 1e-12
    assert distance(group, group.compose(u, group.inverse(u)), identity) < 1e-12
    assert distance(group, group.compose(group.inverse(u), u), identity) < 1e-12


@every_group
@given(data=st.data())
def test_plane_and_rgb_are_orthogonal_representations(group: Group, data: st.DataObject) -> None:
    u, v = data.draw(elements(group)), data.draw(elements(group))
    for action, size in ((group.plane, 2), (group.rgb, 3)):
        assert torch.allclose(action(group.compose(u, v)), action(u) @ action(v), rtol=0, atol=1e-12)
        assert torch.allclose(action(u) @ action(u).T, torch.eye(size, dtype=torch.float64), rtol=0, atol=1e-12)
    grey = torch.ones(3, dtype=torch.float64)
    assert torch.allclose(group.rgb(u) @ grey, grey, atol=1e-12)


def test_only_whole_matrices_are_rounded() -> None:
    """A turn by 1e-3 has a cosine of 1 − 5e-7, which stays; one by 1e-7 is the identity, exactly, and has a slope."""
    small = torch.tensor([1e-3], dtype=torch.float64)
    product = SO2().plane(small) @ SO2().plane(small).T
    assert torch.allclose(product, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-15)
    tiny = torch.tensor([1e-7], dtype=torch.float64, requires_grad=True)
    matrix = SO2().plane(tiny)
    assert torch.equal(matrix, torch.eye(2, dtype=torch.float64))
    assert torch.autograd.grad(matrix[1, 0], tiny)[0].item() == pytest.approx(1)


@every_group
def test_angle_is_zero_only_at_the_identity(group: Group) -> None:
    angles = group.angle(group.grid())
    assert angles[0] == 0
    assert (angles[1:] > 0.1).all()


def test_reflections_do_not_commute_with_rotations() -> None:
    group = O2()
    turn, mirror = group.element(0.5, 0.0), group.element(0.0, math.pi)
    assert distance(group, group.compose(turn, mirror), group.compose(mirror, turn)) > 0.5


@pytest.mark.parametrize("group", FINITE, ids=name)
def test_finite_grid_is_closed_and_indexed(group: Group) -> None:
    grid = group.grid()
    assert grid.shape == (group.order, len(group.axes))
    assert torch.equal(group.index(grid), torch.arange(len(grid)))
    for row in relative_index(group):
        assert sorted(row.tolist()) == list(range(len(grid)))
    for g in grid:
        index = translate_index(group, g)
        moved = group.compose(g.expand_as(grid), grid[index])
        assert float(group.angle(group.relative(moved, grid)).max()) < 1e-5


@pytest.mark.parametrize("group", FINITE, ids=name)
def test_neighbours_commute_with_the_left_action(group: Group) -> None:
    signal, neighbours = torch.randn(group.order), neighbour_index(group)
    for g in group.grid():
        index = translate_index(group, g)
        assert torch.equal(signal[index][neighbours], signal[neighbours][:, index])


def test_continuous_grid_shifts() -> None:
    grid = SO2(5).grid(0.2)
    steps = wrap(grid[1:] - grid[:-1])
    assert torch.allclose(steps, torch.full((4, 1), 2 * math.pi / 5), atol=1e-6)
    assert grid[0].item() == pytest.approx(0.2)
    mirrored = O2(3).grid(0.1)
    assert sorted(mirrored[:, 1].tolist()) == pytest.approx([0.0] * 3 + [math.pi] * 3)


def test_a_group_knows_the_size_of_its_grid() -> None:
    group = Product(O2(4), Hue(3))
    assert group.order is None
    assert group.counts == (4, 2, 3)
    assert group.count == 24 == len(group.grid())
    assert group.counts_of(12) == (2, 2, 3)  # another grid of the same group
    assert Hue(6).counts_of(6) == Hue(6).counts == (6,)
    assert torch.equal(group.index(group.grid()), torch.arange(24))
    assert group.grid(dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("group", [SO2(8), O2(4), Product(SO2(4), Hue(3))], ids=name)
def test_a_continuous_grid_is_closed_under_its_own_elements(group: Group) -> None:
    grid = group.grid(dtype=torch.float64)
    for g in grid:
        moved = group.compose(g.expand_as(grid), grid[translate_index(group, g)])
        assert float(group.angle(group.relative(moved, grid)).max()) < 1e-9


# ---------------------------------------------------------------- images


def test_quarter_turns_mirrors_and_hue_of_120_degrees_are_exact() -> None:
    image = torch.rand(2, 3, 9, 9)
    for turns in range(4):
        turned = SO2().transform(image, turns * math.pi / 2)
        assert torch.equal(turned, torch.rot90(image, turns, (-2, -1)))
    assert torch.equal(O2().transform(image, O2().element(0.0, math.pi)), image.flip(-1))
    assert torch.equal(O2().transform(image, O2().element(math.pi, math.pi)), image.flip(-2))
    assert torch.equal(Hue(3).transform(image, 2 * math.pi / 3), image.roll(1, dims=1))


@pytest.mark.parametrize("group", [Rotations(4), Dihedral(4), Hue(3), Product(Dihedral(4), Hue(3))], ids=name)
def test_transform_is_an_action_bit_for_bit(group: Group) -> None:
    image = torch.rand(1, 3, 6, 6)
    grid = group.grid()
    for u in grid:
        for v in grid[:: max(1, len(grid) // 6)]:
            both = group.transform(image, group.compose(u, v))
            assert torch.equal(group.transform(group.transform(image, v), u), both)


def test_rotation_agrees_with_kornia() -> None:
    kornia = pytest.importorskip("kornia")
    image = torch.rand(3, 2, 17, 17)
    angles = torch.tensor([0.3, -1.2, 2.5])
    ours = SO2().transform(image, angles.unsqueeze(1))
    theirs = kornia.geometry.transform.rotate(image, angles.rad2deg(), mode="bilinear", padding_mode="zeros")
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_batch_may_mix_exact_and_interpolated_elements() -> None:
    image = torch.rand(2, 1, 8, 8)
    angles = torch.tensor([[math.pi / 2], [0.4]])
    mixed = SO2().transform(image, angles)
    assert torch.equal(mixed[0], torch.rot90(image[0], 1, (-2, -1)))
    assert torch.allclose(mixed[1:], SO2().transform(image[1:], 0.4), atol=1e-6)


@pytest.mark.parametrize("angle", [0.0, 0.37, math.pi / 2], ids=["identity", "between", "quarter"])
def test_transform_is_differentiable_in_image_and_angle(double: None, angle: float) -> None:
    base = torch.randn(1, 1, 4, 4)
    image = torch.nn.functional.interpolate(base, size=12, mode="bicubic").requires_grad_()
    u = torch.tensor([angle], requires_grad=True)
    weight = torch.linspace(0, 1, 144).view(1, 1, 12, 12)
    (SO2().transform(image, u, mode="bicubic") * weight).sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0
    step = 1e-5
    with torch.no_grad():
        high, low = ((SO2().transform(image, angle + s, mode="bicubic") * weight).sum() for s in (step, -step))
    assert u.grad is not None
    assert u.grad.item() == pytest.approx(float(high - low) / (2 * step), rel=0.05, abs=1e-3)


def test_rgb_is_not_clipped_and_keeps_brightness() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
    shifted = Hue(6).transform(red, math.pi / 3)
    assert shifted.min() < -0.3
    assert shifted.sum().item() == pytest.approx(1.0, abs=1e-6)


def test_transform_is_as_exact_in_mixed_precision() -> None:
    image = torch.rand(1, 3, 64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(SO2().transform(image, math.pi / 2), torch.rot90(image, 1, (-2, -1)))
        assert torch.equal(Hue(3).transform(image, 2 * math.pi / 3), image.roll(1, dims=1))
    low = SO2().transform(image, torch.tensor([0.4], dtype=torch.bfloat16).float())
    assert torch.equal(SO2().transform(image, torch.tensor([0.4], dtype=torch.bfloat16)), low)
    double = SO2().transform(image.double(), SO2(4).grid()[1].double())
    assert torch.equal(double, torch.rot90(image.double(), 1, (-2, -1)))


def test_wrap_leaves_angles_alone() -> None:
    inside = torch.tensor([0.1, -3.1, 3.1, math.pi])
    assert torch.equal(wrap(inside), inside)
    assert wrap(torch.tensor(-math.pi)).item() == pytest.approx(math.pi)
    assert wrap(torch.tensor([7.0, -7.0])).tolist() == pytest.approx([7 - 2 * math.pi, 2 * math.pi - 7], abs=1e-6)


def test_groups_are_values() -> None:
    assert Hue(3) == Hue(3)
    assert len({Hue(3), Hue(3), Hue(6), SO2(), SO2()}) == 3
    assert SO2(8) == SO2() != SO2(4)
    assert repr(O2(4)) == "O2(n=4)"
    with pytest.raises(AttributeError):
        Hue(3).m = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Hue(0), "at least 1, got 0"),
        (lambda: Rotations(2.5), "whole number of elements, at least 1, got 2.5"),  # type: ignore[arg-type]
        (lambda: Product(SO2(), Rotations(4)), "both act on the plane"),
        (lambda: Product(Hue(3), Hue(3)), "both act on RGB"),
        (lambda: SO2(0), "SO2 needs a whole number of elements, at least 1, got 0"),
        (lambda: SO2(4.0), "got 4.0"),  # type: ignore[arg-type]
        (lambda: O2(True), "O2 needs a whole number of elements, at least 1, got True"),
        (lambda: Hue(3).grid(0.1), "cannot be shifted, got offset 0.1"),
        (lambda: SO2(8).index(torch.tensor([0.3])), "not on the grid"),
        (lambda: Hue(3).element(0.3), "hue angle 0.3 is not one of the 3"),
        (lambda: O2().element(0.1, 0.7), "mirror angle 0.7 is not one of the 2"),
        (lambda: SO2().transform(torch.ones(1, 4, 4, dtype=torch.uint8), 0.1), "got torch.uint8"),
        (lambda: O2().element(1.0), "2 axes .rotation, mirror., got 1 angles"),
        (lambda: Hue(3).transform(torch.rand(8, 1, 28, 28), 0.0), "expected 3 channels, got 1 .shape 8×1×28×28."),
        (lambda: SO2().transform(torch.rand(1, 1, 8, 9), 0.3), "square images, got 8×9"),
        (lambda: SO2().transform(torch.rand(3, 1, 8, 8), torch.zeros(2, 1)), "one for each of the 3 images"),
        (lambda: SO2().transform(torch.rand(1, 1, 8, 8), 0.3, mode="cubic"), "got 'cubic'"),
        (lambda: Rotations(4).index(torch.tensor([0.3])), "not on the grid"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
