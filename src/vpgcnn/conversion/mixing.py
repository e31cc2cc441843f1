"""The layer of a converted network: a convolution on every view of an image, plus what it sees in the others."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.conversion.views import Matrix, Record, attach, coverage, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature, Trace
from vpgcnn.groups import Group, relative_index
from vpgcnn.levels import Level

__all__ = ["Mix", "MixedConv2d", "moved", "moves_of", "pooled"]

Mix = Literal["pointwise", "full", "none"]


def moves_of(group: Group) -> tuple[Matrix, ...]:
    """What each element of the grid does to the plane, as whole numbers."""
    planes = group.plane(group.grid(dtype=torch.float64))
    if float((planes - planes.round()).abs().max()) > 1e-6:
        raise UserError(f"{group} moves pixels between the grid: choose quarter turns or mirrors")
    return tuple(tuple(tuple(int(x) for x in row) for row in plane.round().tolist()) for plane in planes)  # type: ignore[misc]


def moved(maps: Tensor, matrix: Matrix) -> Tensor:
    """Maps `(…, H, W)` moved by a quarter turn or mirror: f(x) becomes f(A⁻¹x), points being (x right, y up)."""
    (a, b), (c, d) = matrix
    if a:
        flips = [axis for axis, sign in ((-1, a), (-2, d)) if sign < 0]
    else:
        if maps.shape[-1] != maps.shape[-2]:
            raise UserError(f"quarter turns need square images and maps, got {maps.shape[-2]}×{maps.shape[-1]}")
        maps = maps.transpose(-1, -2)
        flips = [axis for axis, sign in ((-1, b), (-2, c)) if sign > 0]
    return maps.flip(flips) if flips else maps


def pooled(folded: Tensor, record: Record) -> Tensor:
    """The mean over views `(B·m, …)` under their weights, each moved back: `(B, …)`. A map moves with the image."""
    with torch._C.DisableTorchFunctionSubclass():
        weights = record.weights_at(folded)
        views = folded.unflatten(0, (-1, record.count))
        if record.group.acts_on_plane and folded.dim() == 4:
            back = [moved(views[:, number], move) for number, move in enumerate(record.moves)]
            views = torch.stack(back, dim=1)
        if weights is None:
            return views.mean(dim=1)
        shares = weights.to(views.dtype).reshape(*views.shape[:2], *(1 for _ in views.shape[2:]))
        return (views * shares).sum(dim=1)


class MixedConv2d(nn.Module):
    """Equivariant as far as its level allows: a convolution on every view, plus what it sees in the others.

    View u also gets what view u·s shows, moved to where u sees it, through a kernel of its own for each element s but
    the identity. Those kernels are 0 at the start. Attributes of the original (`weight`, `stride`, …) are found here
    too. On a tensor that carries no views it is the original convolution.

    Args:
        conv: The original, of any subclass.
        group: A finite group that permutes pixels.
        mix: "pointwise" for 1×1 kernels, "full" for kernels as large as the original's, "none".
        level: How many of the views are used from here on; None for as many as before.
        name: The path of the original, under which the level's decisions stand in the trace.
        sees_input: Whether the level looks at the convolution's input instead of its output after a ReLU.
    """

    beside: Tensor
    between: Tensor

    def __init__(
        self, conv: nn.Conv2d, group: Group, mix: Mix, level: Level | None, name: str, sees_input: bool = False
    ) -> None:
        super().__init__()
        self.conv, self.level, self.group, self.name, self.sees_input = conv, level, group, name, sees_input
        self.mix, self._moves = mix, moves_of(group)
        grid = group.grid(dtype=torch.float64)
        # Row s, column u: the place of u·s. Row u, column v: that of u⁻¹v.
        beside = group.index(group.compose(grid.unsqueeze(0), grid.unsqueeze(1)))
        self.register_buffer("beside", beside, persistent=False)
        self.register_buffer("between", relative_index(group).t().contiguous(), persistent=False)
        size = conv.kernel_size if mix == "full" else (1, 1)
        others = 0 if mix == "none" else group.count - 1
        self.cross = nn.ModuleList(
            nn.Conv2d(conv.in_channels, conv.out_channels, size, groups=conv.groups, bias=False)  # type: ignore[arg-type]
            for _ in range(others)
        )
        for part in self.cross:
            nn.init.zeros_(part.weight)  # type: ignore[arg-type]
        self.to(next(conv.parameters()).device)
        self.cross.to(next(conv.parameters()).dtype)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the original convolution, for networks that read them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            conv = self.__dict__.get("_modules", {}).get("conv")
            if conv is None or name.startswith("__"):
                raise
            return getattr(conv, name)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Views `(B·m, C, H, W)` to views `(B·m, O, H', W')`."""
        out: Tensor = self.conv(x, *args, **kwargs)
        record = record_of(out)
        partial = self.level is not None and not self.level.is_full
        if record is None or not record.fits(out) or not (len(self.cross) or partial):
            return out
        with torch._C.DisableTorchFunctionSubclass():
            if len(self.cross):
                weights = record.weights_at(x)
                share = None if weights is None else coverage(weights).to(out.dtype)
                # Where elements move no pixels, one convolution sees all views.
                at_once = not self.group.acts_on_plane and self.conv.groups == 1
                out = out + (self._at_once if at_once else self._by_turns)(x, out, share)
            if partial:
                assert self.level is not None
                feature = self._feature(x if self.sees_input else out, record.weights_at(out), record.trace)
                q = self.level(feature) if self.sees_input else self.level.after_relu(feature)
                record, out = record.decided(self.name, q, out)
            return attach(out, record)

    def _feature(self, folded: Tensor, weights: Tensor | None, trace: Trace) -> GroupFeature:
        values = folded.unflatten(0, (-1, self.group.count)).transpose(1, 2)
        precision = torch.promote_types(values.dtype, torch.float32)
        elements = self.group.grid(dtype=precision, device=values.device)
        return GroupFeature(values, elements, weights, self.group, trace)

    def _at_once(self, x: Tensor, out: Tensor, share: Tensor | None) -> Tensor:
        """What each view sees in the others, by a table of kernels: from view v to view u, that of u⁻¹v."""
        others = [part.weight for part in self.cross]
        kernels = torch.stack([torch.zeros_like(others[0]), *others])  # type: ignore[arg-type, list-item]
        table = kernels[self.between].transpose(1, 2).flatten(2, 3).flatten(0, 1)  # u·out, v·in
        views = x.unflatten(0, (-1, self.group.count))
        if share is not None:
            views = views * share[:, :, None, None, None]
        seen = self._convolved(views.flatten(1, 2), table, out, 1)
        return seen.unflatten(1, (self.group.count, -1)).flatten(0, 1)

    def _by_turns(self, x: Tensor, out: Tensor, share: Tensor | None) -> Tensor:
        """The same, one element after the other: each view is moved to where the other sees it."""
        views, total = x.unflatten(0, (-1, self.group.count)), None
        for number, part in enumerate(self.cross, start=1):
            index = self.beside[number]
            turned = moved(views.index_select(1, index).flatten(0, 1), self._moves[number])
            seen = self._convolved(turned, part.weight, out, self.conv.groups)  # type: ignore[arg-type]
            if share is not None:
                seen = seen * share.index_select(1, index).flatten()[:, None, None, None]
            total = seen if total is None else total + seen
        assert total is not None
        return total

    def _convolved(self, x: Tensor, kernel: Tensor, out: Tensor, groups: int) -> Tensor:
        """x under a cross kernel, at the positions where the original convolution looked to make `out`."""
        conv, whole, padding = self.conv, self.mix == "full", list[int]()
        if whole and conv.padding_mode != "zeros" and type(conv) is nn.Conv2d:
            x = F.pad(x, conv._reversed_padding_repeated_twice, mode=conv.padding_mode)
        for axis in (1, 0):
            size, count, stride = x.shape[2 + axis], out.shape[2 + axis], conv.stride[axis]
            reach = conv.dilation[axis] * (conv.kernel_size[axis] - 1)  # pixels from the first tap to the last
            before, after = self._padding(axis)
            if (size + before + after - reach - 1) // stride + 1 == count:
                start = -before
            else:  # a subclass that pads in its own way: positions around the middle
                start = (size - (count - 1) * stride - reach) // 2
            start, reach = (start, reach) if whole else (start + reach // 2, 0)
            before, after = -start, start + (count - 1) * stride + reach + 1 - size
            # Fewer than `stride` pixels more at the end make no difference: mostly both ends can be alike.
            padding += [before, before if before >= 0 and after <= before < after + stride else after]
        steps, dilation = tuple(conv.stride), tuple(conv.dilation) if whole else (1, 1)
        left, right, top, bottom = padding
        if left == right >= 0 and top == bottom >= 0:
            return F.conv2d(x, kernel, None, steps, (top, left), dilation, groups)
        return F.conv2d(F.pad(x, padding), kernel, None, steps, 0, dilation, groups)

    def _padding(self, axis: int) -> tuple[int, int]:
        """Zeros before and after a map that a cross kernel of the original's size sees."""
        conv = self.conv
        if self.mix == "full" and conv.padding_mode != "zeros" and type(conv) is nn.Conv2d:
            return 0, 0  # padded already
        if isinstance(conv.padding, str):
            total = conv.dilation[axis] * (conv.kernel_size[axis] - 1) if conv.padding == "same" else 0
            return total // 2, total - total // 2
        return conv.padding[axis], conv.padding[axis]
