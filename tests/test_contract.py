"""The same few promises for every layer: compiles, exports, trains, keeps its state, takes each precision."""

import shutil
import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from conftest import FAMILIES, SmallNet, random_feature
from vpgcnn import (
    SO2,
    Full,
    GroupBatchNorm,
    GroupConv2d,
    GroupDropout,
    GroupFeature,
    GroupLayerNorm,
    GroupPool,
    Hue,
    LiftConv2d,
    Rotations,
    SpatialPool,
    TableKernel,
    Variational,
    join,
)
from vpgcnn.layout import prefer_by_pixel


class Chain(nn.Module):
    """Image → lift → relu → layer → tensors."""

    def __init__(self, lift: LiftConv2d, layer: nn.Module) -> None:
        super().__init__()
        self.lift, self.layer = lift, layer

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        feature = self.lift(images)
        out = self.layer(feature.map(torch.relu))
        if isinstance(out, GroupFeature):
            return out.mean(), out.divergence
        return out, feature.divergence


class ByPixel(Chain):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(prefer_by_pixel(images))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = GroupConv2d(4, 4, 3, SO2(), points=4, padding=1, level=Variational)
        self.shortcut = GroupConv2d(4, 4, 1, SO2(), points=4, level=Variational)

    def forward(self, feature: GroupFeature) -> GroupFeature:
        body = self.body(feature)
        return join(body, self.shortcut(feature, elements=body.elements), origin=feature)


def _family(key: str) -> Chain:
    group, points, level = FAMILIES[key]
    common = {"points": points, "level": level, "padding": 1}
    return Chain(LiftConv2d(3, 4, 3, group, **common), GroupConv2d(4, 5, 3, group, **common))


def _after_lift(layer: nn.Module, group=Hue(3), level=Variational, width: int = 4, **kw) -> Chain:  # noqa: B008
    return Chain(LiftConv2d(3, width, 3, group, level=level, padding=1, **kw), layer)


LAYERS = {
    **{f"conv-{key}": partial(_family, key) for key in FAMILIES},
    "conv-cyclic": lambda: _after_lift(GroupConv2d(64, 64, 3, Hue(3), padding=1, level=Variational), width=64),
    "conv-separable": lambda: _after_lift(
        GroupConv2d(4, 4, 3, Hue(6), kernel=partial(TableKernel, separable=True)), Hue(6)
    ),
    "conv-stride": lambda: _after_lift(GroupConv2d(4, 4, 4, Rotations(4), stride=2, padding=1), Rotations(4)),
    "batch-norm": lambda: _after_lift(GroupBatchNorm(4)),
    "batch-norm-full": lambda: _after_lift(GroupBatchNorm(4), level=Full),
    "batch-norm-by-pixel": lambda: ByPixel(
        LiftConv2d(3, 4, 3, Hue(3), level=Variational, padding=1), GroupBatchNorm(4)
    ),
    "layer-norm": lambda: _after_lift(GroupLayerNorm(4)),
    "dropout": lambda: _after_lift(GroupDropout(0.2)),
    "max-pool": lambda: _after_lift(SpatialPool("max", 2)),
    "blur-pool": lambda: _after_lift(SpatialPool("max", 2, antialias=True), Rotations(4)),
    "group-mean": lambda: _after_lift(GroupPool("mean")),
    "group-max": lambda: _after_lift(GroupPool("max")),
    "group-flatten": lambda: _after_lift(GroupPool("flatten")),
    "residual": lambda: _after_lift(Residual(), SO2(), points=4),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


@every_layer
def test_compiles_in_one_graph(make) -> None:
    model, images = make(), torch.rand(3, 3, 8, 8)
    for mode in (True, False):
        model.train(mode)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for batch in (3, 2):  # the last batch of an epoch is often smaller
            torch.manual_seed(7)
            expected = model(images[:batch])[0]
            torch.manual_seed(7)
            out = compiled(images[:batch])[0]
            assert torch.allclose(out, expected, atol=1e-5)
            out.square().mean().backward()


@every_layer
def test_exports_with_any_batch_size(make) -> None:
    model = make().eval()
    program = torch.export.export(model, (torch.rand(3, 3, 8, 8),), dynamic_shapes=({0: Dim("batch", min=1, max=64)},))
    for batch in (1, 4, 7):
        images = torch.rand(batch, 3, 8, 8)
        assert torch.allclose(program.module()(images)[0], model(images)[0], atol=1e-5)


@every_layer
def test_every_parameter_gets_a_gradient(make) -> None:
    model = make()
    out, divergence = model(torch.rand(4, 3, 8, 8))
    ((out * torch.randn_like(out)).sum() + divergence.sum()).backward()
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


@pytest.mark.parametrize("key", ["window-hue", "window-so2", "pathwise"])
def test_autocast_trains(key: str) -> None:
    group, points, level = FAMILIES[key]
    model = SmallNet(group, points, level=level)
    with torch.autocast("cpu", torch.bfloat16):
        logits, divergence = model(torch.rand(2, 3, 8, 8))
        loss = logits.square().mean() + divergence.mean()
    loss.backward()
    assert divergence.dtype == torch.float32
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor_agrees() -> None:
    model, images = SmallNet(Hue(3), level=Variational), torch.rand(2, 3, 8, 8)
    compiled = torch.compile(model.eval(), fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # inductor's own, about torch.jit
        assert torch.allclose(compiled(images)[0], model(images)[0], atol=1e-4)


def test_a_feature_crosses_the_export_boundary() -> None:
    """A layer by itself, from feature to feature."""
    conv, feature = GroupConv2d(4, 5, 3, Hue(3), level=Variational).eval(), random_feature(Hue(3), batch=3)
    program = torch.export.export(conv, (feature,))
    assert torch.allclose(program.module()(feature).values, conv(feature).values)
