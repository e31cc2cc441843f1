"""The layer of a converted network: a convolution on every view of an image, plus what it sees in the others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.conversion.moves import moved, moves_of
from vpgcnn.conversion.plan import Mixing
from vpgcnn.conversion.trying import like_of
from vpgcnn.conversion.views import Decided, NeedsAll, Record, attach, coverage, record_of
from vpgcnn.features import GroupFeature, Trace
from vpgcnn.groups import Group
from vpgcnn.levels import Level

__all__ = ["MixedConv2d"]


class MixedConv2d(nn.Module):
    """Equivariant as far as its level allows: a convolution on every view, plus what it sees in the others.

    View u also gets what view u·s shows, moved to where u sees it, through a kernel of its own for each element s but
    the identity. Those kernels are 0 at the start. With low-rank mixing a view shows the others a few channels only,
    at the resolution of the output, so that little is moved and multiplied. Attributes of the original (`weight`,
    `stride`, …) are found here too. On a tensor that carries no views it is the original convolution.

    Args:
        conv: The original, of any subclass.
        group: A finite group that permutes pixels.
        mixing: How it looks at other views.
        level: How many of the views are used from here on; None for as many as before.
        name: The path of the original, under which the level's decisions stand in the trace.
        sees_input: Whether the level looks at the convolution's input instead of its output after a ReLU.
    """

    beside: Tensor
    shown: Tensor
    gathered: Tensor

    def __init__(
        self, conv: nn.Conv2d, group: Group, mixing: Mixing, level: Level | None, name: str, sees_input: bool = False
    ) -> None:
        super().__init__()
        self.conv, self.level, self.group, self.name, self.sees_input = conv, level, group, name, sees_input
        self.mixing, self._moves = mixing, moves_of(group)
        grid = group.grid(dtype=torch.float64)
        # Row s, column u: the place of u·s.
        beside = group.index(group.compose(grid.unsqueeze(0), grid.unsqueeze(1)))
        self.register_buffer("beside", beside, persistent=False)
        # Row u, column s − 1: where (view u·s, element s) is in what `_at_once` computes.
        others = group.count - 1
        places = (beside[1:] * others + torch.arange(others).unsqueeze(1)).t().flatten()
        self.register_buffer("shown", places, persistent=False)
        # Row u, column s − 1: where (a turn of its own, view u·s) is in what `_through_few` stacks.
        self._turns = tuple(dict.fromkeys(self._moves))
        turn = torch.tensor([self._turns.index(move) for move in self._moves]).unsqueeze(1)
        self.register_buffer("gathered", (turn * group.count + beside)[1:].t().flatten(), persistent=False)
        size = conv.kernel_size if mixing.kind == "full" else (1, 1)
        others = 0 if mixing.kind == "none" else others
        few = mixing.kind == "low-rank"
        like = like_of(conv)
        inner, groups = (mixing.rank, 1) if few else (conv.in_channels, conv.groups)
        self.squeeze = nn.Conv2d(conv.in_channels, inner, 1, bias=False) if few else None
        self.cross = nn.ModuleList(
            nn.Conv2d(inner, conv.out_channels, size, groups=groups, bias=False)  # type: ignore[arg-type]
            for _ in range(others)
        )
        if self.squeeze is not None:
            nn.init.normal_(self.squeeze.weight, std=conv.in_channels**-0.5)
            self.squeeze.to(like.dtype)
        for part in self.cross:
            nn.init.zeros_(part.weight)  # type: ignore[arg-type]
        self.to(like.device)
        self.cross.to(like.dtype)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the original convolution, for networks that read them."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            conv = self.__dict__.get("_modules", {}).get("conv")
            if conv is None or name.startswith("__"):
                raise
            return getattr(conv, name)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 (torch's name)
        """Views `(B·m, C, H, W)` to views `(B·m, O, H', W')`."""
        x = input
        out: Tensor = self.conv(x, *args, **kwargs)
        record = record_of(out)
        partial = self.level is not None and not self.level.is_full
        if record is None or not record.fits(out) or not (len(self.cross) or partial):
            return out
        with torch._C.DisableTorchFunctionSubclass():
            if len(self.cross):
                out = self._mixed(x, out, record)
            if partial:
                assert self.level is not None
                if self.name in record.known:
                    q = record.known[self.name]
                else:
                    feature = self._feature(x if self.sees_input else out, record.weights_at(out), record.trace)
                    q = self.level(feature) if self.sees_input else self.level.after_relu(feature)
                    if record.peeks:
                        raise Decided(q)
                record, out = record.decided(self.name, q, out)
            return attach(out, record)

    def _mixed(self, x: Tensor, out: Tensor, record: Record) -> Tensor:
        """The output plus what each view sees in the others."""
        weights = record.weights_at(x)
        share = None if weights is None else coverage(weights).to(out.dtype)
        if record.kept is not None:
            if share is None and any(bool(part.weight.any()) for part in self.cross):  # type: ignore[operator]
                raise NeedsAll
            if share is None or record.count == 1:
                return out  # views that are not run would count by 0
            share, x = record.spread(share.flatten()).unflatten(0, (-1, self.group.count)), record.spread(x)
        if self.mixing.kind == "low-rank":
            seen = self._through_few(x, out, share)
        else:
            # Where elements move no pixels, one convolution sees all views.
            at_once = not self.group.acts_on_plane and self.conv.groups == 1
            seen = (self._at_once if at_once else self._by_turns)(x, out, share)
        return out + (seen if record.kept is None else record.restricted(seen))

    def _feature(self, folded: Tensor, weights: Tensor | None, trace: Trace) -> GroupFeature:
        values = folded.unflatten(0, (-1, self.group.count)).transpose(1, 2)
        precision = torch.promote_types(values.dtype, torch.float32)
        elements = self.group.grid(dtype=precision, device=values.device)
        return GroupFeature(values, elements, weights, self.group, trace)

    def _at_once(self, x: Tensor, out: Tensor, share: Tensor | None) -> Tensor:
        """What each view sees in the others: one convolution by the kernels of all elements, then a sum over them."""
        kernels = torch.cat([part.weight for part in self.cross])  # type: ignore[misc]
        x = x if share is None else x * share.flatten()[:, None, None, None]
        shown = self._convolved(x, kernels, out, 1).unflatten(1, (len(self.cross), -1))
        shown = shown.unflatten(0, (-1, self.group.count)).flatten(1, 2)  # B, views · elements, channels, …
        seen = shown.index_select(1, self.shown).unflatten(1, (self.group.count, -1))
        return seen.sum(dim=2).flatten(0, 1)

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

    def _through_few(self, x: Tensor, out: Tensor, share: Tensor | None) -> Tensor:
        """The same through few channels of each view: they are moved, gathered and seen by one convolution."""
        assert self.squeeze is not None
        few = self._convolved(x, self.squeeze.weight, out, 1)
        if share is not None:
            few = few * share.flatten()[:, None, None, None]
        views = few.unflatten(0, (-1, self.group.count))
        if len(self._turns) > 1:
            views = torch.cat([moved(views, turn) for turn in self._turns], dim=1)
        seen = views.index_select(1, self.gathered).unflatten(1, (self.group.count, -1))
        kernel = torch.cat([part.weight for part in self.cross], dim=1)  # type: ignore[misc]
        return F.conv2d(seen.flatten(2, 3).flatten(0, 1), kernel)

    def _convolved(self, x: Tensor, kernel: Tensor, out: Tensor, groups: int) -> Tensor:
        """x under a cross kernel, at the positions where the original convolution looked to make `out`."""
        conv, whole, padding = self.conv, self.mixing.kind == "full", list[int]()
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
        if self.mixing.kind == "full" and conv.padding_mode != "zeros" and type(conv) is nn.Conv2d:
            return 0, 0  # padded already
        if isinstance(conv.padding, str):
            total = conv.dilation[axis] * (conv.kernel_size[axis] - 1) if conv.padding == "same" else 0
            return total // 2, total - total // 2
        return conv.padding[axis], conv.padding[axis]
