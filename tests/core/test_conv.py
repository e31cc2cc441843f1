import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support import FAMILIES, TABLES, SmallNet, moved, name, random_feature, set_theta, vary_theta, warm
from vpgcnn import (
    O2,
    SO2,
    EquivarianceWarning,
    Full,
    Group,
    GroupConv2d,
    GroupFeature,
    Harmonic,
    Hue,
    LiftConv2d,
    ReparametrizedWindow,
    Rotations,
    Shared,
    Siren,
    Table,
    Variational,
    fold,
    folded,
    unfold,
)
from vpgcnn._ops import cyclic
from vpgcnn.kernels import KernelSpec, TableKernel
from vpgcnn.testing import assert_equivariant, equivariance_error

# ---------------------------------------------------------------- the formulas


def test_lift_is_the_correlation_with_turned_filters() -> None:
    """h(u, y) = Σ_x k(R_u⁻¹(x−y)) f(x): turning the image back gives the unturned filter's answer."""
    lift, image = LiftConv2d(2, 3, 3, Rotations(4)), torch.randn(1, 2, 8, 8)
    values = lift(image).values
    plain = lift.kernel.weight
    for turns in range(4):
        back = F.conv2d(torch.rot90(image, -turns, (-2, -1)), plain)
        assert torch.allclose(values[:, :, turns], torch.rot90(back, turns, (-2, -1)), atol=1e-5)


def test_lift_undoes_the_color_shift() -> None:
    """h(u, y) = Σ_x k(x−y) ρ(u)⁻¹ f(x)."""
    lift, image = LiftConv2d(3, 4, 3, Hue(6)), torch.randn(2, 3, 8, 8)
    values = lift(image).values
    for index, u in enumerate(Hue(6).grid()):
        shifted = Hue(6).transform(image, Hue(6).inverse(u))
        assert torch.allclose(values[:, :, index], F.conv2d(shifted, lift.kernel.weight), atol=1e-5)


def test_group_convolution_averages_over_elements_under_their_weights() -> None:
    conv, feature = GroupConv2d(4, 3, 3, Hue(3)), random_feature(Hue(3))
    weights = torch.tensor([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
    weighted = GroupFeature(feature.values, feature.elements, weights, feature.group)
    out = conv(weighted).values
    for image in range(2):
        for u in range(3):
            terms = [
                weights[image, v]
                * F.conv2d(feature.values[image : image + 1, :, v], 3 * conv.kernel.weight[:, :, (u - v) % 3])
                for v in range(3)
            ]
            assert torch.allclose(out[image : image + 1, :, u], sum(terms), atol=1e-5)
    uniform = GroupFeature(feature.values, feature.elements, torch.full((2, 3), 1 / 3), feature.group)
    assert torch.allclose(conv(uniform).values, conv(feature).values, atol=1e-6)


@pytest.mark.parametrize("group", TABLES, ids=name)
def test_an_element_that_was_left_out_stays_out(group: Group) -> None:
    conv, feature = GroupConv2d(4, 3, 3, group), random_feature(group)
    weights = torch.rand(2, feature.shape[2])
    weights[:, 1] = 0
    weights = weights / weights.sum(dim=1, keepdim=True)
    changed = feature.values.clone()
    changed[:, :, 1] = 100.0
    outputs = [
        conv(GroupFeature(v, feature.elements, weights, feature.group)).values for v in (feature.values, changed)
    ]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-4)


# ---------------------------------------------------------------- equivariance


@pytest.mark.parametrize("group", [*TABLES, Hue(2)], ids=name)
@pytest.mark.parametrize("separable", [False, True])
def test_layers_are_equivariant(double: None, group: Group, separable: bool) -> None:
    kernel = Table(separable=separable)
    lift = LiftConv2d(3, 4, 3, group, kernel=kernel)
    conv = GroupConv2d(4, 5, 3, group, kernel=kernel)
    images = torch.rand(2, 3, 10, 10)
    assert_equivariant(lift, images, group, tolerance=1e-12)
    assert_equivariant(lambda x: conv(lift(x).map(torch.relu)), images, group, tolerance=1e-12)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "dilation", "image"),
    [
        (4, 1, 0, 1, 9),
        (4, 2, 1, 1, 10),
        (2, 2, 0, 1, 8),
        (3, 2, 1, 1, 9),
        (3, 1, 2, 2, 8),
        (5, 1, "same", 1, 8),
        (7, 2, 3, 1, 11),
    ],
)
@pytest.mark.parametrize("kernel", [Table(), Siren(), Harmonic()], ids=name)
def test_odd_and_even_sizes_strides_paddings_dilations(double, size, stride, padding, dilation, image, kernel) -> None:
    group = Rotations(4)
    lift = LiftConv2d(1, 3, size, group, stride=stride, padding=padding, dilation=dilation, kernel=kernel)
    conv = GroupConv2d(3, 3, 3, group, padding=1, kernel=kernel)
    assert_equivariant(lambda x: conv(lift(x)), torch.rand(2, 1, image, image), group, tolerance=1e-11)


def test_a_stride_that_is_not_centred_warns_and_is_not_equivariant() -> None:
    lift = LiftConv2d(1, 3, 3, Rotations(4), stride=2, padding=1)
    images = torch.rand(1, 1, 8, 8)
    with pytest.warns(EquivarianceWarning, match=r"stride 2 and padding 1 leaves 1 pixel\(s\) of 8 over"):
        error = equivariance_error(lift, images, Rotations(4))
    assert error.worst > 0.05
    LiftConv2d(3, 3, 3, Hue(3), stride=2, padding=1)(torch.rand(1, 3, 8, 8))  # hue does not mind: no warning
    with pytest.warns(EquivarianceWarning):
        LiftConv2d(1, 3, 3, Rotations(2), stride=2, padding=1)(torch.rand(1, 1, 8, 9))


# ---------------------------------------------------------------- the cyclic algorithm


@pytest.mark.parametrize("m", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_cyclic_path_is_the_direct_one(
    double: None, monkeypatch: pytest.MonkeyPatch, m: int, weighted: bool, stride: int
) -> None:
    conv = GroupConv2d(5, 7, 3, Hue(m), stride=stride, padding=1, kernel=Table(separable=True))
    torch.nn.init.normal_(conv.bias)
    base = random_feature(Hue(m), channels=5)
    raw = torch.rand(2, m)
    results = []
    for path in (False, True):
        monkeypatch.setattr(TableKernel, "_map_pays", lambda *_, path=path: path)
        conv.zero_grad()
        values, weights = base.values.clone().requires_grad_(), raw.clone().requires_grad_()
        share = weights / weights.sum(dim=1, keepdim=True) if weighted else None
        out = conv(GroupFeature(values, base.elements, share, base.group)).values
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        results.append([out, values.grad, *([weights.grad] if weighted else []), *(p.grad for p in conv.parameters())])
    for direct, quick in zip(*results, strict=True):
        assert torch.allclose(direct, quick, atol=1e-10, rtol=1e-10)


def test_the_path_is_chosen_by_shape() -> None:
    def taken(layer: GroupConv2d | LiftConv2d) -> bool:
        assert isinstance(layer.kernel, TableKernel)
        return layer.kernel._cyclic()

    assert not taken(GroupConv2d(12, 12, 3, Hue(3)))
    assert not cyclic.pays(cyclic.Shape(3, 17, 17, 3), positions=100)
    assert cyclic.pays(cyclic.Shape(3, 17, 17, 3), positions=576)
    assert not cyclic.pays(cyclic.Shape(3, 110, 110, 3), positions=1)
    assert taken(GroupConv2d(110, 110, 3, Hue(3)))
    assert taken(GroupConv2d(110, 110, 3, Hue(6)))
    assert not taken(GroupConv2d(110, 110, 3, Rotations(4)))
    assert not taken(LiftConv2d(3, 110, 3, Hue(3)))


# ---------------------------------------------------------------- what a level sees


@pytest.mark.parametrize("group", TABLES, ids=name)
def test_a_level_may_see_the_output_and_stays_invariant(double: None, group: Group) -> None:
    """θ is a function of what the layer makes, the same for every pose; and what the layer makes is unchanged."""
    conv = GroupConv2d(4, 6, 3, group, level=Variational(condition="output"), padding=1).eval()
    vary_theta(conv, 1.0)
    feature = random_feature(group, size=8)
    plain = GroupConv2d(4, 6, 3, group, padding=1).eval()
    plain.load_state_dict(conv.state_dict(), strict=False)
    assert torch.equal(conv(feature).values, plain(feature).values)
    theta = read(conv, feature)
    assert theta.std() > 1e-4
    seen = GroupFeature(F.relu(plain(feature).values), feature.elements, None, group)
    assert torch.equal(theta, conv.level.encoder(seen))
    for element in group.grid():
        assert torch.allclose(read(conv, moved(feature, group, element)), theta, atol=1e-10)


def read(conv: GroupConv2d, feature: GroupFeature) -> Tensor:
    """θ before its bounds."""
    found: list[Tensor] = []
    hook = conv.level.encoder.register_forward_hook(lambda _module, _inputs, raw: found.append(raw))
    conv(feature)
    hook.remove()
    return found[0]


# ---------------------------------------------------------------- modes


@pytest.mark.parametrize(("group", "level"), FAMILIES.values(), ids=FAMILIES.keys())
def test_evaluation_is_deterministic_and_training_takes_a_generator(group, level) -> None:
    lift = LiftConv2d(3, 4, 3, group, level=level)
    conv = GroupConv2d(4, 4, 3, group, level=level)
    images = torch.rand(4, 3, 9, 9)

    def run(seed: int | None = None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        feature = conv(lift(images, generator=generator).map(torch.relu), generator=generator)
        return feature.mean()

    assert torch.equal(run(1), run(1))
    if group.order is None:
        assert not torch.equal(run(1), run(2))
    lift.eval()
    conv.eval()
    assert torch.equal(run(), run())


def test_training_moves_the_grid_and_evaluation_does_not() -> None:
    lift, images = LiftConv2d(1, 2, 3, SO2(4)), torch.rand(1, 1, 7, 7)
    assert not torch.equal(lift(images).elements, lift(images).elements)
    assert torch.equal(lift.eval()(images).elements, SO2(4).grid())


def test_the_kl_travels_with_the_data() -> None:
    own = Variational(explore=0.0)
    model = SmallNet(Hue(3), levels=[own, Full(), Shared(), own])
    set_theta(model, 0.5)
    kl = model(torch.rand(2, 3, 8, 8)).kl
    assert kl.tolist() == pytest.approx([2 * math.log(2)] * 2)  # two variational layers; Shared does not count


def test_one_network_serves_all_levels() -> None:
    """A full network's weights load into a partial one: only what levels learn is new."""
    full, partial_net = SmallNet(Hue(3)), SmallNet(Hue(3), level=Variational())
    missing, unexpected = partial_net.load_state_dict(full.state_dict(), strict=False)
    assert unexpected == []
    assert all("level.encoder" in key or key.endswith(("level.dial", "level.prior")) for key in missing)
    set_theta(partial_net, 1.0)
    images = torch.rand(2, 3, 8, 8)
    assert torch.allclose(full.eval()(images)[0], partial_net.eval()(images)[0], atol=1e-6)


# ---------------------------------------------------------------- folding


@pytest.mark.parametrize("group", [Hue(3), SO2(4), O2(2)], ids=name)
@pytest.mark.parametrize("width", [6, 64])
def test_folding_changes_nothing_but_the_work(group: Group, width: int) -> None:
    images = torch.rand(2, 3, 8, 8)
    model = warm(SmallNet(group, level=Variational(), width=width), images)
    with torch.no_grad():
        before, state = model(images)[0], {k: v.clone() for k, v in model.state_dict().items()}
        with folded(model):
            assert model.lift.folded is not None
            assert torch.allclose(model(images)[0], before, atol=1e-5)
            assert set(model.state_dict()) == set(state)
            assert model.load_state_dict(state).missing_keys == []
            assert model.lift.folded is None  # loading forgets what was folded
        fold(model)
        assert torch.allclose(model(images)[0], before, atol=1e-5)
        unfold(model)
        assert torch.equal(model(images)[0], before)


def test_training_forgets_what_was_folded() -> None:
    conv, feature = GroupConv2d(4, 4, 3, Hue(3)).eval(), random_feature(Hue(3))
    fold(conv)
    conv.train()(feature).values.sum().backward()
    with torch.no_grad():
        conv.kernel.weight += conv.kernel.weight.grad
    assert conv.folded is None
    after = conv.eval()(feature).values
    assert torch.equal(fold(conv)(feature).values, after)


def test_a_folded_layer_answers_for_other_elements_too() -> None:
    """The folded weight belongs to one grid; elsewhere the kernel is expanded as always."""
    images, others = torch.rand(2, 1, 9, 9), SO2(4).grid(0.3)
    lift = LiftConv2d(1, 3, 5, SO2(4)).eval()
    conv = GroupConv2d(3, 3, 3, SO2(4)).eval()
    with torch.no_grad():
        before = lift(images, elements=others), conv(lift(images, elements=others)), conv(lift(images))
        fold(lift)
        fold(conv)
        after = lift(images, elements=others), conv(lift(images, elements=others)), conv(lift(images))
    for one, two in zip(before, after, strict=True):
        assert torch.allclose(one.values, two.values, atol=1e-6)


def test_folding_inside_folding() -> None:
    conv = fold(GroupConv2d(4, 4, 3, Hue(3)).eval())
    with folded(conv):
        pass
    assert conv.folded is not None


@pytest.mark.parametrize("elements", [SO2(3).grid(0.2), torch.tensor([[0.0], [0.1], [9.5]]), torch.rand(2, 5, 1)])
def test_given_elements_get_weights_that_sum_to_one(elements: Tensor) -> None:
    lift = LiftConv2d(1, 3, 5, SO2(4), level=Variational(explore=0.0))
    set_theta(lift, 0.6)
    feature = lift(torch.rand(2, 1, 9, 9), elements=elements)
    assert feature.weights is not None
    assert torch.allclose(feature.weights.sum(dim=1), torch.ones(2), atol=1e-5)
    assert feature.elements.abs().max() <= math.pi


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LiftConv2d(1, 4, 3, Hue(3)), r"Hue\(m=3\) acts on RGB: a lift needs in_channels=3, got 1"),
        (
            lambda: LiftConv2d(3, 4, 3, Hue(3))(torch.rand(8, 1, 28, 28)),
            r"expected 3 channels, got 1 \(shape 8×1×28×28\)",
        ),
        (lambda: LiftConv2d(1, 4, 3, Rotations(4))(torch.rand(2, 3, 8, 8)), "expected 1 channels, got 3"),
        (
            lambda: LiftConv2d(1, 4, 3, Rotations(4))(torch.rand(3, 8, 8)),
            r"expected images B×C×H×W, got shape \(3, 8, 8\)",
        ),
        (lambda: LiftConv2d(1, 4, 4, Rotations(4), padding="same"), "odd kernel to stay centred, got kernel_size=4"),
        (lambda: LiftConv2d(1, 4, 3, Rotations(4), padding="valid"), "got 'valid'"),
        (lambda: LiftConv2d(1, 4, 3, Rotations(4), stride=0), "stride must be a whole number of at least 1, got 0"),
        (lambda: LiftConv2d(1, 4, 3, Rotations(4))(torch.ones(1, 1, 8, 8, dtype=torch.uint8)), "got torch.uint8"),
        (lambda: LiftConv2d(1, 4, (3, 3), Rotations(4)), r"kernel_size must be a whole number .* got \(3, 3\)"),
        (lambda: LiftConv2d(1, 4, 3, Rotations(4), padding=1.5), "got 1.5"),
        (
            lambda: GroupConv2d(4, 4, 3, Hue(4))(random_feature(Rotations(4))),
            r"on Hue\(m=4\), got one on Rotations\(n=4\)",
        ),
        (
            lambda: LiftConv2d(1, 2, 3, Rotations(4))(torch.rand(1, 1, 8, 8), elements=Rotations(4).grid().flip(0)),
            "has one grid of elements, got others",
        ),
        (
            lambda: LiftConv2d(1, 2, 3, SO2(4))(torch.rand(1, 1, 8, 8), elements=torch.rand(4)),
            r"B×G×1, got \(4,\)",
        ),
        (
            lambda: LiftConv2d(1, 2, 3, SO2(4))(torch.rand(2, 1, 8, 8), elements=torch.rand(3, 4, 1)),
            "expected elements for 2 images, got 3",
        ),
        (
            lambda: GroupConv2d(4, 4, 3, Hue(3))(random_feature(Hue(6))),
            r"expected a feature on Hue\(m=3\), got one on Hue\(m=6\)",
        ),
        (lambda: GroupConv2d(5, 4, 3, Hue(3))(random_feature(Hue(3))), "expected 5 channels, got 4"),
        (lambda: Variational(condition="all"), "condition must be 'input', 'output' or None, got 'all'"),
        (lambda: Variational(encoder_width=0), "encoder_width must be at least 1, got 0"),
        (lambda: LiftConv2d(3, 4, 3, Hue(3), level=Variational(condition="input")), "level of a lift sees its output"),
        (
            lambda: GroupConv2d(2, 2, 3, SO2(4), level=Variational(ReparametrizedWindow(), condition="output")),
            "a level that moves elements sees the input",
        ),
        (
            lambda: LiftConv2d(1, 2, 3, SO2(4), level=Shared(ReparametrizedWindow()), kernel=QuarterTable()),
            r"built a kernel on Rotations\(n=4\), but the layer is on SO2\(n=4\)",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@dataclass(frozen=True)
class QuarterTable(KernelSpec):
    """A table of quarter turns, whatever the layer's group."""

    def build(self, in_channels: int, out_channels: int, size: int, group: Group, *, lift: bool) -> TableKernel:
        return TableKernel(in_channels, out_channels, size, Rotations(4), lift=lift)


@pytest.mark.parametrize("key", FAMILIES)
def test_an_empty_batch_is_fine(key: str) -> None:
    group, level = FAMILIES[key]
    lift, conv = LiftConv2d(3, 4, 3, group, level=level), GroupConv2d(4, 4, 3, group, level=level)
    for mode in (True, False):
        feature = conv.train(mode)(lift.train(mode)(torch.rand(0, 3, 8, 8)))
        assert feature.shape == (0, 4, group.count, 4, 4)
        assert feature.kl.shape == (0,)


def test_shapes_can_be_worked_out_without_data() -> None:
    model = SmallNet(SO2(4), level=Variational()).eval().to("meta")
    assert model(torch.rand(2, 3, 8, 8, device="meta"))[0].shape == (2, 5)


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 3, 8, 8), dtype=np.float32), random_feature(Hue(3))], ids=["numpy", "feature"]
)
def test_a_lift_takes_images_as_tensors(wrong) -> None:
    with pytest.raises(TypeError, match=f"LiftConv2d takes images as a tensor B×C×H×W, got {type(wrong).__name__}"):
        LiftConv2d(3, 4, 3, Hue(3))(wrong)


def test_an_image_is_not_a_feature() -> None:
    with pytest.raises(TypeError, match="takes a GroupFeature, got Tensor: begin with LiftConv2d"):
        GroupConv2d(3, 4, 3, Hue(3))(torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize("layer", [LiftConv2d, GroupConv2d])
def test_grouped_convolutions_are_refused_in_a_sentence(layer) -> None:
    with pytest.raises(ValueError, match=rf"{layer.__name__} has no grouped convolutions: .*got groups=2"):
        layer(3, 4, 3, Hue(3), groups=2)
    layer(3, 4, 3, Hue(3), groups=1)


@pytest.mark.parametrize("layer", [LiftConv2d, GroupConv2d])
def test_a_map_smaller_than_the_kernel_is_refused_by_name(layer: type) -> None:
    given = torch.rand(2, 3, 2, 2)
    conv = layer(3, 4, 5, Rotations(4), padding=1)
    with pytest.raises(ValueError, match="spans 5 pixels does not fit on a map of 2×2 with padding 1"):
        conv(given if layer is LiftConv2d else LiftConv2d(3, 3, 1, Rotations(4))(given))
