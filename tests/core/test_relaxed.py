"""Kernels that may break the symmetry: each has a limit in which it is exactly an equivariant one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from support import HostReads, SmallNet, host_reads, name, random_feature, set_theta, warm
from vpgcnn import (
    O2,
    SO2,
    Constrained,
    Dihedral,
    Fixed,
    Full,
    Group,
    GroupConv2d,
    GroupFeature,
    Hue,
    LiftConv2d,
    Nonstationary,
    Product,
    Projected,
    Relaxed,
    ReparametrizedWindow,
    ResidualPathway,
    Rotations,
    Shared,
    Siren,
    Table,
    Variational,
    dual_step,
    equivariance_error,
    fold,
    folded,
    penalty,
)
from vpgcnn._ops import resample
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.kernels import Kernel, KernelSpec, ProjectedKernel, TableKernel
from vpgcnn.kernels.absolute import at_elements
from vpgcnn.kernels.table import has_table
from vpgcnn.levels import LevelSpec
from vpgcnn.nn import all_elements

# Quarter turns are exact, so the grid of these groups is: no test needs a tolerance for interpolation.
EXACT: list[Group] = [
    *(Rotations(4), Hue(3), Hue(6), Dihedral(1), Dihedral(4), SO2(4), O2(4)),
    *(Product(Rotations(4), Hue(3)), Product(SO2(4), Hue(3)), Product(Dihedral(1), Hue(3))),
]
TABLES = [group for group in EXACT if has_table(group)]
both_layers = pytest.mark.parametrize("lift", [True, False], ids=["lift", "group"])
every_table = pytest.mark.parametrize("group", TABLES, ids=name)


def upset_weights(kernel: Kernel) -> None:
    """Let every output element mix the banks in its own way."""
    nn.init.normal_(kernel.weights)


def upset_free(kernel: Kernel) -> None:
    """Let the free kernel be something."""
    nn.init.normal_(kernel.free, std=0.1)


def upset_tables(kernel: Kernel) -> None:
    """Give every output element a table of its own."""
    nn.init.normal_(kernel.tables, std=0.1)


def upset_scale(kernel: Kernel) -> None:
    """Let the kernel see absolute elements."""
    nn.init.constant_(kernel.scale, 0.8)


def upset_gate(kernel: Kernel) -> None:
    """Let the free kernel in."""
    nn.init.constant_(kernel.gate, 0.7)


BREAKERS: dict[str, tuple[KernelSpec, Callable[[Kernel], None]]] = {
    "relaxed": (Relaxed(), upset_weights),
    "relaxed-siren": (Relaxed(3, of=Siren(hidden=8)), upset_weights),
    "relaxed-per-image": (Relaxed(per_image=True), upset_weights),
    "residual": (ResidualPathway(), upset_free),
    "residual-siren": (ResidualPathway(Siren(hidden=8)), upset_free),
    "nonstationary": (Nonstationary(hidden=8), upset_scale),
    "constrained": (Constrained(initial=0.0), upset_gate),
    "constrained-siren": (Constrained(Siren(hidden=8), initial=0.0), upset_gate),
    "projected": (Projected(), upset_tables),
}
"""Kernels, and how to take each out of its equivariant limit, in which it starts."""
every_kernel = pytest.mark.parametrize("key", BREAKERS)
ANY_GROUP = [key for key in BREAKERS if key != "projected"]
SHARED = [key for key in ANY_GROUP if key != "relaxed-per-image"]
"""Kernels that are the same for all images, who may then have elements of their own."""


def chain(group: Group, kernel: KernelSpec | None, width: int = 4) -> nn.Sequential:
    lift = LiftConv2d(3, width, 3, group, kernel=kernel, padding=1)
    return nn.Sequential(lift, nn.Tanh(), GroupConv2d(width, 5, 3, group, kernel=kernel, padding=1))


def broken(model: nn.Module, key: str) -> nn.Module:
    """The model with all of its kernels out of their limit."""
    for part in list(model.modules()):
        if isinstance(part, LiftConv2d | GroupConv2d):
            BREAKERS[key][1](part.kernel)
    return model


def exists(key: str, group: Group) -> bool:
    return has_table(group) or key in ANY_GROUP


def images(batch: int = 2, size: int = 8) -> Tensor:
    return torch.rand(batch, 3, size, size)


# ---------------------------------------------------------------- what all of them promise


CASES = [(key, group) for key in BREAKERS for group in EXACT if exists(key, group)]


@pytest.mark.parametrize(("key", "group"), CASES, ids=str)
def test_it_starts_exactly_equivariant_and_can_stop_to_be(double: None, key: str, group: Group) -> None:
    model = chain(group, BREAKERS[key][0])
    assert equivariance_error(model, images(), group).worst <= 1e-10
    for layer in (model[0], model[2]):
        before = {name: value.clone() for name, value in layer.state_dict().items()}
        BREAKERS[key][1](layer.kernel)
        assert equivariance_error(model, images(), group).worst > 1e-3
        layer.load_state_dict(before)


@every_kernel
def test_every_way_to_compute_it_agrees(double: None, key: str) -> None:
    """Folded, without elements of weight 0, and all at once."""
    for group in [group for group in (Rotations(4), Hue(6), SO2(4)) if exists(key, group)]:
        net = broken(SmallNet(group, level=Variational(), kernel=BREAKERS[key][0]), key)
        warm(net, images()).requires_grad_(False)
        set_theta(net, 0.4)
        with all_elements():
            expected = net(given := images(3)).logits
        assert torch.allclose(net(given).logits, expected, atol=1e-10)
        with folded(net):
            assert torch.allclose(net(given).logits, expected, atol=1e-10)


@pytest.mark.parametrize("key", SHARED)
def test_images_may_have_elements_of_their_own(double: None, key: str) -> None:
    group = SO2(4)
    conv = broken(GroupConv2d(4, 5, 3, group, kernel=BREAKERS[key][0]), key)
    u = torch.stack([group.grid(0.3), group.grid(-0.2)])
    feature = random_feature(group)
    made = conv(GroupFeature(feature.values, u, None, group), elements=u)
    for image in range(2):
        one = GroupFeature(feature.values[image : image + 1], u[image], None, group)
        weight = conv.kernel.expand(u[image], u[image]).flatten(2, 3).flatten(0, 1)
        by_hand = nn.functional.conv2d(one.values.flatten(1, 2), weight).unflatten(1, (5, 4))
        assert torch.allclose(made.values[image : image + 1], by_hand, atol=1e-10)


@pytest.mark.parametrize("key", SHARED)
def test_it_works_behind_levels_that_move_elements(double: None, key: str) -> None:
    kernel = BREAKERS[key][0]
    lift = LiftConv2d(3, 4, 3, SO2(4), level=Shared(ReparametrizedWindow(initial=0.6)), kernel=kernel)
    conv = broken(nn.Sequential(lift, GroupConv2d(4, 5, 3, SO2(4), kernel=kernel)), key)
    conv(images()).values.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in lift.kernel.parameters())


@pytest.mark.parametrize(
    ("key", "group"), [case for case in CASES if case[1] in (Rotations(4), Product(SO2(4), Hue(3)))], ids=str
)
def test_it_is_exported(key: str, group: Group) -> None:
    net = broken(SmallNet(group, level=Variational(), kernel=BREAKERS[key][0]), key)
    deployed = Deployed(warm(net, images()), example=images(1))
    program = exported(deployed, channels=3, size=8)
    more = images(5)
    for one, two in zip(program.module()(more), deployed(more), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


@pytest.mark.parametrize("key", [key for key in BREAKERS if not key.endswith("siren")])
def test_onnx_gives_the_same(key: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    pytest.importorskip("onnxscript", reason="there is no onnxscript")
    levels: list[LevelSpec] = [Full(), Variational(), Full(), Full()]
    net = broken(SmallNet(SO2(4) if exists(key, SO2(4)) else Hue(3), levels=levels, kernel=BREAKERS[key][0]), key)
    made = Deployed(warm(net, images()), example=images(1))
    session = onnxruntime.InferenceSession(onnx_bytes(exported(made, 3, 8), {"classes": ["a"]}))
    for batch in (1, 5):
        given = images(batch)
        with torch.no_grad():
            expected = made(given)
        for one, two in zip(session.run(None, {"images": given.numpy()}), expected, strict=True):
            assert torch.allclose(torch.from_numpy(one), two, atol=1e-4)


@pytest.mark.parametrize(
    ("key", "group"), [case for case in CASES if case[1] in (SO2(4), Product(Rotations(4), Hue(3)))], ids=str
)
def test_a_training_step_does_not_make_the_host_wait(key: str, group: Group) -> None:
    """With the penalty, which expands kernels by itself."""
    assert host_reads(SmallNet(group, kernel=BREAKERS[key][0]), images(4)) == []
    net = SmallNet(group, kernel=BREAKERS[key][0]).to("meta")
    for _ in range(2):  # constants are made in the first round
        with HostReads() as reads:
            prior = penalty(net)
            if prior.requires_grad:
                prior.backward()
            dual_step(net)
    assert reads.found == []


@pytest.mark.parametrize("key", [*SHARED, "projected"])
def test_closed_levels_make_it_an_ordinary_convolution(double: None, key: str) -> None:
    """`fold(model, example)` keeps the identity alone."""
    net = broken(SmallNet(Rotations(4), level=Fixed(0.1), kernel=BREAKERS[key][0]), key)
    warm(net, images()).requires_grad_(False)
    given = images(3)
    expected = net(given).logits
    fold(net, given)
    assert net.convs[0].only.shape == (6, 6, 3, 3)
    assert torch.allclose(net(given).logits, expected, atol=1e-10)


# ---------------------------------------------------------------- functions of the absolute element


@pytest.mark.parametrize("group", [SO2(1), SO2(4), SO2(5), O2(3), Product(SO2(4), Hue(3))], ids=name)
def test_functions_on_a_continuous_group_go_through_their_values(double: None, group: Group) -> None:
    values = torch.randn(2, group.count, 3)
    assert torch.allclose(at_elements(values, group, group.grid(), dim=1), values, atol=1e-13)
    constant = torch.full((group.count,), 0.7)
    assert torch.allclose(at_elements(constant, group, group.grid(0.3)), constant, atol=1e-13)


def test_functions_between_grid_points_are_trigonometric(double: None) -> None:
    """A function that the grid can tell apart from others is found exactly."""
    group, u = Product(SO2(5), Hue(3)), Product(SO2(5), Hue(3)).grid(0.37)

    def function(u: Tensor) -> Tensor:
        return 1 + torch.sin(2 * u[:, 0]) * torch.cos(u[:, 1]) - 3 * torch.cos(u[:, 0])

    assert torch.allclose(at_elements(function(group.grid()), group, u), function(u), atol=1e-12)


def test_a_finite_group_has_one_grid() -> None:
    with pytest.raises(ValueError, match=r"expected the 4 elements of Rotations\(n=4\), got 3"):
        at_elements(torch.zeros(4), Rotations(4), Rotations(3).grid())


# ---------------------------------------------------------------- relaxed (Wang et al., 2022)


@both_layers
@pytest.mark.parametrize("group", [Rotations(4), Hue(6), Dihedral(4), Product(Rotations(4), Hue(3))], ids=name)
def test_relaxed_with_weights_that_are_equal_is_the_summed_kernel(double: None, group: Group, lift: bool) -> None:
    """Equal over u; the banks may have different weights. 17 channels of hues take the cyclic path in the G-CNN."""
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 17)
    relaxed = kind(inputs, 17, 3, group, kernel=Relaxed(3), padding=1)
    plain = kind(inputs, 17, 3, group, kernel=Table(), padding=1)
    factors = torch.tensor([0.3, -1.2, 0.8])
    with torch.no_grad():
        relaxed.kernel.weights.copy_(factors[:, None].expand(3, group.count))
        banks = torch.stack([bank.weight for bank in relaxed.kernel.banks])
        plain.kernel.weight.copy_(torch.tensordot(factors, banks, dims=1))
    given = images() if lift else random_feature(group, channels=17, size=29)
    made, expected = relaxed(given).values, plain(given).values
    assert (made - expected).abs().max() <= 1e-10
    with torch.no_grad():
        relaxed.kernel.weights[0, 1] += 0.1
    changed = (relaxed(given).values - expected).abs().amax(dim=(0, 1, 3, 4)) > 1e-6
    assert changed.tolist() == [element == 1 for element in range(group.count)]  # only the output at that element


def test_relaxed_keeps_the_scale_of_one_bank() -> None:
    feature = random_feature(Rotations(4), channels=32, size=12)
    one = GroupConv2d(32, 32, 3, Rotations(4))(feature).values.std()
    many = GroupConv2d(32, 32, 3, Rotations(4), kernel=Relaxed(8))(feature).values.std()
    assert 0.9 < many / one < 1.1


def test_relaxed_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="banks must be a whole number of at least 1, got 0"):
        Relaxed(banks=0)
    with pytest.raises(ValueError, match=r"SO2\(n=8\) does not move the taps"):
        GroupConv2d(3, 4, 3, SO2(), kernel=Relaxed(of=Table()))


# ---------------------------------------------------------------- residual pathway (Finzi et al., 2021)


@both_layers
@pytest.mark.parametrize("group", EXACT, ids=name)
def test_residual_without_a_free_kernel_is_the_group_convolution(double: None, group: Group, lift: bool) -> None:
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 4)
    residual = kind(inputs, 5, 3, group, kernel=ResidualPathway())
    plain = kind(inputs, 5, 3, group)
    plain.kernel.load_state_dict(residual.kernel.equivariant.state_dict())
    plain.train(False), residual.train(False)
    given = images() if lift else random_feature(group)
    assert (residual(given).values - plain(given).values).abs().max() <= 1e-10
    upset_free(residual.kernel)
    # What is added is a plain convolution with the free kernel, on the grid.
    weight = residual.kernel.free.flatten(2, 3).flatten(0, 1)
    signal = given if lift else given.values.flatten(1, 2)
    added = nn.functional.conv2d(signal, weight).unflatten(1, (5, group.count))
    assert torch.allclose(residual(given).values, plain(given).values + added, atol=1e-10)


def test_the_free_kernel_averages_over_any_number_of_elements(double: None) -> None:
    """A free kernel that does not depend on v has the same effect on a finer grid of a constant feature."""
    kernel = ResidualPathway(Siren(hidden=8)).build(2, 3, 3, SO2(4), lift=False)
    nn.init.zeros_(kernel.equivariant.weight)
    nn.init.zeros_(kernel.equivariant.bias)
    with torch.no_grad():
        kernel.free.copy_(torch.randn(3, 4, 2, 1, 3, 3).expand_as(kernel.free))
    coarse, fine = (kernel.expand(SO2(4).grid(0.2), SO2(n).grid()).sum(dim=3) for n in (4, 12))
    assert torch.allclose(coarse, fine, atol=1e-12)


@both_layers
@pytest.mark.parametrize("spec", [ResidualPathway(None, 0.3, 0.7), ResidualPathway(Siren(hidden=8), 0.3, 0.7)], ids=str)
def test_residual_priors_are_two_gaussians_on_expanded_weights(double: None, spec: KernelSpec, lift: bool) -> None:
    group = Product(Rotations(4), Hue(3))
    kernel = spec.build(3, 4, 3, group, lift=lift)
    upset_free(kernel)
    grid = group.grid()
    equivariant = kernel.equivariant.expand(grid, None if lift else grid)
    free = kernel.expand(grid, None if lift else grid) - equivariant
    assert torch.allclose(kernel.penalty(), 0.3 * equivariant.square().sum() + 0.7 * free.square().sum())
    kernel.penalty().backward()
    assert torch.allclose(kernel.free.grad, 1.4 * kernel.free)
    assert kernel.equivariant.weight.grad.abs().sum() > 0


# ---------------------------------------------------------------- projected (Kim et al., 2023)


def orbit_mean(weight: Tensor, group: Group, elements: Tensor, lift: bool) -> Tensor:
    """(PW)[u, v](x) = mean over s of W[su, sv](R_s x), and ρ(s) on colours at a lift; from the definition."""
    grid, made = group.grid(), []
    for s in elements:
        index = group.index(group.compose(s, grid))
        moved = weight[:, index] if lift else weight[:, index][:, :, :, index]
        back = group.plane(group.inverse(s))
        moved = resample.move(moved.flatten(0, 3).unsqueeze(1), back).view_as(moved) if group.acts_on_plane else moved
        if lift and group.acts_on_rgb:
            moved = torch.einsum("oucvxy,cd->oudvxy", moved, group.rgb(s))
        made.append(moved)
    return torch.stack(made).mean(dim=0)


def free_kernel(group: Group, lift: bool) -> tuple[ProjectedKernel, Callable[[Tensor], Tensor]]:
    """A kernel of random numbers, and its expansion on the grid."""
    kernel, grid = Projected().build(3, 2, 3, group, lift=lift), group.grid()
    nn.init.normal_(kernel.tables)
    return kernel, lambda tables: kernel.expand_tables(tables, grid, None if lift else grid)


@both_layers
@every_table
def test_the_projection_is_the_mean_over_the_orbit(double: None, group: Group, lift: bool) -> None:
    kernel, expanded = free_kernel(group, lift)
    weight, projection = expanded(kernel.tables), expanded(kernel.projected())
    assert torch.allclose(projection, orbit_mean(weight, group, group.grid(), lift), atol=1e-12)
    assert torch.allclose(kernel.distance(), (weight - projection).square().sum())
    if isinstance(group, Product):
        first, second = (part.numel() for part in group.split(group.identity()))
        for factor, fixed in ((0, slice(first, first + second)), (1, slice(first))):
            subgroup = group.grid()[(group.grid()[:, fixed] == 0).all(dim=1)]
            partly = expanded(kernel.projected(factor))
            assert torch.allclose(partly, orbit_mean(weight, group, subgroup, lift), atol=1e-12)
            assert torch.allclose(kernel.distance(factor), (weight - partly).square().sum())


@both_layers
@every_table
def test_the_projection_is_orthogonal_and_its_result_equivariant(double: None, group: Group, lift: bool) -> None:
    kernel, expanded = free_kernel(group, lift)
    tables = kernel.projected().detach()
    left = expanded(kernel.tables) - expanded(tables)
    other = TableKernel(3, 2, 3, group, lift=lift).expand(group.grid(), None if lift else group.grid())
    assert abs(float((left * other).sum().detach())) <= 1e-10  # at right angles to every equivariant kernel
    with torch.no_grad():
        kernel.tables.copy_(tables)
    assert (kernel.projected() - kernel.tables).abs().max() <= 1e-14  # idempotent


@every_table
def test_the_distance_is_0_where_the_layer_is_equivariant_and_only_there(double: None, group: Group) -> None:
    model = broken(chain(group, Projected()), "projected")
    kernels = [model[0].kernel, model[2].kernel]
    for kernel in kernels:
        assert kernel.distance() > 1e-3
    assert equivariance_error(model, images(), group).worst > 1e-3
    with torch.no_grad():
        for kernel in kernels:
            kernel.tables.copy_(kernel.projected())
    assert equivariance_error(model, images(), group).worst <= 1e-10
    assert penalty(model) <= 1e-20


@both_layers
@every_table
def test_projected_starts_as_the_group_convolution(double: None, group: Group, lift: bool) -> None:
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 4)
    free, plain = kind(inputs, 5, 3, group, kernel=Projected()), kind(inputs, 5, 3, group)
    with torch.no_grad():
        plain.kernel.weight.copy_(free.kernel.tables[0].view_as(plain.kernel.weight))
    given = images() if lift else random_feature(group)
    assert (free(given).values - plain(given).values).abs().max() <= 1e-10
    assert free.kernel.penalty() <= 1e-20


def test_each_factor_of_a_product_has_its_own_strength(double: None) -> None:
    """A kernel that is equivariant to rotations but not to hues pays for hues alone."""
    group = Product(Rotations(4), Hue(3))
    kernel = Projected((0.5, 8.0)).build(3, 2, 3, group, lift=False)
    nn.init.normal_(kernel.tables)
    expected = 0.25 * kernel.distance(0) + 4.0 * kernel.distance(1)
    assert torch.allclose(kernel.penalty(), expected)
    with torch.no_grad():
        kernel.tables.copy_(kernel.projected(0))
    assert kernel.distance(0) <= 1e-20
    assert kernel.distance(1) > 1
    assert torch.allclose(kernel.penalty(), 4.0 * kernel.distance(1))


def test_kernels_with_priors_refuse_what_they_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"SO2\(n=8\) does not move the taps .* use kernel=ResidualPathway"):
        GroupConv2d(3, 4, 3, SO2(), kernel=Projected())
    with pytest.raises(ValueError, match=r"Hue\(m=3\) has 1 factors, got 2 strengths"):
        GroupConv2d(3, 4, 3, Hue(3), kernel=Projected((1.0, 2.0)))
    with pytest.raises(ValueError, match="strength must be a number of at least 0, got -1"):
        Projected((1.0, -1))
    with pytest.raises(ValueError, match="free_decay must be a number of at least 0, got nan"):
        ResidualPathway(free_decay=float("nan"))
    with pytest.raises(ValueError, match=r"expected the 3 elements of Hue\(m=3\), got 2"):
        Projected().build(1, 1, 3, Hue(3), lift=False).expand(Hue(3).grid(), Hue(2).grid())


# ---------------------------------------------------------------- non-stationary (van der Ouderaa et al., 2022)


@both_layers
@pytest.mark.parametrize("group", [*EXACT, SO2(8), Rotations(6)], ids=name)
def test_nonstationary_at_scale_0_is_the_siren(double: None, group: Group, lift: bool) -> None:
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 4)
    siren = kind(inputs, 5, 3, group, kernel=Siren(hidden=8)).eval()
    seeing = kind(inputs, 5, 3, group, kernel=Nonstationary(hidden=8)).eval()
    left = seeing.load_state_dict(siren.state_dict(), strict=False)
    assert sorted(left.missing_keys) == ["kernel.absolute.weight", "kernel.scale"]
    given = images() if lift else random_feature(group)
    assert (seeing(given).values - siren(given).values).abs().max() <= 1e-10
    upset_scale(seeing.kernel)
    assert (seeing(given).values - siren(given).values).abs().max() > 1e-3


def test_each_axis_has_its_own_scale(double: None) -> None:
    """A kernel that sees the absolute rotation is still equivariant to hues, and the other way round."""
    group = Product(SO2(4), Hue(3))
    grid = group.grid()
    model = chain(group, Nonstationary(hidden=8))
    for axis in (0, 1):
        for layer in (model[0], model[2]):
            with torch.no_grad():
                layer.kernel.scale.copy_(0.8 * torch.eye(2)[axis])
        kept, lost = grid[(grid[:, axis] == 0).nonzero().flatten()[1:]], grid[(grid[:, 1 - axis] == 0).nonzero()[1:, 0]]
        assert equivariance_error(model, images(), group, kept).worst <= 1e-10
        assert float(equivariance_error(model, images(), group, lost).relative.min()) > 1e-3


def test_the_scale_learns_and_its_prior_pulls_it_to_0(double: None) -> None:
    conv = GroupConv2d(4, 5, 3, SO2(4), kernel=Nonstationary(hidden=8, decay=0.3))
    conv(random_feature(SO2(4))).values.square().sum().backward()
    assert conv.kernel.scale.grad.abs().sum() > 0  # also at 0, where it starts
    nn.init.constant_(conv.kernel.scale, -2.0)
    conv.zero_grad()
    penalty(conv).backward()
    assert torch.allclose(penalty(conv), torch.tensor(1.2))
    assert torch.allclose(conv.kernel.scale.grad, torch.tensor([-1.2]))
    with pytest.raises(ValueError, match="decay must be a number of at least 0, got -1"):
        Nonstationary(decay=-1)


# ---------------------------------------------------------------- constrained (ACE, 2025)


@both_layers
@pytest.mark.parametrize("group", EXACT, ids=name)
def test_constrained_with_a_closed_gate_is_the_group_convolution(double: None, group: Group, lift: bool) -> None:
    kind, inputs = (LiftConv2d, 3) if lift else (GroupConv2d, 4)
    gated = kind(inputs, 5, 3, group, kernel=Constrained()).eval()
    plain = kind(inputs, 5, 3, group).eval()
    plain.kernel.load_state_dict(gated.kernel.equivariant.state_dict())
    given = images() if lift else random_feature(group)
    both, alone = gated(given).values, plain(given).values
    assert (both - alone).abs().max() > 1e-3  # it starts free
    with torch.no_grad():
        gated.kernel.gate.fill_(0.5)
    assert torch.allclose(gated(given).values, (both + alone) / 2, atol=1e-12)
    with torch.no_grad():
        gated.kernel.gate.zero_()
    assert (gated(given).values - alone).abs().max() <= 1e-10


def settled(spec: KernelSpec, wanted: float) -> tuple[float, float]:
    """Gate and multiplier after many steps, where the rest of the loss, ½(γ − wanted)², wants the gate elsewhere."""
    kernel = spec.build(1, 1, 1, Hue(3), lift=False)
    optimiser = torch.optim.SGD([kernel.gate], lr=0.1)
    for _ in range(2000):
        optimiser.zero_grad()
        ((kernel.gate - wanted).square() / 2 + penalty(kernel)).backward()
        optimiser.step()
        dual_step(kernel)
    return float(kernel.gate.detach()), float(kernel.multiplier)


@pytest.mark.parametrize("wanted", [1.0, -0.6, 0.0])
def test_the_multiplier_closes_the_gate_whatever_the_loss_wants(double: None, wanted: float) -> None:
    """λ becomes what the loss would pay for the symmetry: minus its slope at γ = 0."""
    assert settled(Constrained(rate=0.05), wanted) == pytest.approx((0.0, wanted), abs=1e-8)


@pytest.mark.parametrize(("elastic", "gate"), [(1.0, 0.5), (3.0, 0.25)])
def test_an_elastic_constraint_gives_in_where_the_loss_insists(double: None, elastic: float, gate: float) -> None:
    """The least of ½(γ − 1)² + ½·elastic·γ² is at 1/(1 + elastic), where λ = elastic·γ."""
    for sign in (1.0, -1.0):
        found = settled(Constrained(rate=0.05, elastic=elastic), sign)
        assert found == pytest.approx((sign * gate, elastic * gate), abs=1e-8)


def test_the_multiplier_is_part_of_the_state(double: None) -> None:
    conv = GroupConv2d(2, 2, 3, Hue(3), kernel=Constrained(rate=0.25))
    dual_step(conv)
    dual_step(conv)
    assert float(conv.kernel.multiplier) == 0.5
    again = GroupConv2d(2, 2, 3, Hue(3), kernel=Constrained())
    again.load_state_dict(conv.state_dict())
    assert torch.allclose(penalty(again), torch.tensor(0.5))


def test_constrained_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="elastic must be above 0"):
        Constrained(elastic=0)
    with pytest.raises(ValueError, match="rate must be a number of at least 0, got -1"):
        Constrained(rate=-1)


# ---------------------------------------------------------------- the penalty


def test_the_penalty_is_the_sum_over_kernels(double: None) -> None:
    """Also of kernels inside others; ordinary ones have none."""
    assert penalty(SmallNet(Hue(3))) == 0
    kernel = Relaxed(2, of=ResidualPathway())
    model = chain(Hue(3), kernel)
    priors = [bank.penalty() for layer in (model[0], model[2]) for bank in layer.kernel.banks]
    assert len(priors) == 4
    assert torch.allclose(penalty(model), torch.stack(priors).sum())
