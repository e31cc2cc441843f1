"""Converted networks whose answers are maps: segmentation, pyramids, detection heads."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from support import vary_theta
from vpgcnn import Dihedral, Elbo, Full, Hue, Prediction, Product, Rotations, Shared, Variational, Window, conversion
from vpgcnn.conversion import Converted, Directions, MixedConv2d, Outputs
from vpgcnn.errors import UserError
from vpgcnn.export import Deployed, exported, onnx_bytes
from vpgcnn.groups import Group

convert = partial(conversion.convert, mix="pointwise")
GROUPS = [Hue(3), Rotations(4), Rotations(2), Dihedral(1), Dihedral(4), Product(Rotations(4), Hue(3))]
TURNING = [Rotations(4), Dihedral(1), Dihedral(4)]


class UNet(nn.Module):
    """Strides down, transposed convolutions or interpolation up, with skips; sizes need not be even."""

    def __init__(self, classes: int = 3, up: str = "transposed", width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.down1, self.down2 = (nn.Conv2d(width, width, 3, 2, 1) for _ in range(2))
        wider = [nn.ConvTranspose2d(width, width, 2, 2) for _ in range(2)]
        self.ups = nn.ModuleList(wider) if up == "transposed" else None
        self.join1, self.join2 = (nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(2))
        self.head = nn.Conv2d(width, classes, 1)

    def larger(self, x: Tensor, like: Tensor, number: int) -> Tensor:
        if self.ups is None:
            return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)
        x = self.ups[number](x)
        return F.pad(x[..., : like.shape[-2], : like.shape[-1]], [0, max(0, like.shape[-1] - x.shape[-1])] * 2)

    def forward(self, x: Tensor) -> Tensor:
        one = self.norm(self.stem(x)).relu_()
        two = self.down1(one).relu()
        three = self.down2(two).relu()
        two = self.join1(torch.cat([self.larger(three, two, 0), two], dim=1)).relu()
        return self.head(self.join2(torch.cat([self.larger(two, one, 1), one], dim=1)).relu())


class Strided(nn.Module):
    """Fully convolutional, with an answer that is smaller than the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 5, 3, 2, 1), nn.ReLU())
        self.head = nn.Conv2d(5, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def pixels(size: int | tuple[int, int] = 13, count: int = 2) -> Tensor:
    height, width = (size, size) if isinstance(size, int) else size
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stirred(net: Converted) -> Converted:
    torch.manual_seed(1)
    for part in net.modules():
        if isinstance(part, MixedConv2d):
            for cross in part.cross:
                nn.init.normal_(cross.weight, std=0.3)
    return net


def made(plain: type[nn.Module] | Any, *args: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return plain(*args, **options).double().eval()


def matrices(group: Group) -> list[tuple[Tensor, Tensor]]:
    """The elements of a group, and what they do to points (x right, y up)."""
    grid = group.grid(dtype=torch.float64)
    return list(zip(grid, group.plane(grid).round(), strict=True))


def moved(maps: Tensor, matrix: Tensor) -> Tensor:
    """Maps moved by a quarter turn or mirror, pixel by pixel: the answer at p is what was at A⁻¹p."""
    middle = (maps.shape[-1] - 1) / 2
    line = torch.arange(maps.shape[-1], dtype=matrix.dtype) - middle
    y, x = torch.meshgrid(-line, line, indexing="ij")
    column, row = matrix.T @ torch.stack([x.flatten(), y.flatten()])
    return maps[..., (middle - row).round().long(), (column + middle).round().long()].view_as(maps)


# ---------------------------------------------------------------- one map


@pytest.mark.parametrize(
    ("size", "dtype", "tolerance"),
    [(12, torch.float32, 1e-5), (12, torch.float64, 1e-10), (13, torch.float64, 1e-10)],
    ids=["even, single", "even", "odd"],
)
@pytest.mark.parametrize("plain", [UNet, partial(UNet, up="interpolate"), Strided])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_a_map_moves_with_the_image(group: Group, plain: Any, size: int, dtype: torch.dtype, tolerance: float) -> None:
    """At every size, stride and decoder; and before training the answers are those of the original."""
    original, images = made(plain).to(dtype), pixels(size).to(dtype)
    net = stirred(convert(original, group, level=Full(), example=images)).eval()
    with torch.no_grad():
        expected = original(images)
        closed = convert(original, group, example=images).eval()(images)
        assert type(closed) is Prediction
        assert torch.allclose(closed.logits, expected, atol=tolerance)
        answer = net(images).logits
        assert float((answer - expected).abs().max()) > 1e-2  # the other views are seen
        for u, matrix in matrices(group)[1:6]:
            found = net(group.transform(images, u.to(dtype))).logits
            assert float((found - moved(answer, matrix)).abs().max()) <= tolerance * float(answer.abs().max())


@pytest.mark.parametrize("group", [Hue(3), Rotations(2), Dihedral(2)], ids=str)
def test_maps_need_not_be_square(group: Group) -> None:
    images = pixels((10, 14))
    net = stirred(convert(made(UNet), group, level=Full(), example=images)).eval()
    with torch.no_grad():
        answer = net(images).logits
        turned = images.roll(1, 1) if group == Hue(3) else images.flip(-1, -2)
        expected = answer if group == Hue(3) else answer.flip(-1, -2)
        assert torch.allclose(net(turned).logits, expected, atol=1e-10)


def test_each_image_has_its_own_window() -> None:
    """Maps are averaged over the views of each image by its θ: by the definition."""
    group, images = Rotations(4), pixels(count=3) * torch.tensor([0.2, 1.0, 5.0]).view(3, 1, 1, 1)
    net = convert(made(UNet), group, level=Variational(Window(initial=0.6)), mix="none", example=images).eval()
    vary_theta(net, 1.0)
    with torch.no_grad():
        answer = net(images)
        weights = answer.trace["join2"].weights(group.grid(dtype=torch.float64))
        assert float(weights[:, 1].std()) > 1e-3  # images differ
        rows = []
        for (u, matrix), weight in zip(matrices(group), weights.unbind(1), strict=True):
            seen = made(UNet)(group.transform(images, group.inverse(u)))
            rows.append(weight[:, None, None, None] * moved(seen, matrix))
        assert torch.allclose(answer.logits, sum(rows), atol=1e-6)  # type: ignore[arg-type]


# ---------------------------------------------------------------- several outputs


class Pyramid(nn.Module):
    """Maps of three sizes, from a shared head; in a container, beside numbers, constants and a vector."""

    def __init__(self, wrap: Any = dict) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(3 if number == 0 else 4, 4, 3, 2, 1) for number in range(3))
        self.head, self.wrap, self.fc = nn.Conv2d(4, 2, 3, padding=1), wrap, nn.Linear(4, 5)
        self.register_buffer("anchors", torch.rand(2, 4))

    def forward(self, x: Tensor) -> Any:
        maps = []
        for stage in self.stages:
            x = stage(x).relu()
            maps.append(self.head(x))
        return self.wrap({"maps": maps, "anchors": self.anchors, "stride": 2, "class": self.fc(x.mean(dim=(2, 3)))})


class Named(NamedTuple):
    maps: Any
    rest: Any


@dataclass
class Both:
    maps: Any
    rest: Any
    none: None = None


CONTAINERS: dict[str, Any] = {
    "dict": dict,
    "ordered": OrderedDict,
    "tuple": lambda found: (found["maps"], found),
    "named": lambda found: Named(found["maps"], found),
    "dataclass": lambda found: Both(found["maps"], found),
}


def tensors(output: Any) -> list[Tensor]:
    """All tensors of an answer, by a way of their own."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Both):
        output = [output.maps, output.rest]
    if isinstance(output, dict):
        output = list(output.values())
    return [found for part in output for found in tensors(part)] if isinstance(output, list | tuple) else []


@pytest.mark.parametrize("wrap", CONTAINERS.values(), ids=CONTAINERS.keys())
@pytest.mark.parametrize("group", [Hue(3), Dihedral(4)], ids=str)
def test_a_pyramid_comes_back_as_it_was_returned(group: Group, wrap: Any) -> None:
    plain = made(Pyramid, wrap)
    net = stirred(convert(plain, group, level=Full(), outputs="map", example=pixels())).eval()
    closed = convert(plain, group, outputs="map", example=pixels()).eval()
    with torch.no_grad():
        expected, start = plain(pixels()), closed(pixels())
        assert isinstance(start, Outputs)
        assert type(start.outputs) is type(expected)
        assert start.logits is tensors(start.outputs)[0]
        assert list(start.trace) == ["stages.0"]  # the last one that all outputs depend on
        for one, two in zip(tensors(start.outputs), tensors(expected), strict=True):
            assert type(one) is Tensor
            assert torch.allclose(one, two, atol=1e-10)
        answer = tensors(net(pixels()).outputs)
        for u, matrix in matrices(group):
            found = tensors(net(group.transform(pixels(), u)).outputs)
            for one, two in zip(found, answer, strict=True):
                assert torch.allclose(one, moved(two, matrix) if two.dim() == 4 else two, atol=1e-9)
        assert sum(found is net.network.anchors for found in answer) == 1  # a constant is left alone


def test_several_maps_are_averaged_under_one_window() -> None:
    """A level that decides for one output decides for all: the window is that of the image."""
    level = Shared(Window(initial=0.6))
    net = convert(made(Pyramid), Hue(3), level=level, levels="stages.2", mix="none", example=pixels()).eval()
    with torch.no_grad():
        answer = net(pixels())
        weights = answer.trace["stages.2"].weights(Hue(3).grid(dtype=torch.float64))
        seen = [tensors(made(Pyramid)(pixels().roll(-shift, 1))) for shift in range(3)]
        for number, found in enumerate(tensors(answer.outputs)):
            parts = [each[number] * weights[0, shift] for shift, each in enumerate(seen)]
            assert torch.allclose(found, sum(parts), atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("levels", ["stages.0", "stages.2"])
def test_views_that_do_not_count_are_left_out_of_all_outputs(levels: str) -> None:
    """In evaluation without gradients, against the same with gradients, where every view is run."""
    images = pixels(count=4) * torch.tensor([3.0, 0.1, 6.0, 1.0]).view(4, 1, 1, 1)
    for level in (None, Shared(Window(initial=0.4)), Variational(Window(initial=0.45), explore=0.0)):
        first = "first" if levels == "stages.0" else levels
        net = convert(made(Pyramid), Hue(3), level=level, levels=first, mix="none", example=images).eval()
        net.decides_first = first == "first"
        if isinstance(level, Variational):
            torch.manual_seed(0)
            vary_theta(net, 1.0)
            used = net(images).trace[levels].weights(Hue(3).grid()) > 0
            assert levels == "stages.2" or len(used.unique(dim=0)) > 1  # some images need views that others do not
        whole = net(images)
        with torch.no_grad():
            part = net(images)
        assert list(part.trace) == [levels]
        for one, two in zip(tensors(part.outputs), tensors(whole.outputs), strict=True):
            assert one.shape == two.shape
            assert torch.allclose(one, two.detach(), atol=1e-7)


class Backbone(nn.Module):
    """A backbone with maps of two sizes, a neck and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.neck, self.head = Stages(), nn.Conv2d(9, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        larger = F.interpolate(found["small"], found["large"].shape[-2:])
        return self.head(self.neck(torch.cat([larger, found["large"]], dim=1)).relu())


class Stages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 5, 3, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        large = self.large(x).relu()
        return {"large": large, "small": self.small(large).relu()}


@pytest.mark.parametrize("group", [Hue(3), Rotations(4)], ids=str)
def test_a_backbone_ends_with_maps_that_move_and_the_rest_is_ordinary(group: Group) -> None:
    plain = made(Backbone)
    closed = convert(plain, group, until="body", example=pixels()).eval()
    net = stirred(convert(plain, group, until="body", level=Full(), example=pixels())).eval()
    assert isinstance(net.network.body.small, MixedConv2d)
    assert type(net.network.neck) is nn.Conv2d
    seen: list[dict[str, Tensor]] = []
    net.network.body.register_forward_hook(lambda _, __, out: seen.append(dict(out)))
    with torch.no_grad():
        answer = closed(pixels())
        assert torch.allclose(answer.logits, plain(pixels()), atol=1e-10)
        assert list(answer.trace) == ["body.small"]
        for u, matrix in matrices(group):
            seen.clear()
            one, two = net(pixels()), net(group.transform(pixels(), u))
            for name, maps in seen[0].items():
                expected = moved(maps.as_subclass(Tensor), matrix)
                assert torch.allclose(seen[1][name].as_subclass(Tensor), expected, atol=1e-9)
            if group == Hue(3):
                assert torch.allclose(one.logits, two.logits, atol=1e-9)


def test_gradients_reach_levels_through_checkpoints() -> None:
    """The level is inside of a reentrant checkpoint, and the first output has no gradient of its own."""

    class Recomputed(Pyramid):
        mode = False

        def __init__(self) -> None:
            super().__init__()
            self.beside = nn.Conv2d(3, 2, 3).requires_grad_(requires_grad=False)

        def forward(self, x: Tensor) -> Any:
            one = self.stages[0](x).relu()
            two = checkpoint(self.stages[1], one, use_reentrant=True) if self.mode else self.stages[1](one)
            return {"early": self.beside(x), "late": self.head(two.relu())}

    level = Variational(Window(initial=0.5), explore=0.0)
    net = convert(made(Recomputed), Hue(3), level=level, levels="stages.1", mix="none", example=pixels()).train()
    vary_theta(net, 1.0)
    found = []
    for mode in (False, True):
        own = copy.deepcopy(net)
        own.network.mode = mode
        answer = own(pixels())
        loss = answer.outputs["early"].square().mean() + answer.outputs["late"].mean()
        Elbo.around(loss, answer).total(0.3).backward()
        found.append({name: each.grad for name, each in own.named_parameters() if each.grad is not None})
    assert found[0].keys() == found[1].keys()
    assert any("level" in name and bool(grad.any()) for name, grad in found[0].items())
    for name, grad in found[0].items():
        assert torch.allclose(found[1][name], grad, atol=1e-9, rtol=1e-5), name


# ---------------------------------------------------------------- channels with a direction


class Detector(nn.Module):
    """Scores and boxes at every place, as maps."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())
        self.scores, self.boxes = nn.Conv2d(6, 2, 1), nn.Conv2d(6, 9, 3, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x)
        return {"scores": self.scores(x), "boxes": self.boxes(x)}


WAYS = Directions(vectors=((0, 1),), sizes=((2, 3),), sides=((4, 5, 6, 7),))  # channel 8 is a scalar


def moved_boxes(maps: Tensor, matrix: Tensor) -> Tensor:
    """By geometry: a box at each place, from its channels to corners, moved, and back."""
    flip = torch.diag(torch.tensor([1.0, -1.0], dtype=matrix.dtype))
    image = flip @ matrix @ flip  # the same with y down
    vector, size, sides, rest = maps[:, :2], maps[:, 2:4], maps[:, 4:8], maps[:, 8:]
    vector = torch.einsum("ij,bjhw->bihw", image, vector)
    size = torch.einsum("ij,bjhw->bihw", image.abs(), size)
    corners = [torch.stack([-sides[:, 0], -sides[:, 1]], dim=1), torch.stack([sides[:, 2], sides[:, 3]], dim=1)]
    one, two = (torch.einsum("ij,bjhw->bihw", image, corner) for corner in corners)
    # A signed permutation puts corners on corners; the sign of each coordinate tells which side it was.
    signs = image.sum(dim=1)
    low = torch.where(signs.view(2, 1, 1) > 0, one, two)
    high = torch.where(signs.view(2, 1, 1) > 0, two, one)
    return moved(torch.cat([vector, size, -low, high, rest], dim=1), matrix)


@pytest.mark.parametrize("group", [*TURNING, Rotations(2), Product(Rotations(4), Hue(3))], ids=str)
def test_boxes_turn_with_the_image(group: Group) -> None:
    outputs: dict[str, Any] = {"scores": "map", "boxes": WAYS}
    plain = made(Detector)
    net = stirred(convert(plain, group, level=Full(), outputs=outputs, example=pixels())).eval()
    closed = convert(plain, group, outputs=outputs, example=pixels()).eval()
    with torch.no_grad():
        assert torch.allclose(closed(pixels()).outputs["boxes"], plain(pixels())["boxes"], atol=1e-10)
        assert list(closed(pixels()).trace) == ["body.2"]  # not the box head, on which the scores do not depend
        answer = net(pixels()).outputs
        for u, matrix in matrices(group):
            found = net(group.transform(pixels(), u)).outputs
            assert torch.allclose(found["scores"], moved(answer["scores"], matrix), atol=1e-9)
            assert torch.allclose(found["boxes"], moved_boxes(answer["boxes"], matrix), atol=1e-9)


def test_a_box_is_where_the_object_is() -> None:
    """In numbers: an object 2 pixels to the right and 1 down, seen a quarter turn counter-clockwise later."""
    maps = torch.tensor([2.0, 1.0, 5.0, 3.0, 1.0, 2.0, 3.0, 4.0, 9.0]).view(1, 9, 1, 1)
    quarter = ((0, -1), (1, 0))
    # (2, 1) turns to (1, −2); 5×3 to 3×5; top becomes left, right becomes top, bottom right, left bottom.
    expected = [1.0, -2.0, 3.0, 5.0, 2.0, 3.0, 4.0, 1.0, 9.0]
    assert WAYS.moved(maps, quarter).flatten().tolist() == expected
    mirror = ((-1, 0), (0, 1))
    assert WAYS.moved(maps, mirror).flatten().tolist() == [-2.0, 1.0, 5.0, 3.0, 3.0, 2.0, 1.0, 4.0, 9.0]


def test_a_map_may_have_no_channels() -> None:
    class Depth(Strided):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, 0]

    net = stirred(convert(made(Depth), Rotations(4), level=Full(), outputs="map", example=pixels(25))).eval()
    with torch.no_grad():
        one, two = net(pixels(25)).logits, net(pixels(25).rot90(1, (2, 3))).logits
        assert torch.allclose(two, one.rot90(1, (1, 2)), atol=1e-10)


# ---------------------------------------------------------------- refusals


class Answers(nn.Module):
    """Answers with whatever a function makes of a map."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.conv, self.make = nn.Conv2d(3, 4, 3, padding=1), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.conv(x))


REFUSALS: list[tuple[Any, Any, str]] = [
    (lambda x: {"a": x, "b": x}, None, "the output 'a', B×4×13×13, may move with the image: say how by outputs="),
    (lambda x: x.flatten(2), None, "the output, B×4×169, may move with the image"),
    (lambda x: x, {"boxes": "map"}, "returns nothing called 'boxes': choose from ''"),
    (lambda x: (x, x), {"0": "map", "2": "map"}, "returns nothing called '2': choose from '0', '1'"),
    (lambda x: (x, x), {"0": "map"}, "the output '1', B×4×13×13, may move"),
    (lambda x: x, "maps", 'outputs are "map", "invariant" or Directions'),
    (lambda x: x, Directions(sizes=((3, 4),)), "has 4 channels, and no channel 4"),
    (lambda x: x.mean(dim=(2, 3)), Directions(sizes=((0, 1),)), "has the shape B×4: directions are those of"),
    (lambda x: x[:, :, None], "map", "which is no map"),
    (lambda x: x.argmax(dim=1), "map", "whole numbers of several views .* have no mean"),
    (lambda x: [x.mean(), x], "map", "the network's output '0' .* is not one for each view"),
    (lambda x: (x, x - x.mean(dim=0, keepdim=True)), "map", "does not have the original's answers '1'"),
    (lambda x: x.shape, None, "the network returns no tensor, but a"),
]


@pytest.mark.parametrize(("make", "outputs", "message"), REFUSALS, ids=[message[:30] for _, _, message in REFUSALS])
def test_what_could_be_wrong_is_refused(make: Any, outputs: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(made(Answers, make), Rotations(4), outputs=outputs, example=pixels())


def test_hue_moves_no_maps_so_nothing_needs_to_be_said() -> None:
    plain = made(Answers, lambda x: {"a": x, "b": x.flatten(2), "c": x[:, 0]})
    net = stirred(convert(plain, Hue(3), level=Full(), example=pixels())).eval()
    with torch.no_grad():
        one, two = net(pixels()).outputs, net(pixels().roll(1, 1)).outputs
    assert all(torch.allclose(one[name], two[name], atol=1e-10) for name in "abc")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vectors": ((0, 1, 2),)}, "vectors are groups of 2 channels"),
        ({"sides": (0, 1, 2, 3)}, "sides are groups of 4 channels"),
        ({"sizes": ((0, -1),)}, "channels are counted from 0, got -1"),
        ({"sizes": ((0, 1),), "vectors": ((1, 2),)}, "channel 1 has two directions"),
        ({}, "no channel has a direction"),
    ],
)
def test_directions_that_make_no_sense(options: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Directions(**options)


# ---------------------------------------------------------------- training and export


def test_the_loss_of_maps_is_that_of_their_pixels() -> None:
    """Against rows of pixels; as many images as columns, so that a wrong axis would pass unseen."""
    logits, labels = torch.randn(4, 3, 4, 4), torch.randint(3, (4, 4, 4))
    labels[0, :2] = -100
    weights, prior = torch.tensor([0.5, 1.0, 2.0, 0.5]), torch.tensor([0.1, -0.5, 1.0])
    rows, flat = (logits + prior.view(3, 1, 1)).permute(0, 2, 3, 1).reshape(-1, 3), labels.flatten()
    counts = flat != -100
    expected = F.cross_entropy(rows[counts], flat[counts])
    assert torch.allclose(Elbo.of(Prediction(logits, {}), labels, prior).nll, expected)
    each = weights.repeat_interleave(16)[counts] * F.cross_entropy(rows[counts], flat[counts], reduction="none")
    assert torch.allclose(Elbo.of(Prediction(logits, {}), labels, prior, weights).nll, each.mean())
    with pytest.raises(ValueError, match=r"labels are 4 maps 4×4, got shape \(4, 2, 2\)"):
        Elbo.of(Prediction(logits, {}), labels[:, ::2, ::2])


def test_a_segmentation_network_learns_which_images_may_turn() -> None:
    """Bars may turn, ramps may not: their class is the side on which they are dark. Trained upright."""

    def draw(count: int) -> tuple[Tensor, Tensor, Tensor]:
        images, labels = 0.1 * torch.randn(count, 1, 8, 8), torch.zeros(count, 8, 8, dtype=torch.long)
        kinds = torch.arange(count) % 3
        for number, kind in enumerate(kinds.tolist()):
            row, column = torch.randint(3, (2,)).tolist()
            if kind == 0:  # a bar
                images[number, 0, row + 1 : row + 3, column : column + 6] += 1.5
                labels[number, row + 1 : row + 3, column : column + 6] = 1
            else:  # bright on top, or at the bottom: a half turn makes one of the other
                block = torch.tensor([1.5, 1.5, -1.5, -1.5])[:, None].expand(4, 4) * (1 if kind == 1 else -1)
                images[number, 0, row : row + 4, column : column + 4] += block
                labels[number, row : row + 4, column : column + 4] = kind + 1
        return images, labels, kinds == 0

    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(), nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1),
    )  # fmt: skip
    images, labels, _ = draw(384)
    net = convert(plain, Rotations(4), levels="4", example=images)
    optimiser = torch.optim.Adam(net.train().parameters(), 5e-3)
    for _ in range(8):
        for index in torch.randperm(384).split(24):
            optimiser.zero_grad()
            Elbo.of(net(images[index]), labels[index]).total().backward()
            optimiser.step()
    images, labels, free = draw(150)
    with torch.no_grad():
        theta = net.eval()(images).theta["4"][:, 0]
        upright, turned = net(images).logits.argmax(dim=1), net(images.rot90(1, (2, 3))).logits.argmax(dim=1)
    shown = labels > 0
    assert float((upright == labels)[shown].double().mean()) > 0.9
    assert float(theta[free].mean()) > float(theta[~free].mean()) + 0.1
    bars = (turned == labels.rot90(1, (1, 2)))[free][labels.rot90(1, (1, 2))[free] > 0]
    assert float(bars.double().mean()) > 0.8


def test_a_converted_unet_is_exported() -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    images = pixels(16).float()
    level = Variational(Window(initial=0.6))
    net = stirred(convert(made(UNet).float(), Dihedral(1), level=level, example=images)).eval()
    vary_theta(net, 1.0)
    with torch.no_grad():
        expected = net(images)
    deployed = Deployed(net, images)
    program = exported(deployed, 3, 16)
    logits, theta = program.module()(images[:1])
    assert torch.allclose(logits, expected.logits[:1], atol=1e-5)
    file = onnx_bytes(program, {})
    found = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(found[0]), expected.logits, atol=1e-4)
    assert torch.allclose(torch.from_numpy(found[1]), expected.theta["join2"][:, 1:], atol=1e-5)
    assert torch.allclose(theta, expected.theta["join2"][:1, 1:], atol=1e-5)


def test_several_outputs_are_exported() -> None:
    images = pixels(16).float()
    outputs: dict[str, Any] = {"scores": "map", "boxes": WAYS}
    net = stirred(convert(made(Detector).float(), Rotations(4), level=Full(), outputs=outputs, example=images)).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(net, (images,), dynamic_shapes=({0: batch},), strict=False)
        found = program.module()(images[:1])
        expected = net(images[:1])
    assert torch.allclose(found.outputs["boxes"], expected.outputs["boxes"], atol=1e-5)
    assert torch.allclose(found.logits, expected.outputs["scores"], atol=1e-5)
