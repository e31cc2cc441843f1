"""Which elements of the group are in use: images with the same ones are computed together, without the others.

An element of weight 0 contributes nothing to whatever sums over the group, so evaluation leaves it out. Images of a
batch are put into a few parts by the elements that they use; windows on a circle are nested, so there are few kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vpgcnn._ops.constants import constant
from vpgcnn._ops.memory_format import is_channels_last

__all__ = [
    "Part",
    "Use",
    "all_elements",
    "assemble",
    "can_read",
    "can_skip",
    "can_skip_in_training",
    "crossed",
    "merged",
    "note_pair",
    "noted_pairs",
    "pick",
    "restored",
    "rows_of",
    "split",
    "unchanged",
    "used_elements",
    "uses_of",
]

WORTH = 0.05
"""Images are computed in parts of their own if that saves at least this share of the products of the whole batch."""
Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions of output and input elements."""

_everything: ContextVar[bool] = ContextVar("everything", default=False)
_used: ContextVar[bool] = ContextVar("used", default=False)
_pairs: ContextVar[dict[int, set[Pair]] | None] = ContextVar("pairs", default=None)


@contextmanager
def all_elements() -> Iterator[None]:
    """Compute all elements of the group inside this block, also those of weight 0. The answers are the same."""
    token = _everything.set(True)
    try:
        yield
    finally:
        _everything.reset(token)


@contextmanager
def used_elements() -> Iterator[None]:
    """Leave out elements of weight 0 in training as well, where all images use the same: `Fixed` and `Shared` windows.

    Put the forward pass of a training step into it. Gradients are those of all elements up to rounding: an element
    whose weight is 0 but would change with θ is computed. `values` of features that left out elements are refused, and
    dropout of single numbers draws other random numbers.
    """
    token = _used.set(True)
    try:
        yield
    finally:
        _used.reset(token)


@contextmanager
def noted_pairs() -> Iterator[dict[int, set[Pair]]]:
    """Note which elements each layer convolves inside this block, by its `id`. Only what is sure is left out."""
    found: dict[int, set[Pair]] = {}
    token = _pairs.set(found)
    try:
        yield found
    finally:
        _pairs.reset(token)


def note_pair(layer: object, rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    """Note the output and input elements of a convolution, where somebody wants to know."""
    found = _pairs.get()
    if found is not None:
        found.setdefault(id(layer), set()).add((rows, columns))


def can_skip() -> bool:
    """Whether elements may be left out: never with gradients, which also flow to weights that are 0."""
    if torch.compiler.is_dynamo_compiling() or torch.is_grad_enabled():
        return False
    return not _everything.get()


def can_skip_in_training() -> bool:
    """Whether elements may be left out with gradients, where all images use the same."""
    return not torch.compiler.is_compiling() and _used.get() and not _everything.get()


def can_read(weights: Tensor) -> bool:
    """Whether the program may depend on the weights: not while it is traced, exported, captured or transformed."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if type(weights) not in (Tensor, nn.Parameter) or weights.device.type == "meta" or _pairs.get() is not None:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(weights):
        return False
    return weights.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def unchanged(function: Callable[..., Tensor], tensors: Callable[[], Sequence[Tensor]]) -> Callable[..., Tensor]:
    """The function, for later: it refuses to run after the tensors that it depends on have been changed or replaced."""
    before = _versions(tensors())

    def later(*values: Tensor) -> Tensor:
        if before != _versions(tensors()):
            raise RuntimeError(
                "elements of weight 0 were left out of this feature, and cannot be computed any more because the "
                "layer's parameters or its input have changed: read `values` before that, or use `with all_elements():`"
            )
        return function(*values)

    return later


def _versions(tensors: Sequence[Tensor]) -> list[tuple[int, int | None]]:
    return [(id(tensor), None if tensor.is_inference() else tensor._version) for tensor in tensors]


@dataclass(frozen=True)
class Use:
    """Images that use the same elements.

    Args:
        images: Positions in the batch; None for all of them, in order.
        picks: Positions of the elements on the grid, ascending.
        even: Whether these elements weigh the same.
    """

    images: tuple[int, ...] | None
    picks: tuple[int, ...]
    even: bool


@dataclass(frozen=True)
class Part:
    """The values of some images on some elements.

    Args:
        use: Which images and elements.
        values: `(N, C, G', H, W)`.
    """

    use: Use
    values: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Part:
        return Part(self.use, function(self.values))

    def of(self, images: tuple[int, ...] | None) -> Tensor:
        """The values of some of the part's images, in the order given."""
        own = self.use.images
        if images is None or images == own:
            return self.values
        if own is None:
            return _images(self.values, images)
        places = {image: place for place, image in enumerate(own)}
        return _images(self.values, tuple(places[image] for image in images))

    def weights(self, weights: Tensor | None) -> Tensor | None:
        """Those of weights `(B, G)` that belong here, `(N, G')`; None if they are all the same."""
        return None if self.use.even or weights is None else rows_of(self.use, weights)


def rows_of(use: Use, numbers: Tensor) -> Tensor:
    """The rows and columns of numbers `(B, G)` that belong to a use: `(N, G')`."""
    if use.images is not None:
        numbers = numbers.index_select(0, _index(use.images, numbers))
    return numbers if len(use.picks) == numbers.shape[1] else numbers.index_select(1, _index(use.picks, numbers))


def _index(places: tuple[int, ...], like: Tensor) -> Tensor:
    return constant(places, torch.long, like.device)


# ---------------------------------------------------------------- who uses what


def uses_of(weights: Tensor, *, same: bool = False) -> tuple[Use, ...] | None:
    """Group images by the elements that they use.

    Args:
        weights: `(B, G)`, readable. NaN counts as in use, so that it is not lost.
        same: Whether all images have the same weights.

    Returns:
        One use for each group of images; None if leaving elements out does not pay.
    """
    if bool(weights.all()) or not len(weights):
        return None
    count = weights.shape[1]
    found: dict[tuple[int, ...], list[int]] = {}
    rows = weights[:1].tolist() if same else weights.tolist()
    for image, row in enumerate(rows):
        found.setdefault(tuple(place for place, weight in enumerate(row) if weight != 0), []).append(image)
    groups = _merged_sets([(set(picks), images) for picks, images in found.items()], len(rows) * count**2)
    uses = []
    for picks, images in groups:
        chosen = tuple(sorted(picks)) or (0,)
        fair = 1 / len(chosen)
        near = 4 * torch.finfo(weights.dtype).eps
        even = all(abs(rows[image][place] - fair) <= near * fair for image in images for place in chosen)
        uses.append(Use(None if len(groups) == 1 else tuple(sorted(images)), chosen, even))
    return None if len(uses) == 1 and len(uses[0].picks) == count else tuple(uses)


def _merged_sets(groups: list[tuple[set[int], list[int]]], whole: int) -> list[tuple[set[int], list[int]]]:
    """Put groups of images together while that adds less than `WORTH` to the products."""
    while len(groups) > 1:
        best, pair = WORTH * whole, None
        for second in range(1, len(groups)):
            for first in range(second):
                (one, some), (two, others) = groups[first], groups[second]
                both = (len(some) + len(others)) * len(one | two) ** 2
                more = both - len(some) * len(one) ** 2 - len(others) * len(two) ** 2
                if more < best:
                    best, pair = more, (first, second)
        if pair is None:
            break
        (one, some), (two, others) = groups[pair[0]], groups.pop(pair[1])
        groups[pair[0]] = (one | two, some + others)
    return groups


# ---------------------------------------------------------------- taking apart and putting together


def pick(values: Tensor, picks: Sequence[int]) -> Tensor:
    """Some elements of values `(B, C, G, H, W)`, in the same memory format."""
    if len(picks) == values.shape[2]:
        return values
    index = _index(tuple(picks), values)
    if is_channels_last(values):
        return values.permute(0, 3, 4, 1, 2).index_select(4, index).permute(0, 3, 4, 1, 2)
    return values.index_select(2, index)


def split(values: Tensor, uses: tuple[Use, ...]) -> tuple[Part, ...]:
    """The parts of values `(B, C, G, H, W)`."""
    parts = []
    for use in uses:
        some = values if use.images is None else _images(values, use.images)
        parts.append(Part(use, pick(some, use.picks)))
    return tuple(parts)


def _images(values: Tensor, images: tuple[int, ...]) -> Tensor:
    index = _index(images, values)
    if is_channels_last(values):
        return values.permute(0, 3, 4, 1, 2).index_select(0, index).permute(0, 3, 4, 1, 2)
    return values.index_select(0, index)


def crossed(one: tuple[Part, ...], two: Sequence[Use]) -> list[tuple[Part, Use]]:
    """Each part of `one` cut down to the images of each use in `two`; pairs without images are left out."""
    found = []
    for part in one:
        for use in two:
            own = part.use.images
            if use.images is None or own == use.images:
                found.append((part, Use(own, use.picks, use.even)))
            elif own is None:
                cut = Part(Use(use.images, part.use.picks, part.use.even), _images(part.values, use.images))
                found.append((cut, use))
            else:
                wanted = set(use.images)
                places = tuple(place for place, image in enumerate(own) if image in wanted)
                images = tuple(own[place] for place in places)
                if len(places) == len(own):
                    found.append((part, Use(own, use.picks, use.even)))
                elif places:
                    cut = Part(Use(images, part.use.picks, part.use.even), _images(part.values, places))
                    found.append((cut, Use(images, use.picks, use.even)))
    return found


def merged(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts, those on the same elements put together."""
    if len(parts) == 1:
        return tuple(parts)
    alike: dict[tuple[int, ...], list[Part]] = {}
    for part in parts:
        alike.setdefault(part.use.picks, []).append(part)
    found = []
    for picks, group in alike.items():
        if len(group) == 1:
            found.append(group[0])
            continue
        images = tuple(image for part in group for image in part.use.images or ())
        use = Use(images, picks, all(part.use.even for part in group))
        found.append(Part(use, torch.cat([part.values for part in group])))
    return tuple(found)


def assemble(parts: Sequence[Part], batch: int, count: int) -> Tensor:
    """Put parts together: values `(B, C, G, H, W)` or, without positions, `(B, C, G)`; 0 where no part is."""
    first = parts[0]
    if first.use.images is None and len(first.use.picks) == count:
        return first.values
    shape = (batch, first.values.shape[1], count, *first.values.shape[3:])
    if is_channels_last(first.values) if first.values.dim() == 5 else False:
        out = first.values.new_zeros(batch, *shape[3:], *shape[1:3]).permute(0, 3, 4, 1, 2)
    else:
        out = first.values.new_zeros(shape)
    return _filled(out, parts)


def restored(parts: Sequence[Part], whole: Tensor) -> Tensor:
    """The values of all elements, those of the parts as they were computed: whole is `(B, C, G, H, W)`."""
    return _filled(whole.clone(), parts)


def _filled(out: Tensor, parts: Sequence[Part]) -> Tensor:
    """Write parts into `(B, C, G, …)`."""
    for use, values in ((part.use, part.values) for part in parts):
        if use.images is None:
            out = out.index_copy(2, _index(use.picks, out), values)
        elif len(use.picks) == out.shape[2]:
            out.index_copy_(0, _index(use.images, out), values)
        else:
            rows = _index(use.images, out)[:, None]
            out[rows, :, _index(use.picks, out)] = values.transpose(1, 2)
    return out
