"""What flows between layers: values over the group, the weight of each element, and what levels decided on the way."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node, tree_map

from vpgcnn.groups import Group

if TYPE_CHECKING:
    from vpgcnn.levels.distributions import Distribution

__all__ = ["GroupFeature", "Prediction", "Trace", "output_of"]

Trace = dict[str, "Distribution"]
"""What the levels of a network decided: name of the layer → q(u|f). Treated as immutable."""

POINTWISE = frozenset(
    {F.relu, torch.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish, F.relu6}
    | {F.celu, F.selu, F.logsigmoid, F.hardsigmoid, F.softsign, F.tanhshrink, torch.clamp}
    | {torch.tanh, torch.sigmoid, torch.abs, torch.exp, torch.square, F.prelu, F.dropout}
)
"""Functions of torch that act on every number by itself: they apply to a feature as they do to a tensor."""
INSTEAD = {
    F.batch_norm: "GroupBatchNorm",
    F.layer_norm: "GroupLayerNorm",
    F.group_norm: "GroupLayerNorm",
    F.conv2d: "GroupConv2d",
    F.max_pool2d: 'SpatialPool("max", size)',
    F.avg_pool2d: 'SpatialPool("avg", size)',
    F.linear: "GroupPool() and a mean over positions, then nn.Linear",
    torch.flatten: "GroupPool()",
    torch.softmax: "GroupPool() first",
    F.softmax: "GroupPool() first",
    F.dropout2d: "GroupDropout",
    F.adaptive_avg_pool2d: "GroupPool() first, then a mean over positions",
    torch.cat: "feature.with_values(torch.cat([a.values, b.values], dim=1))",
}
"""What to use instead of a function that does not know about elements and weights."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupFeature:
    """A feature map on the group: f(u, x) for a list of elements u.

    Weights are carried beside the values and applied where elements are summed: in the next
    convolution, in a norm's statistics, in the pool over the group. Torch's pointwise activations
    (`nn.ReLU`, `F.silu`, …) apply to a feature directly, and `a + b` is the residual sum.

    Args:
        values: `(B, C, G, H, W)`.
        elements: `(G, K)`, or `(B, G, K)` when each image has its own. Angles, see `groups`.
        weights: `(B, G)`, rows sum to 1: q(u|f) of the layer that made the feature. None: uniform.
        group: The group that the elements belong to.
        trace: What all levels so far decided, by the name of their layer.
        span: `(B, K)`, the share of each circle that an image's own elements are spread over. None: all of it.
    """

    values: Tensor
    elements: Tensor
    weights: Tensor | None
    group: Group
    trace: Trace = dataclasses.field(default_factory=dict)
    span: Tensor | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.values, Tensor):
            return  # a tree of specs or placeholders (torch.export), not data
        if self.values.dim() != 5:
            raise ValueError(f"values must be B×C×G×H×W, got shape {tuple(self.values.shape)}")
        batch, count = self.values.shape[0], self.values.shape[2]
        if self.elements.shape[-1] != len(self.group.axes):
            raise ValueError(
                f"an element of {self.group} has {len(self.group.axes)} angles, got {tuple(self.elements.shape)}"
            )
        own = (batch, count) if self.moves_elements else (count,)
        if self.elements.shape[:-1] != own:
            raise ValueError(f"values have {count} elements, but elements have shape {tuple(self.elements.shape)}")
        if self.weights is not None and self.weights.shape != (batch, count):
            raise ValueError(f"weights must be {batch}×{count}, got shape {tuple(self.weights.shape)}")

    # ------------------------------------------------------------ the group axis

    @property
    def moves_elements(self) -> bool:
        """Whether each image has elements of its own."""
        return self.elements.dim() == 3

    @property
    def kl(self) -> Tensor:
        """The KL of all levels so far, `(B,)` in nats."""
        return total_kl(self.trace, self.values)

    def coverage(self) -> Tensor | None:
        """How much of each element is kept, `(B, G)` in [0, 1]: weights / largest weight. None: all."""
        if self.weights is None:
            return None
        return self.weights / self.weights.amax(dim=1, keepdim=True)

    def mean(self) -> Tensor:
        """The average over the group under the weights, `(B, C, H, W)`. Invariant."""
        if self.weights is None:
            return self.values.mean(dim=2)
        weights = self.weights.to(self.values.dtype)
        return torch.einsum("bcghw,bg->bchw", self.values, weights)

    # ------------------------------------------------------------ like a tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the values, (B, C, G, H, W)."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def __len__(self) -> int:
        return self.values.shape[0]

    def with_values(self, values: Tensor) -> GroupFeature:
        """Other values on the same elements, with the same weights and trace."""
        return replace(self, values=values)

    def map(self, function: Callable[[Tensor], Tensor]) -> GroupFeature:
        """Apply a pointwise function (an activation) to the values. Equivariant."""
        return self.with_values(function(self.values))

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let torch's pointwise functions act on the values; refuse others by name."""
        if function in POINTWISE and args and isinstance(args[0], GroupFeature):
            feature = args[0]
            return feature.with_values(function(feature.values, *args[1:], **(kwargs or {})))
        name = getattr(function, "__name__", str(function))
        instead = (
            f": use {INSTEAD[function]}" if function in INSTEAD else ": pointwise functions go through feature.map"
        )
        raise TypeError(f"torch's {name} does not act on a GroupFeature{instead}")

    def __add__(self, other: object) -> GroupFeature:
        """The residual sum of two branches on the same elements. Equivariant.

        Values add. The sum keeps what both branches keep: the smaller coverage of the two, renormalised. For two
        windows on a circle that is exactly the narrower one. An element that one branch left out stays out, unless
        nothing would be left (sampled elements may be disjoint): then both are kept. Traces are merged.
        """
        if not isinstance(other, GroupFeature):
            return NotImplemented
        if self.shape != other.shape or self.group != other.group:
            raise ValueError(f"cannot add {self} and {other}: shapes or groups differ")
        if not _same(self.elements, other.elements):
            raise ValueError(
                "cannot add features on different elements: pass `elements=` of one branch to the other's convolution"
            )
        one, two = self.coverage(), other.coverage()
        if one is None or two is None:
            weights = other.weights if one is None else self.weights
        else:
            kept = torch.minimum(one, two)
            kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, one + two)
            weights = kept / kept.sum(dim=1, keepdim=True)
        trace = merged(self.trace, other.trace)
        return replace(self, values=self.values + other.values, weights=weights, trace=trace)

    def detach(self) -> GroupFeature:
        detached: GroupFeature = tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, self)
        return detached

    def to(self, *args: Any, **kwargs: Any) -> GroupFeature:
        """`Tensor.to` for the values; the other parts follow to the device and keep their precision."""
        values = self.values.to(*args, **kwargs)
        if values.device == self.values.device:
            return replace(self, values=values)
        moved: GroupFeature = tree_map(lambda part: part.to(values.device) if isinstance(part, Tensor) else part, self)
        return replace(moved, values=values)

    def __getitem__(self, images: SupportsIndex | slice | Tensor | list[int]) -> GroupFeature:
        """Some of the images: `feature[3]`, `feature[:8]`, `feature[mask]`. The batch axis stays."""
        if isinstance(images, slice | list) or (isinstance(images, Tensor) and images.dim() > 0):
            index = images
        else:
            number = operator.index(images)
            if not -len(self) <= number < len(self):
                raise IndexError(f"image {number} of {len(self)}")
            index = slice(number % len(self), number % len(self) + 1)
        batch = len(self)

        def pick(part: Any) -> Any:
            own = isinstance(part, Tensor) and part.dim() > 0 and part.shape[0] == batch
            return part[index] if own else part

        elements = pick(self.elements) if self.moves_elements else self.elements  # there may be as many as images
        weights, trace, span = (tree_map(pick, part) for part in (self.weights, self.trace, self.span))
        return GroupFeature(self.values[index], elements, weights, self.group, trace, span)

    def __iter__(self) -> Iterator[GroupFeature]:
        return (self[image] for image in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        """Explain why a method of tensors is missing: called only for names that a feature does not have."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'GroupFeature' object has no attribute {name!r}")
        raise AttributeError(
            f"a GroupFeature is not a tensor and has no {name!r}: use feature.map(…) for pointwise functions, "
            "GroupBatchNorm, GroupConv2d, SpatialPool or GroupPool instead of the layers of torch.nn, or feature.values"
        )

    def __repr__(self) -> str:
        batch, channels, count, height, width = self.values.shape
        kept = "full" if self.weights is None else "weighted"
        own = " per image" if self.moves_elements else ""
        sizes = f"{self.group}: {batch} images, {channels} channels, {count} elements{own}, {height}×{width}"
        return f"GroupFeature({sizes}, {kept}, {str(self.dtype).removeprefix('torch.')}, {self.device})"


def _same(one: Tensor, two: Tensor) -> bool:
    """Whether two branches have the same elements. The grid travels with the feature: mostly it is one tensor."""
    if one is two:
        return True
    if torch.compiler.is_compiling():
        if one.shape == two.shape:
            torch._assert_async((one == two).all(), "cannot add features on different elements")
        return one.shape == two.shape
    if one.shape != two.shape or one.device.type == "meta":
        return one.shape == two.shape
    return torch.equal(one, two)


NAMES = ("values", "elements", "weights", "trace", "span")


def _flatten(feature: GroupFeature) -> tuple[list[Any], Group]:
    return [getattr(feature, name) for name in NAMES], feature.group


def _unflatten(parts: Iterable[Any], group: Group) -> GroupFeature:
    return GroupFeature(**dict(zip(NAMES, parts, strict=True)), group=group)


def _flatten_with_keys(feature: GroupFeature) -> tuple[list[tuple[Any, Any]], Group]:
    parts, group = _flatten(feature)
    return [(GetAttrKey(name), part) for name, part in zip(NAMES, parts, strict=True)], group


# torch.export, torch.func and others may take a feature apart and put it together again.
register_pytree_node(
    GroupFeature,
    _flatten,
    _unflatten,
    serialized_type_name="vpgcnn.GroupFeature",
    flatten_with_keys_fn=_flatten_with_keys,
)


# ---------------------------------------------------------------- the trace


def recorded(trace: Trace, layer: str, q: Distribution) -> Trace:
    """The trace with one more decision. A layer that is used again is numbered: "conv", "conv (2)"."""
    name, number = layer, 1
    while name in trace:
        number += 1
        name = f"{layer} ({number})"
    return {**trace, name: q}


def merged(one: Trace, two: Trace) -> Trace:
    """What two branches decided, each decision once. What both have from before they parted is the same object."""
    for layer, q in two.items():
        if layer in one and one[layer] is not q:
            raise ValueError(
                f"both branches hold a decision of the layer {layer!r}, and not the same one: use one layer for each "
                "branch, with names of their own (name_layers)"
            )
    return {**one, **two}


def total_kl(trace: Trace, like: Tensor) -> Tensor:
    """The KL of all decisions that belong to the loss, `(B,)`, in at least single precision."""
    return _total([_decided(q, q.kl()) for q in trace.values() if q.regularised], like)


def total_unused(trace: Trace, like: Tensor) -> Tensor:
    """The share of the group that is not in use, `(B,)`: the sum over all decisions that belong to the loss."""
    return _total([_decided(q, q.unused()) for q in trace.values() if q.regularised], like)


def _total(parts: list[Tensor], like: Tensor) -> Tensor:
    if not parts:
        dtype = torch.promote_types(like.dtype, torch.float32)
        return torch.zeros(like.shape[0], dtype=dtype, device=like.device)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _decided(q: Distribution, values: Tensor) -> Tensor:
    """Values `(B,)` of a decision; 0 for images whose window was drawn at random, as nothing can be learned from it."""
    return values if q.explored is None else torch.where(q.explored[:, 0] < 0, values, 0.0)


class Prediction(NamedTuple):
    """The answer of a network.

    Args:
        logits: `(B, classes)`.
        trace: What its levels decided, by the name of their layer; empty where there are none.
    """

    logits: Tensor
    trace: Trace

    @property
    def kl(self) -> Tensor:
        """The KL of all levels that belong to the loss, `(B,)` in nats; 0 where there are none."""
        return total_kl(self.trace, self.logits)

    @property
    def unused(self) -> Tensor:
        """1 − θ of each image, `(B,)`: the sum over the levels that belong to the loss; 0 where there are none."""
        return total_unused(self.trace, self.logits)

    @property
    def theta(self) -> dict[str, Tensor]:
        """θ of each image, by the name of the layer: `(B, K)`, one for each axis of the group."""
        return {layer: q.theta for layer, q in self.trace.items()}


def output_of(result: object) -> Tensor | GroupFeature:
    """The tensor or feature that a model's answer is about: the first one in a tuple, dictionary or dataclass."""
    while not isinstance(result, Tensor | GroupFeature):
        if dataclasses.is_dataclass(result):
            result = getattr(result, dataclasses.fields(result)[0].name)
        elif isinstance(result, Mapping):
            result = next(iter(result.values()))
        elif isinstance(result, Sequence) and not isinstance(result, str) and result:
            result = result[0]
        else:
            raise TypeError(f"expected tensors or a GroupFeature from the model, got {type(result).__name__}")
    return result
