"""The same few promises for every layer: compiles, exports, trains, keeps its state, takes each precision."""

import shutil
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from support import FAMILIES, SmallNet, channels_last, random_feature
from vpgcnn import (
    SO2,
    Constrained,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupDropout,
    GroupFeature,
    GroupLayerNorm,
    GroupPool,
    Hue,
    LiftConv2d,
    Nonstationary,
    Pointwise,
    Projected,
    Relaxed,
    ReparametrizedWindow,
    ResidualPathway,
    Rotations,
    Shared,
    SpatialPool,
    Table,
    Variational,
)
from vpgcnn.levels import LevelSpec
from vpgcnn.nn import ReluDropout


class Chain(nn.Module):
    """Image → lift → relu → layer → tensors."""

    def __init__(self, lift: nn.Module, layer: nn.Module) -> None:
        super().__init__()
        self.lift, self.layer = lift, layer

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.lift(images)
        out = self.layer(feature.map(torch.relu))
        if isinstance(out, GroupFeature):
            return out.mean(), out.kl
        return out, feature.kl


class Spread(nn.Module):
    """A cheap stand-in for a lift: images mixed into four channels on a group, with or without weights."""

    def __init__(self, group: Group, *, weighted: bool, last: bool) -> None:
        super().__init__()
        self.group, self.weighted, self.last = group, weighted, last
        self.mix = nn.Parameter(torch.randn(3, 4, group.count))
        self.register_buffer("elements", group.grid(), persistent=False)

    def forward(self, images: Tensor) -> GroupFeature:
        values = torch.einsum("bchw,cog->boghw", images, self.mix)
        weights = values.mean(dim=(1, 3, 4)).softmax(dim=1) if self.weighted else None
        values = channels_last(values) if self.last else values.contiguous()
        return GroupFeature(values, self.elements, weights, self.group)


class Residual(nn.Module):
    """Two branches with a level each; the shortcut takes over the body's elements."""

    def __init__(self, level: LevelSpec = Variational()) -> None:  # noqa: B008
        super().__init__()
        self.body = GroupConv2d(4, 4, 3, SO2(4), padding=1, level=level)
        self.shortcut = GroupConv2d(4, 4, 1, SO2(4), level=Variational())

    def forward(self, feature: GroupFeature) -> GroupFeature:
        body = self.body(feature)
        return body + self.shortcut(feature, elements=body)


def _family(key: str) -> Chain:
    """A convolution with a level; the lift has one too where it does something of its own."""
    group, level = FAMILIES[key]
    first = level if key in ("window-hue", "reparametrized", "shared-o2") else Full()
    return Chain(
        LiftConv2d(3, 4, 3, group, level=first, padding=1), GroupConv2d(4, 5, 3, group, level=level, padding=1)
    )


def _after_lift(layer: nn.Module, group: Group = Hue(3), width: int = 4) -> Chain:  # noqa: B008
    return Chain(LiftConv2d(3, width, 3, group, padding=1), layer)


def _alone(layer: nn.Module, group: Group = Hue(3), *, weighted: bool = True, last: bool = False) -> Chain:  # noqa: B008
    return Chain(Spread(group, weighted=weighted, last=last), layer)


def _seeing_elements() -> GroupConv2d:
    """A convolution whose kernel sees absolute elements: it starts with a scale of 0, which has to be moved."""
    conv = GroupConv2d(4, 4, 3, SO2(4), kernel=Nonstationary())
    nn.init.ones_(conv.kernel.scale)
    return conv


LAYERS = {
    **{f"conv-{key}": partial(_family, key) for key in FAMILIES},
    "conv-cyclic": lambda: _after_lift(GroupConv2d(64, 64, 3, Hue(3), padding=1), width=64),
    "conv-separable": lambda: _alone(GroupConv2d(4, 4, 3, Hue(6), kernel=Table(separable=True)), Hue(6)),
    "conv-relaxed": lambda: _alone(GroupConv2d(4, 4, 3, SO2(4), kernel=Relaxed()), SO2(4)),
    "conv-residual-pathway": lambda: _alone(GroupConv2d(4, 4, 3, SO2(4), kernel=ResidualPathway()), SO2(4)),
    "conv-projected": lambda: _alone(GroupConv2d(4, 4, 3, Rotations(4), kernel=Projected()), Rotations(4)),
    "conv-constrained": lambda: _alone(GroupConv2d(4, 4, 3, SO2(4), kernel=Constrained()), SO2(4)),
    "conv-nonstationary": lambda: _alone(_seeing_elements(), SO2(4)),
    "conv-stride": lambda: _alone(GroupConv2d(4, 4, 4, Rotations(4), stride=2, padding=1), Rotations(4)),
    "conv-resample": lambda: _alone(GroupConv2d(4, 4, 3, SO2(4), resample=True, level=Shared()), SO2(4)),
    "conv-output": lambda: _alone(GroupConv2d(4, 4, 3, Hue(3), level=Variational(condition="output"))),
    "residual": lambda: _alone(Residual(), SO2(4)),
    "residual-reparametrized": lambda: _alone(Residual(Variational(ReparametrizedWindow())), SO2(4)),
    "batch-norm": lambda: _alone(GroupBatchNorm(4)),
    "batch-norm-full": lambda: _alone(GroupBatchNorm(4), weighted=False),
    "batch-norm-channels-last": lambda: _alone(GroupBatchNorm(4), last=True),
    "layer-norm": lambda: _alone(GroupLayerNorm(4)),
    "layer-norm-channels-last": lambda: _alone(GroupLayerNorm(4), last=True),
    "dropout": lambda: _alone(GroupDropout(0.2)),
    "relu-dropout": lambda: _alone(ReluDropout(0.2)),
    "pointwise": lambda: _alone(Pointwise(nn.SiLU())),
    "torch-activation": lambda: _alone(nn.GELU()),
    "max-pool": lambda: _alone(SpatialPool("max", 2)),
    "blur-pool": lambda: _alone(SpatialPool("max", 2, antialias=True), Rotations(4)),
    "group-mean": lambda: _alone(GroupPool("mean")),
    "group-max": lambda: _alone(GroupPool("max")),
    "group-rms": lambda: _alone(GroupPool("rms")),
    "group-flatten": lambda: _alone(GroupPool("flatten")),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
# Layers whose autograd functions are the same as another one's: tracing their backward pass again shows nothing new.
TRACED_ELSEWHERE = {
    *(f"conv-{key}" for key in ("window-rotations", "window-product", "shared-o2", "sampled-product", "ranked")),
    *(f"conv-{key}" for key in ("permuted", "exchangeable", "shared-gumbel", "separable", "resample", "output")),
    *("residual-reparametrized", "pointwise", "torch-activation", "group-mean", "group-flatten"),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize("key", LAYERS)
def test_compiles_in_one_graph(key: str) -> None:
    """Training with any batch size (the last batch of an epoch is often smaller), and evaluation."""
    model = LAYERS[key]()
    training = "eager" if key in TRACED_ELSEWHERE else "aot_eager"
    for mode, backend, batches in ((True, training, (3, 2)), (False, "eager", (3,))):
        model.train(mode)
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for batch in batches:
            images = torch.rand(batch, 3, 8, 8)
            if mode:
                torch._dynamo.mark_dynamic(images, 0)
            torch.manual_seed(7)
            expected = model(images)[0]
            torch.manual_seed(7)
            out = compiled(images)[0]
            if not (mode and isinstance(model.layer, ReluDropout)):  # which draws other numbers when not compiled
                assert torch.allclose(out, expected, atol=1e-5)
            out.square().mean().backward()


@every_layer
def test_exports_with_any_batch_size(make) -> None:
    model = make().eval()
    program = torch.export.export(model, (torch.rand(3, 3, 8, 8),), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))
    for batch in (1, 7):
        images = torch.rand(batch, 3, 8, 8)
        assert torch.allclose(program.module()(images)[0], model(images)[0], atol=1e-5)


@every_layer
def test_every_parameter_gets_a_gradient(make) -> None:
    model = make()
    out, kl = model(torch.rand(4, 3, 8, 8))
    ((out * torch.randn_like(out)).sum() + kl.sum()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().sum() > 0, key


@every_layer
def test_state_is_the_same_in_both_modes_and_loads(make) -> None:
    model, other, images = make(), make(), torch.rand(2, 3, 8, 8)
    trained = list(model.train().state_dict())
    model(images)
    assert list(model.eval().state_dict()) == trained
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.eval()(images)[0], model(images)[0])


@every_layer
@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16 autocast", "bfloat16"])
def test_precisions(make, precision: str) -> None:
    model, images = make().eval(), torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        reference = model(images)[0]
        if precision == "float64":
            out, tolerance = model.double()(images.double())[0], 1e-4
            assert out.dtype == torch.float64
        elif precision == "bfloat16":
            out, tolerance = model.bfloat16()(images.bfloat16())[0], 0.1
            assert out.dtype == torch.bfloat16
        elif precision == "bfloat16 autocast":
            with torch.autocast("cpu", torch.bfloat16):
                out, tolerance = model(images)[0], 0.05
        else:
            out, tolerance = model(images)[0], 0.0
    scale = reference.abs().max()
    assert (out.to(reference.dtype) - reference).abs().max() <= tolerance * scale


@pytest.mark.parametrize("key", ["window-hue", "window-so2", "reparametrized"])
def test_autocast_trains(key: str) -> None:
    group, level = FAMILIES[key]
    model = SmallNet(group, level=level)
    with torch.autocast("cpu", torch.bfloat16):
        prediction = model(torch.rand(2, 3, 8, 8))
        loss = prediction.logits.square().mean() + prediction.kl.mean()
    loss.backward()
    assert prediction.kl.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor_agrees() -> None:
    model, images = SmallNet(Hue(3), level=Variational()), torch.rand(2, 3, 8, 8)
    compiled = torch.compile(model.eval(), fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor's own, about torch.jit
        assert torch.allclose(compiled(images)[0], model(images)[0], atol=1e-4)


def test_a_feature_crosses_the_export_boundary() -> None:
    """A layer by itself, from feature to feature."""
    conv, feature = GroupConv2d(4, 5, 3, Hue(3), level=Variational()).eval(), random_feature(Hue(3), batch=3)
    program = torch.export.export(conv, (feature,))
    assert torch.allclose(program.module()(feature).values, conv(feature).values)
