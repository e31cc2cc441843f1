"""Conversion: an ordinary classifier becomes equivariant, or partially so, and begins as what it was.

    >>> net = convert(resnet18, Hue(3))              # the same logits as before …
    >>> logits, kl = net(images)                     # … then fine-tune: cross_entropy + λ · kl.mean()

The network itself is left as it is, its forward included. It sees every image as each element u of the group shows it,
u⁻¹ · image, all in one batch; chosen convolutions look at the other views as well, and at the end the views are
averaged under a window that is learned for each image. Moving the image by the group permutes its views, and a
convolution that looks at them the same way from each is equivariant: exactly so, whatever the network does in between.

At first the kernels that look at other views are 0 and the window is on the identity alone: the answer is that of the
network before. With all of the group in use it is invariant.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn import resample
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature, Prediction
from vpgcnn.groups import Group, relative_index
from vpgcnn.levels import Level, LevelFactory, Variational, Window
from vpgcnn.testing import output_of

__all__ = ["Converted", "MixedConv2d", "convert"]

Mix = Literal["pointwise", "full", "none"]
REFUSED = (nn.RNNBase, nn.Transformer, nn.SyncBatchNorm, nn.InstanceNorm2d)
"""Modules that give images of a batch another meaning, or that keep no statistics to begin from."""


class _Views:
    """What is known of the views while a batch goes through: how many images, their weights, the KL so far."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.grid = group.grid(dtype=torch.float64)
        self.count = len(self.grid)
        steps = self.grid.unsqueeze(1)
        self.beside = group.index(group.compose(self.grid.unsqueeze(0), steps))  # row s, column u: u·s
        self.between = relative_index(group).t()  # row u, column v: u⁻¹v
        self.weights: Tensor | None = None
        self.divergence: Tensor | None = None
        self.open = False

    def begin(self, images: Tensor) -> Tensor:
        """All views of images `(B, C, H, W)`: `(B·m, C, H, W)`."""
        self.weights, self.open = None, True
        self.divergence = torch.zeros(images.shape[0], dtype=torch.float32, device=images.device)
        inverse = self.group.inverse(self.grid).to(images)
        views = [images if not number else self.group.transform(images, u) for number, u in enumerate(inverse)]
        return torch.stack(views, dim=1).flatten(0, 1)

    def apart(self, folded: Tensor) -> Tensor:
        """`(B·m, …)` → `(B, m, …)`."""
        return folded.unflatten(0, (-1, self.count))

    def moved(self, maps: Tensor, number: int) -> Tensor:
        """Maps `(B, C, H, W)` as the element of this number moves them."""
        if not self.group.acts_on_plane or maps.dim() != 4:
            return maps
        return resample.move(maps, self.group.plane(self.grid[number]).to(maps))

    def coverage(self) -> Tensor | None:
        """How much of each view counts, `(B, m)` from 0 to 1; None: all."""
        if self.weights is None:
            return None
        return self.weights / self.weights.amax(dim=1, keepdim=True)

    def narrow(self, weights: Tensor, divergence: Tensor | None) -> None:
        """Take another level into account: the views that both keep are kept."""
        before = self.coverage()
        if before is not None:
            weights = weights * before
            weights = weights / weights.sum(dim=1, keepdim=True)
        self.weights = weights
        if divergence is not None and self.divergence is not None:
            self.divergence = self.divergence + divergence

    def pooled(self, folded: Tensor) -> Tensor:
        """The mean over views under the weights, each brought back to where the image is."""
        self.open = False
        views = self.apart(folded)
        back = torch.stack([self.moved(views[:, number], number) for number in range(self.count)], dim=1)
        if self.weights is None:
            return back.mean(dim=1)
        shares = self.weights.to(back.dtype).reshape(back.shape[:2] + (1,) * (back.dim() - 2))
        return (back * shares).sum(dim=1)


class _Pooling:
    """The hook that pools views: an object, so that a copy of the network pools its own."""

    def __init__(self, views: _Views) -> None:
        self.views = views

    def __call__(self, _: nn.Module, __: object, folded: Tensor) -> Tensor:
        return self.views.pooled(folded)


class MixedConv2d(nn.Module):
    """Equivariant as far as its level allows: a convolution on every view, plus what it sees in the others.

    conv: the original. cross: a convolution for each element s but the identity, 0 at first: view u gets what view u·s
    shows, moved to where u sees it. level: how far the views are used from here on.
    """

    def __init__(self, conv: nn.Conv2d, views: _Views, mix: Mix, level: Level | None) -> None:
        super().__init__()
        self.conv, self.level = conv, level
        self._views = (views,)  # in a tuple: shared by all layers, and no module
        whole = mix == "full"
        self.cross = nn.ModuleList(
            nn.Conv2d(
                conv.in_channels, conv.out_channels, conv.kernel_size if whole else 1, conv.stride,  # type: ignore[arg-type]
                conv.padding if whole else 0, conv.dilation if whole else 1, conv.groups, bias=False,  # type: ignore[arg-type]
            )
            for _ in range(0 if mix == "none" else views.count - 1)
        )  # fmt: skip
        for part in self.cross:
            nn.init.zeros_(part.weight)  # type: ignore[arg-type]
        self.cross.to(conv.weight)

    def forward(self, folded: Tensor) -> Tensor:
        out: Tensor = self.conv(folded)
        views = self._views[0]
        if not views.open:
            return out
        if len(self.cross):
            # Where elements move no pixels, all views are seen by one convolution.
            at_once = not views.group.acts_on_plane and self.conv.groups == 1
            seen = self._at_once(views, folded) if at_once else self._by_turns(views, folded)
            if seen.shape != out.shape:  # a pointwise kernel on an unpadded map: its middle
                top, left = ((seen.shape[axis] - out.shape[axis]) // 2 for axis in (2, 3))
                seen = seen[:, :, top : top + out.shape[2], left : left + out.shape[3]]
            out = out + seen
        if self.level is not None and self.level.partial:
            self._narrow(views, out)
        return out

    def _at_once(self, views: _Views, folded: Tensor) -> Tensor:
        """What each view sees in the others, by a table of kernels: from view v to view u, that of u⁻¹v."""
        first = self.cross[0]
        assert isinstance(first, nn.Conv2d)
        kernels = torch.stack([torch.zeros_like(first.weight), *(part.weight for part in self.cross)])  # type: ignore[list-item]
        table = kernels[views.between.to(kernels.device)].transpose(1, 2).flatten(2, 3).flatten(0, 1)  # u·out, v·in
        x, share = views.apart(folded), views.coverage()
        if share is not None:
            x = x * share.to(x.dtype)[:, :, None, None, None]
        seen = F.conv2d(x.flatten(1, 2), table, None, first.stride, first.padding, first.dilation)
        return seen.unflatten(1, (views.count, -1)).flatten(0, 1)

    def _by_turns(self, views: _Views, folded: Tensor) -> Tensor:
        """The same, one element after the other: each view is moved to where the other sees it."""
        x, share = views.apart(folded), views.coverage()
        total: Tensor | None = None
        for number, part in enumerate(self.cross, start=1):
            index = views.beside[number].to(x.device)
            seen: Tensor = part(views.moved(x[:, index].flatten(0, 1), number))
            if share is not None:
                seen = seen * share[:, index].flatten().to(seen.dtype)[:, None, None, None]
            total = seen if total is None else total + seen
        assert total is not None
        return total

    def _narrow(self, views: _Views, out: Tensor) -> None:
        values = views.apart(out).transpose(1, 2)
        grid = views.grid.to(values)
        feature = GroupFeature(values, grid, views.weights, values.new_zeros(values.shape[0]), views.group)
        assert self.level is not None
        q = self.level(feature)
        views.narrow(q.weights(grid), q.kl() if getattr(self.level, "regularised", False) else None)


class Converted(nn.Module):
    """Equivariant as far as its levels allow: images `(B, C, H, W)` to logits and the KL of the levels.

    network: the original with some of its convolutions replaced. mean, std: what images are standardised with after
    they were moved (hue moves RGB in [0, 1], or pixels that are all standardised by the same numbers).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, views: _Views, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.group = views.group
        self._views = (views,)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Prediction:
        views = self._views[0]
        answer = output_of(self.network((views.begin(images) - self.mean) / self.std))
        assert isinstance(answer, Tensor)
        logits = views.pooled(answer) if views.open else answer
        assert views.divergence is not None
        return Prediction(logits, views.divergence)


def convert(
    model: nn.Module,
    group: Group,
    *,
    level: LevelFactory | None = None,
    layers: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    until: str | None = None,
    mix: Mix = "pointwise",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> Converted:
    """A copy of a classifier on a finite group, with the answers of the original to begin with.

    group: `Hue(m)`, quarter turns and mirrors, or a product of them. level: as layers take it; by default a
    `Variational` whose window begins on the identity alone. `Full` makes the network fully equivariant at once.
    layers: the convolutions that look at other views, by name or the beginning of it ("layer3"); all of them. levels:
    those that have a level; the last of `layers`. until: the module after which the views are pooled, and the rest is
    an ordinary network; the end. mix: how convolutions look at other views: by a 1×1 kernel, by one as large as their
    own, or not at all. mean, std: of the images, where the model does not take pixels in [0, 1].
    """
    if group.order is None:
        raise UserError(f"a network is converted to a finite group, got {group}: choose Rotations(4), say")
    views = _Views(group)
    if group.acts_on_plane and not bool((group.plane(views.grid) - group.plane(views.grid).round()).abs().max() < 1e-6):
        raise UserError(f"{group} moves pixels between the grid: quarter turns and mirrors do not")
    if mix not in ("pointwise", "full", "none"):
        raise UserError(f"mix is pointwise, full or none, got {mix!r}")
    network = copy.deepcopy(model)
    odd = [f"{name} ({type(part).__name__})" for name, part in network.named_modules() if isinstance(part, REFUSED)]
    if odd:
        raise UserError(f"cannot convert {odd[0]}: views of an image are images of the batch, which it does not allow")
    convs = [name for name, part in network.named_modules() if type(part) is nn.Conv2d]
    before = convs if until is None else convs[: 1 + _last(network, convs, until)]
    chosen = _matching(before, layers, "layers")
    levelled = _matching(chosen, levels, "levels") if levels is not None else chosen[-1:]
    make = level or partial(Variational, family=Window(initial=1 / group.order))
    for name in chosen:
        conv = network.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)
        own = make(group, conv.out_channels, None) if name in levelled else None
        if isinstance(own, Variational):  # every image the same, until it is trained
            nn.init.zeros_(own.encoder.linear.weight)
        if own is not None and not own.partial:
            own = None
        network.set_submodule(name, MixedConv2d(conv, views, mix, None if own is None else own.to(conv.weight.device)))
    if until is not None:
        network.get_submodule(until).register_forward_hook(_Pooling(views))
    return Converted(network, views, mean, std).to(next(model.parameters()).device)


def _last(network: nn.Module, convs: list[str], until: str) -> int:
    """The place of the last convolution inside the module after which views are pooled."""
    inside = [place for place, name in enumerate(convs) if name == until or name.startswith(f"{until}.")]
    names = dict(network.named_modules())
    if until not in names:
        raise UserError(f"there is no module {until!r}: choose from {', '.join(list(names)[1:9])}, …")
    if not inside:
        raise UserError(f"{until} holds no convolution")
    return inside[-1]


def _matching(names: list[str], wanted: Sequence[str] | None, what: str) -> list[str]:
    """The names that are wanted, or begin with what is wanted."""
    if not names:
        raise UserError("there is no convolution (nn.Conv2d) to convert")
    if wanted is None:
        return names
    found = [name for name in names if any(name == each or name.startswith(f"{each}.") for each in wanted)]
    missing = [each for each in wanted if not any(name == each or name.startswith(f"{each}.") for name in names)]
    if missing:
        raise UserError(f"{what}: there is no convolution {missing[0]!r}: choose from {', '.join(names)}")
    return found
