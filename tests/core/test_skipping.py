"""Evaluation leaves out elements of weight 0: the same numbers as with all elements, and less work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from support import FAMILIES, GROUPS, Counter, SmallNet, set_theta, warm
from vpgcnn import (
    O2,
    SO2,
    Dihedral,
    Fixed,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    Product,
    Rotations,
    Shared,
    SpatialPool,
    Variational,
    fold,
    folded,
)
from vpgcnn._ops.active import Use, can_skip, uses_of
from vpgcnn.export import Deployed, exported
from vpgcnn.kernels import Harmonic, KernelSpec, Siren, Table, TableKernel
from vpgcnn.levels import InvariantEncoder, LevelSpec, VariationalLevel, WindowDistribution
from vpgcnn.levels.costs import KNOTS, bowl
from vpgcnn.measure import multiplications
from vpgcnn.nn import GroupLayerNorm, all_elements
from vpgcnn.nn.conv import _Shares

EXACT = 1e-12


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def both(model: Callable[[Tensor], Prediction], images: Tensor) -> tuple[Prediction, Prediction]:
    """The answers with elements left out, and with all of them."""
    with torch.no_grad():
        fast = model(images)
        with all_elements():
            return fast, model(images)


def assert_same(model: Callable[[Tensor], Prediction], images: Tensor, *, skips: bool = False) -> None:
    """The answers are the same; skips: and elements have been left out."""
    with patch.object(GroupFeature, "of_parts", side_effect=GroupFeature.of_parts) as made:
        fast, dense = both(model, images)
    assert made.called or not skips
    assert torch.allclose(fast.logits, dense.logits, rtol=0, atol=EXACT)
    assert list(fast.theta) == list(dense.theta)
    for one, two in zip(fast.theta.values(), dense.theta.values(), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=EXACT)


def flops(model: Callable[[Tensor], object], images: Tensor) -> int:
    with torch.no_grad(), Counter() as counter:
        model(images)
    return counter.total


class Scripted(InvariantEncoder):
    """An encoder whose answers are spread over the range by the position of an image in the batch."""

    def forward(self, feature: GroupFeature, *, relu: bool = False, keep: Tensor | None = None) -> Tensor:
        raw = super().forward(feature, relu=relu, keep=keep)
        knots = KNOTS if raw.shape[1] % KNOTS == 0 else 1
        places = torch.arange(raw.numel() // knots).view(raw.shape[1] // knots, raw.shape[0]).t()
        answers = (0.37 * places + 0.1 * self.first.in_features) % 1.3
        return 0 * raw + (answers if knots == 1 else curves(answers))


class Sensitive(InvariantEncoder):
    """An encoder whose answers are spread over the range, even for images that are much alike."""

    def forward(self, feature: GroupFeature, *, relu: bool = False, keep: Tensor | None = None) -> Tensor:
        return curves((300000 * super().forward(feature, relu=relu, keep=keep)[:, ::KNOTS]) % 1.3)


def curves(openings: Tensor) -> Tensor:
    """What an encoder answers for windows `(B, K)`, from closed ones (below 0.3) to open ones (above 1)."""
    return bowl((1.5 * openings - 0.45).clamp(0, 1))


def scattered(model: nn.Module, kind: type[InvariantEncoder] = Scripted) -> None:
    """Let the windows of images differ from each other, from closed to open."""
    for module in model.modules():
        if isinstance(module, InvariantEncoder):
            module.__class__ = kind
        if isinstance(module, VariationalLevel) and module.prior is not None:
            nn.init.zeros_(module.prior)


class Started(TorchDispatchMode):
    """Counts the operations that PyTorch is asked for."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += 1
        return function(*args, **(kwargs or {}))


class Joined(nn.Module):
    """Two residual blocks with levels in both branches, one shortcut a convolution and one the identity."""

    def __init__(
        self, group: Group, level: LevelSpec, kernel: KernelSpec | None = None, mode: str = "max", norm: str = "batch"
    ) -> None:
        super().__init__()
        width = 6
        self.lift = LiftConv2d(3, width, 3, group, level=level, kernel=kernel, padding=1)
        conv = [GroupConv2d(width, width, 3, group, level=q, kernel=kernel, padding=1) for q in (level, Full(), level)]
        self.first, self.second, self.third = conv
        self.across = GroupConv2d(width, width, 1, group, level=level, kernel=kernel)
        self.mixed = nn.Conv3d(width, width, 1)
        self.norms = nn.ModuleList(
            GroupBatchNorm(width) if norm == "batch" else GroupLayerNorm(width) for _ in range(4)
        )
        self.pool, self.group_pool = SpatialPool("max", 2, antialias=True), GroupPool(mode)
        self.head = nn.Linear(width * (group.count if mode == "flatten" else 1), 5)

    def forward(self, images: Tensor) -> Prediction:
        x = F.relu(self.norms[0](self.lift(images)))
        x = F.leaky_relu(self.norms[1](self.first(x)) + self.across(x), 0.1)
        x = self.pool(x)
        x = self.norms[2](self.second(x, elements=x)) + x.map(self.mixed)
        x = x.map(nn.SiLU())
        x = self.norms[3](self.third(x)) + x
        return Prediction(self.head(self.group_pool(x).mean(dim=(-2, -1))), x.trace)


# ---------------------------------------------------------------- the same numbers


@pytest.mark.parametrize("closed", [True, False], ids=["folded", "unfolded"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "full"])
def test_every_family(name: str, closed: bool) -> None:
    group, level = FAMILIES[name]
    images = torch.rand(7, 3, 8, 8)
    net = warm(SmallNet(group, level=level), images)
    scattered(net)
    narrows = name.startswith("window") or name == "ranked"  # the others keep some of every element, or all
    assert_same(fold(net) if closed else net, images, skips=narrows)
    assert_same(net, images[:1])


@pytest.mark.parametrize("group", GROUPS, ids=repr)
@pytest.mark.parametrize("theta", [0.01, 0.25, 0.6, 1.0])
def test_every_group_and_width(group: Group, theta: float) -> None:
    images = torch.rand(3, 3, 8, 8)
    net = warm(SmallNet(group, level=Variational(), mode="max"), images)
    set_theta(net, theta)
    assert_same(net, images)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["mean", "rms", "max", "flatten"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize(
    "group", [Hue(3), Hue(6), SO2(8), O2(3), Rotations(4), Dihedral(4), Product(Rotations(4), Hue(3))], ids=repr
)
def test_joins_norms_pools_and_layouts(group: Group, norm: str, mode: str, channels_last: bool) -> None:
    images = torch.rand(9, 3, 8, 8)
    net = warm(Joined(group, Variational(), mode=mode, norm=norm), images)
    scattered(net)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    assert_same(net, images, skips=True)
    assert_same(fold(net), images, skips=True)


@pytest.mark.parametrize("level", [Fixed(0.3), Shared(), Variational(), Variational(condition="output")], ids=repr)
@pytest.mark.parametrize(
    ("group", "kernel"),
    [
        (Rotations(4), Siren()),
        (Rotations(6), Harmonic()),
        (Dihedral(4), Siren()),
        (Hue(6), Siren()),
        (Hue(3), Table(True)),
    ],
)
def test_kernels_and_levels(group: Group, kernel: KernelSpec, level: LevelSpec) -> None:
    images = torch.rand(5, 3, 8, 8)
    lifted = replace(level, condition=None) if isinstance(level, Variational) else level
    net = warm(SmallNet(group, levels=[lifted, level, Full(), level], kernel=kernel), images)
    scattered(net)
    assert_same(net, images)
    assert_same(fold(net), images)


@pytest.mark.parametrize("theta", [1 / 6, 0.4, 0.7])
def test_the_cyclic_path_and_channels_last(theta: float) -> None:
    """64 channels on Hue(6): the cyclic algorithm computes all elements where that takes fewer products."""
    images = torch.rand(3, 3, 8, 8)
    net = warm(SmallNet(Hue(6), level=Variational(), width=64), images)
    set_theta(net, theta)
    for model in (net, fold(net)):
        assert_same(model, images)
        assert_same(model, images.contiguous(memory_format=torch.channels_last))


def test_branches_of_an_image_without_a_common_element() -> None:
    """Then the sum keeps both: all values are needed."""
    group, values = Rotations(4), torch.rand(40, 2, 4, 3, 3)
    conv = GroupConv2d(2, 2, 1, group).eval()
    one, two = torch.zeros(40, 4), torch.zeros(40, 4)
    one[:, 0], two[:, :2] = 1.0, 0.5
    two[7] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # in one part with the images that use both
    assert len(uses_of(two) or ()) == 1

    def sums() -> Tensor:
        halves = []
        for weights in (one, two):
            q = Variational().build(group, 2)(GroupFeature(values, group.grid(), None, group))
            shares = _Shares(weights, uses_of(weights) if can_skip() else None)
            halves.append(conv._weigh(conv(GroupFeature(values, group.grid(), None, group)), q, shares))
        halves[1] = replace_trace(halves[1])
        return conv(halves[0] + halves[1]).values

    with torch.no_grad():
        torch.manual_seed(0)
        fast = sums()
        with all_elements():
            torch.manual_seed(0)
            assert torch.allclose(fast, sums(), rtol=0, atol=EXACT)


def replace_trace(feature: GroupFeature) -> GroupFeature:
    """The same feature with nothing in its trace, so that it can be added to one of the same layer."""
    object.__setattr__(feature, "trace", {})
    return feature


def test_nan_is_not_left_out() -> None:
    assert uses_of(torch.tensor([[1.0, 0.0, torch.nan]])) == (Use(None, (0, 2), False),)


# ---------------------------------------------------------------- reading the values


def features() -> tuple[nn.Module, GroupFeature, Tensor]:
    """A net with narrow windows, its feature of which elements are left out, and the values of all of them."""
    images = torch.rand(4, 3, 8, 8)
    net = warm(SmallNet(SO2(8), level=Variational(), pool=False), images)
    set_theta(net, 0.25)
    with torch.no_grad():
        fast = net.feature(images)
        with all_elements():
            dense = net.feature(images).values
    return net, fast, dense


def test_values_that_were_left_out_are_computed_when_read() -> None:
    _, feature, dense = features()
    assert feature.parts is not None
    assert feature.parts[0].values.shape[2] == 3
    assert (feature.shape, len(feature), feature.dtype) == (dense.shape, 4, torch.float64)
    assert torch.allclose(feature.values, dense, rtol=0, atol=EXACT)
    assert feature.parts is None  # an ordinary feature from here on


def test_what_a_reader_writes_is_seen_by_layers() -> None:
    _, feature, _ = features()
    before = feature.mean()
    feature.values.mul_(2)
    assert torch.allclose(feature.mean(), 2 * before)


@pytest.mark.parametrize(
    "use",
    [
        lambda f: f[1:3].values,
        lambda f: copy.deepcopy(f).values,
        lambda f: pickle.loads(pickle.dumps(f)).values,
        lambda f: f.to(torch.float32).values,
        lambda f: replace(f, weights=None).mean(),
        lambda f: f.map(lambda values: values - values.mean(dim=2, keepdim=True)).mean(),
        lambda f: f.map(nn.InstanceNorm3d(6)).mean(),
        lambda f: torch.clamp(f, min=torch.arange(8.0)[:, None, None] / 8).mean(),
        lambda f: F.relu(f, inplace=True).mean(),
        lambda f: torch.stack([one.values for one in f]),
        lambda f: f.detach().mean(),
        lambda f: f.kl,
        lambda f: (f + f).mean(),
        lambda f: f.coverage(),
    ],
)
def test_other_uses_of_a_feature(use: Callable[[GroupFeature], Tensor]) -> None:
    _, feature, dense = features()
    weights = feature.weights
    ordinary = GroupFeature(dense, feature.elements, weights, feature.group, feature.trace, feature.span)
    assert feature.parts is not None
    assert torch.allclose(use(feature), use(ordinary), rtol=0, atol=EXACT)


def test_values_are_refused_after_the_layer_has_changed() -> None:
    net, feature, _ = features()
    with torch.no_grad():
        net.convs[2].bias += 1
    with pytest.raises(RuntimeError, match="parameters or its input have changed"):
        _ = feature.values


def _reload(lift: LiftConv2d, images: Tensor) -> None:
    lift.load_state_dict({key: 2 * value for key, value in lift.state_dict().items()}, assign=True)


def _edit(lift: LiftConv2d, images: Tensor) -> None:
    for parameter in lift.parameters():
        parameter.data.mul_(2)


def test_values_of_elements_in_use_are_those_that_were_computed() -> None:
    """Images in a buffer that is used again, and parameters that are replaced, are noticed; an edit through `.data`
    cannot be, and then only elements of weight 0 are computed anew."""
    lift = LiftConv2d(1, 4, 3, Rotations(4), level=Fixed(0.3)).eval()
    images = torch.rand(2, 1, 8, 8)
    for change in (lambda _, images: images.zero_(), _reload):
        with torch.no_grad():
            given = images.clone()
            feature = lift(given)
            change(lift, given)
            with pytest.raises(RuntimeError, match="parameters or its input have changed"):
                _ = feature.values
    lift = LiftConv2d(1, 4, 3, Rotations(4), level=Fixed(0.3)).eval()
    with torch.no_grad():
        with all_elements():
            expected = lift(images).values
        feature = lift(images)
        assert feature.parts is not None
        _edit(lift, images)
        used = feature.weights[0] > 0
        assert torch.allclose(feature.values[:, :, used], expected[:, :, used], atol=1e-6)


# ---------------------------------------------------------------- when, and what it saves


def test_narrow_windows_take_few_products() -> None:
    images = torch.rand(4, 3, 8, 8)
    net = fold(warm(SmallNet(SO2(8), level=Fixed(0.25)), images))
    fast = flops(net, images)
    with all_elements():
        assert fast < 0.2 * flops(net, images)


def test_mixed_batches_are_computed_in_parts() -> None:
    images = torch.rand(8, 3, 8, 8)
    net = fold(warm(SmallNet(SO2(8), level=Variational()), images))
    wide = bowl((torch.tensor([[1.0], [0.25]]).repeat(4, 1) - 0.03) / 0.97)
    with patch.object(InvariantEncoder, "forward", lambda *_, **__: wide):
        fast = flops(net, images)
        assert_same(net, images)
        with all_elements():
            assert fast < 0.65 * flops(net, images)


def test_few_images_do_not_get_a_part_of_their_own() -> None:
    weights = torch.zeros(100, 8)
    weights[:, :3], weights[0, :1] = 1 / 3, 1
    weights[0, 1:] = 0
    assert uses_of(weights) == (Use(None, (0, 1, 2), False),)
    assert uses_of(torch.full((3, 4), 0.25)) is None


@pytest.mark.parametrize("level", [Fixed(0.25), Fixed(1.0), Full()], ids=repr)
def test_counted_multiplications_are_those_that_are_done(level: LevelSpec) -> None:
    images = torch.rand(4, 3, 8, 8)
    net = fold(warm(SmallNet(SO2(8), level=level), images))
    cost = multiplications(net, images)
    assert cost.used.sum() == flops(net.feature, images) / 2  # without the pool and the head
    with all_elements():
        assert 4 * cost.whole == flops(net.feature, images) / 2
    assert cost.share.max() <= 1


def test_the_cost_of_an_image_follows_its_window() -> None:
    images = torch.rand(6, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Variational()), images)
    scattered(net)
    cost = multiplications(net, images)
    wide = torch.stack([q.theta[:, 0] for q in net(images).trace.values()]).gt(1 / 3).double() * 2 + 1
    inner, lift = 6 * 6 * 9 * 64, 3 * 6 * 9 * 64 * 3  # the lift's level sees all of its output
    assert torch.equal(cost.used, lift + inner * (wide[1:] * wide[:-1]).sum(dim=0))
    assert cost.whole == lift + 3 * 9 * inner


@pytest.mark.parametrize("closed", [Fixed(1 / 3), Shared(), Variational()], ids=repr)
def test_a_closed_network_does_the_work_of_an_ordinary_one(closed: LevelSpec) -> None:
    images = torch.rand(2, 3, 8, 8)
    net, ordinary = (warm(SmallNet(group, level=q), images) for group, q in ((Hue(3), closed), (Rotations(1), Full())))
    set_theta(net, 0.0)
    for module in net.modules():
        if hasattr(module, "raw"):
            nn.init.zeros_(module.raw)
    lift = 2 * 3 * 6 * 9 * 64 * 2 * (0 if closed != Variational() else 2)  # its level sees all of the output
    encoders = [module for module in net.modules() if isinstance(module, InvariantEncoder)]
    small = 2 * 2 * 3 * sum(number.numel() for encoder in encoders for number in encoder.parameters())
    assert flops(fold(net), images) <= flops(ordinary, images) + lift + small
    assert_same(net, images)


@pytest.mark.parametrize("images", [1, 64])
def test_a_closed_level_adds_few_operations_to_a_layer(images: int) -> None:
    """Starting an operation takes longer than the arithmetic of a level: small networks wait for little else."""
    given, counts = torch.rand(images, 3, 8, 8), []
    for group, level in ((Hue(3), Variational()), (Rotations(1), Full())):
        net = warm(Joined(group, level), given)
        set_theta(net, 0.0)
        fold(net)
        with torch.no_grad(), Started() as started:
            net(given)
        counts.append(started.total)
        assert_same(net, given)
    assert counts[0] <= counts[1] + 45 * 4


@pytest.mark.parametrize("name", ["window-hue", "window-so2", "shared-o2"])
def test_gradients_are_those_of_all_elements(name: str) -> None:
    group, level = FAMILIES[name]
    images = torch.rand(3, 3, 8, 8)
    net = warm(SmallNet(group, level=level), images)
    set_theta(net, 0.3)
    grads = []
    for context in (torch.enable_grad(), all_elements()):
        net.zero_grad()
        with context:
            net(images).logits.sum().backward()
        grads.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
    for one, two in zip(*grads, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_programs_that_are_traced_do_not_depend_on_the_example() -> None:
    net = warm(SmallNet(Hue(3), levels=[Full(), Full(), Variational(), Full()]), torch.rand(6, 3, 8, 8))
    scattered(net, Sensitive)

    class Logits(nn.Sequential):
        def forward(self, images: Tensor) -> Tensor:
            return self[0](images).logits

    images = torch.rand(6, 3, 8, 8)
    assert_same(net, images, skips=True)
    with torch.no_grad(), all_elements():
        expected = net(images).logits
    with torch.no_grad():
        traced = torch.jit.trace(Logits(net).eval(), torch.rand(6, 3, 8, 8), check_trace=False)
        program = torch.export.export(Logits(net).eval(), (torch.rand(6, 3, 8, 8),), strict=False)
        mapped = torch.vmap(lambda image: net(image[None]).logits[0])(images)
    for answer in (traced(images), program.module()(images), mapped):
        assert torch.allclose(answer, expected, atol=1e-9)


@pytest.mark.parametrize("level", [Fixed(1 / 3), Variational()], ids=repr)
def test_compiled_networks_are_one_graph_without_gradients_too(level: LevelSpec) -> None:
    net, images = warm(SmallNet(Hue(3), level=level), torch.rand(4, 3, 8, 8)), torch.rand(4, 3, 8, 8)
    scattered(net)
    for model in (net, fold(net, images[:1])):
        torch.compiler.reset()
        with torch.no_grad():
            compiled = torch.compile(lambda x, of=model: of(x).logits, backend="eager", fullgraph=True)(images)
            assert torch.allclose(compiled, model(images).logits, rtol=0, atol=EXACT)


# ---------------------------------------------------------------- folding


def test_folding_remembers_what_levels_keep_that_are_the_same_for_all_images() -> None:
    images = torch.rand(2, 3, 8, 8)
    net = warm(SmallNet(SO2(8), levels=[Fixed(0.25), Shared(), Variational(), Full()]), images)
    fold(net)
    assert net.lift.kept == Use(None, (0, 1, 7), False)
    assert net.convs[0].kept is None  # Shared starts wide
    with torch.no_grad():
        net.convs[0].level.raw.fill_(0.03)
    with folded(net):
        assert net.convs[0].kept == Use(None, (0,), True)
        assert_same(net, images)
    assert net.convs[0].kept is None
    net.train()
    assert net.lift.kept is None


@pytest.mark.parametrize("name", ["window-hue", "window-so2", "window-product"])
@pytest.mark.parametrize("theta", [0.0, 0.3, 1.0])
def test_folded_encoders_decide_the_same(name: str, theta: float) -> None:
    """Levels after narrow ones see only the elements in use; they find what the encoder as it is defined finds."""
    group, level = FAMILIES[name]
    images = torch.rand(4, 3, 8, 8)
    net = warm(SmallNet(group, levels=[level, Fixed(max(theta, 0.01)), level, level]), images)
    encoders = [module for module in net.modules() if isinstance(module, InvariantEncoder)]
    for encoder in encoders:
        nn.init.normal_(encoder.linear.weight)
        encoder.standardise.running_mean.normal_()
        encoder.register_forward_hook(lambda *given: raw.append(given[2]))
    raw: list[Tensor] = []
    with torch.no_grad(), all_elements():
        net(images)
    with torch.no_grad(), folded(net):
        assert all(encoder.last_weight is not None for encoder in encoders)
        net(images)
    expected, found = raw[: len(encoders)], raw[len(encoders) :]
    assert all(encoder.last_weight is None for encoder in encoders)
    assert min(float(each.std(dim=0).max()) for each in expected) > 1e-4
    for one, two in zip(expected, found, strict=True):
        assert torch.allclose(one, two, rtol=1e-11, atol=1e-11)
    fold(net)
    net.train()
    assert all(encoder.last_weight is None for encoder in encoders)


@pytest.mark.parametrize("group", [Hue(3), Rotations(4), SO2(8), O2(4), Product(SO2(4), Hue(3))], ids=str)
def test_windows_at_an_end_are_known_without_their_weights(group: Group) -> None:
    """Closed and open windows are recognised by θ; hardly wider or narrower ones are not."""
    axes, grid = len(group.axes), group.grid()
    low = 1 / torch.tensor(group.counts)
    for theta in (low / 2, low, low * 1.01, 0.5 * (low + 1), torch.ones(axes) * 0.999, torch.ones(axes)):
        q = WindowDistribution(group, theta.expand(3, axes))
        weights = q.weights(grid)
        one = torch.zeros_like(weights)
        one[:, 0] = 1
        closed = bool(torch.allclose(weights, one, rtol=0, atol=EXACT))
        open_ = bool((theta == 1).all())
        assert q.end() == ("closed" if closed else "open" if open_ else None)
        assert open_ == bool(torch.allclose(weights, torch.full_like(weights, 1 / len(grid)), rtol=0, atol=EXACT))
    mixed = torch.cat([low[None], torch.ones(1, axes)])
    assert WindowDistribution(group, mixed).end() is None
    assert WindowDistribution(group, torch.full((2, axes), torch.nan), validate=False).end() is None
    for end in (low, torch.ones(axes)):
        unknown = torch.stack([end, torch.full((axes,), torch.nan)])
        assert WindowDistribution(group, unknown, validate=False).end() is None
        assert WindowDistribution(group, unknown.flip(0), validate=False).end() is None


def test_a_kernel_that_convolves_in_its_own_way_is_given_all_elements() -> None:
    class Loud(TableKernel):
        def convolve(self, values: Tensor, *args: object, **kwargs: object) -> Tensor:
            assert values.shape[2] in (1, 3)
            return super().convolve(values, *args, **kwargs)  # type: ignore[arg-type]

    images = torch.rand(2, 3, 8, 8)
    net = warm(SmallNet(Hue(3), level=Fixed(1 / 3)), images)
    for conv in (net.lift, *net.convs):
        conv.kernel.__class__ = Loud
    assert not net.lift.kernel.can_skip
    with torch.no_grad():
        assert net.feature(images).parts is None


@pytest.mark.parametrize("level", [Fixed(1 / 3), Shared()], ids=repr)
def test_closed_levels_export_as_an_ordinary_network(level: LevelSpec) -> None:
    """Kernels of the exported program have no elements, and it takes as many products as a network without a group."""
    images = torch.rand(3, 3, 8, 8)
    net, plain = (warm(SmallNet(group, level=q), images) for group, q in ((Hue(3), level), (Rotations(1), Full())))
    for module in net.modules():
        if hasattr(module, "raw"):
            nn.init.zeros_(module.raw)
    with torch.no_grad(), all_elements():
        expected = net(images).logits
    made = Deployed(net, images[:1])
    assert [conv.only.shape for conv in net.convs] == [(6, 6, 3, 3)] * 3
    assert [conv.folded for conv in net.convs] == [None] * 3
    program = exported(made, 3, 8)
    with torch.no_grad():
        assert torch.allclose(program.module()(images)[0], expected, rtol=0, atol=EXACT)
        assert torch.allclose(made(images)[0], expected, rtol=0, atol=EXACT)
    small = exported(Deployed(plain, images[:1]), 3, 8)

    def convolved(of: torch.export.ExportedProgram) -> list[tuple[int, ...]]:
        found = [node for node in of.graph.nodes if "conv2d" in str(node.target)]
        return [tuple(node.args[1].meta["val"].shape) for node in found]

    assert convolved(program) == convolved(small)


@pytest.mark.parametrize("name", ["shared-o2", "sampled-product", "shared-gumbel", "window-so2"])
def test_folding_with_an_example(name: str) -> None:
    group, level = FAMILIES[name]
    images = torch.rand(5, 3, 8, 8)
    for levels in ([level] * 4, [Fixed(0.2), Full(), Fixed(0.2), Variational()]):
        net = warm(SmallNet(group, levels=levels), images)
        scattered(net)
        for module in net.modules():
            if hasattr(module, "raw"):
                nn.init.constant_(module.raw, 0.3)
        with torch.no_grad(), all_elements():
            expected = net(images).logits
        with torch.no_grad():
            assert torch.allclose(fold(net, images[:1])(images).logits, expected, rtol=0, atol=EXACT)
        with all_elements():
            assert torch.allclose(net(images).logits, expected, rtol=0, atol=EXACT)
        assert torch.allclose(net(images).logits, expected, rtol=0, atol=EXACT)  # with gradients: all elements
        program = exported(Deployed(net, images[:1]), 3, 8)
        assert torch.allclose(program.module()(images)[0], expected, rtol=0, atol=EXACT)
