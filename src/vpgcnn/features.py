"""What flows between layers: values over the group, the weight of each element, and what levels decided on the way."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import GetAttrKey, register_pytree_node, tree_map

from vpgcnn._ops.active import Part, Use, assemble, can_read, crossed, pick, restored, rows_of
from vpgcnn._ops.active import merged as merged_parts
from vpgcnn._ops.precision import autocast_as
from vpgcnn._ops.recompute import has_recipe, noted
from vpgcnn.groups import Group

if TYPE_CHECKING:
    from vpgcnn.levels.distributions import Distribution

__all__ = ["GroupFeature", "Prediction", "Trace", "mean_over", "output_of"]

Trace = dict[str, "Distribution"]
"""What the levels of a network decided: name of the layer → q(u|f). Treated as immutable."""

POINTWISE = frozenset(
    {F.relu, torch.relu, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.softplus, F.hardtanh, F.hardswish, F.relu6}
    | {F.celu, F.selu, F.logsigmoid, F.hardsigmoid, F.softsign, F.tanhshrink, torch.clamp}
    | {torch.tanh, torch.sigmoid, torch.abs, torch.exp, torch.square, F.prelu, F.dropout}
)
"""Functions of torch that act on every number by itself: they apply to a feature as they do to a tensor."""
POINTWISE_MODULES = frozenset(
    {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.ReLU6}
    | {nn.CELU, nn.SELU, nn.LogSigmoid, nn.Hardsigmoid, nn.Softsign, nn.Tanhshrink, nn.Tanh, nn.Sigmoid}
    | {nn.Identity, nn.PReLU}
)
"""The same as modules."""
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

    In evaluation without gradients, layers compute only the elements in use and keep them as `parts`. Reading
    `values` computes the others, once, and makes it an ordinary feature: the numbers are the same.

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
    parts: tuple[Part, ...] | None = dataclasses.field(default=None, init=False)
    """What layers have computed so far, where elements of weight 0 are left out; None where all are there."""
    whole: Callable[[], Tensor] | None = dataclasses.field(default=None, init=False)
    """Computes the values of all elements, where some are left out."""
    autocast: torch.dtype | None = dataclasses.field(default=None, init=False)
    """The precision of autocast in which that has to be done; None without autocast."""
    dense: bool = dataclasses.field(default=False, init=False)
    """Whether somebody has looked at the weights and found that all elements have to be computed."""

    @classmethod
    def of_parts(
        cls,
        parts: tuple[Part, ...],
        whole: Callable[[], Tensor],
        elements: Tensor,
        weights: Tensor,
        group: Group,
        trace: Trace,
        span: Tensor | None,
        autocast: torch.dtype | None,
    ) -> GroupFeature:
        """A feature of which only the elements in use are computed.

        Args:
            parts: Their values. Every element that is in no part has weight 0.
            whole: Computes the values of all elements.
            elements: `(G, K)`.
            weights: `(B, G)`.
            group: The group that the elements belong to.
            trace: What all levels so far decided.
            span: As in the class.
            autocast: The precision of autocast, None without it.
        """
        feature = object.__new__(cls)
        feature.__dict__.update(
            elements=elements, weights=weights, group=group, trace=trace, span=span,
            parts=parts, whole=whole, autocast=autocast, dense=False,
        )  # fmt: skip
        return feature

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
        return total_kl(self.trace, self.values if self.weights is None else self.weights)

    def coverage(self) -> Tensor | None:
        """How much of each element is kept, `(B, G)` in [0, 1]: weights / largest weight. None: all."""
        if self.weights is None:
            return None
        return self.weights / self.weights.amax(dim=1, keepdim=True)

    def mean(self) -> Tensor:
        """The average over the group under the weights, `(B, C, H, W)`. Invariant."""
        return self.pooled(mean_over)

    def pooled(self, pool: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """Pool over the elements in use.

        Args:
            pool: From values `(N, C, G', H, W)` and weights `(N, G')`, None for uniform, to `(N, C, H, W)`.

        Returns:
            `(B, C, H, W)`.
        """
        if self.parts is None:
            return pool(self.values, self.weights)
        one = [
            Part(Use(part.use.images, (0,), True), pool(part.values, part.weights(self.weights)).unsqueeze(2))
            for part in self.parts
        ]
        return assemble(one, self.shape[0], 1).squeeze(2)

    def put_together(self, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """What a function that is 0 where weights are makes of values and weights: `(B, C, G, H, W)`.

        Args:
            function: From values `(N, C, G', H, W)` and weights `(N, G')`, None for uniform, to the same shape.
        """
        if self.parts is None:
            return function(self.values, self.weights)
        made = [Part(part.use, function(part.values, part.weights(self.weights))) for part in self.parts]
        return assemble(made, self.shape[0], self.shape[2])

    # ------------------------------------------------------------ like a tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the values, (B, C, G, H, W)."""
        if self.parts is None or self.weights is None:
            return self.values.shape
        one = self.parts[0].values.shape
        return torch.Size((self.weights.shape[0], one[1], self.weights.shape[1], *one[3:]))

    @property
    def device(self) -> torch.device:
        return self.some.device

    @property
    def dtype(self) -> torch.dtype:
        return self.some.dtype

    @property
    def some(self) -> Tensor:
        """A tensor with the device and precision of the values."""
        return self.values if self.parts is None else self.parts[0].values

    def __len__(self) -> int:
        return self.shape[0]

    def with_values(self, values: Tensor) -> GroupFeature:
        """Other values on the same elements, with the same weights and trace."""
        made = GroupFeature(values, self.elements, self.weights, self.group, self.trace, self.span)
        return made.known_dense() if self.dense else made

    def known_dense(self) -> GroupFeature:
        """This feature, of which layers need not ask again whether elements can be left out."""
        object.__setattr__(self, "dense", True)
        return self

    def map(self, function: Callable[[Tensor], Tensor]) -> GroupFeature:
        """Apply a pointwise function (an activation) to the values. Equivariant.

        Functions of torch are applied to the elements in use only; for others, which could look at all elements, the
        values of all are computed.
        """
        return self.each(function) if _is_pointwise(function) else self.with_values(function(self.values))

    def each(
        self, function: Callable[[Tensor], Tensor], later: Callable[[Tensor], Tensor] | None = None
    ) -> GroupFeature:
        """Apply a function that treats all images and elements alike, and each of them apart.

        Args:
            function: From `(N, C, G', H, W)` to `(N, C', G', H', W')`, for any number N of the images and G' of the
                elements. It must not change its input.
            later: The same function for elements that are left out now; None for the function itself.

        Returns:
            A feature on the same elements.
        """
        if self.parts is None or self.whole is None:
            values = self.values
            out = function(values)
            return self.with_values(_noted(out, function, values) if function in POINTWISE else out)
        before, again = self.whole, later or function
        return self._with_parts(tuple(part.map(function) for part in self.parts), lambda: again(before()))

    def each_weighted(self, function: Callable[[Tensor, Tensor | None], Tensor]) -> GroupFeature:
        """The same for a function that also takes the weights `(N, G')`, or None for uniform ones."""
        if self.parts is None or self.whole is None:
            return self.with_values(function(self.values, self.weights))
        before, weights = self.whole, self.weights
        parts = tuple(Part(part.use, function(part.values, part.weights(weights))) for part in self.parts)
        return self._with_parts(parts, lambda: function(before(), weights))

    def _with_parts(self, parts: tuple[Part, ...], whole: Callable[[], Tensor]) -> GroupFeature:
        assert self.weights is not None
        rest = self.elements, self.weights, self.group, self.trace, self.span
        return GroupFeature.of_parts(parts, whole, *rest, self.autocast)

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
            feature, rest, options = args[0], args[1:], kwargs or {}
            if _keeps_elements_apart(function, rest, options):
                made = feature.each(lambda values: function(values, *rest, **options))
                if feature.parts is None and not isinstance(function, nn.Module):
                    _noted(made.values, lambda values: function(values, *rest, **options), feature.values)
                return made
            return feature.with_values(function(feature.values, *rest, **options))
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
        one, two = (None, None) if _keep_the_same(self, other) else (self.coverage(), other.coverage())
        if one is None or two is None:
            weights = self.weights if two is None else other.weights
        else:
            kept = torch.minimum(one, two)
            kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, one + two)
            weights = kept / kept.sum(dim=1, keepdim=True)
        trace = merged(self.trace, other.trace)
        parts = None if weights is None else _added(self, other, weights)
        if parts is None or weights is None:
            values = self.values + other.values
            made = GroupFeature(values, self.elements, weights, self.group, trace, self.span)
            known = all(each.dense or each.weights is None for each in (self, other))
            return made.known_dense() if known else made
        mine, theirs = _whole(self), _whole(other)
        rest = self.elements, weights, self.group, trace, self.span
        return GroupFeature.of_parts(parts, lambda: mine() + theirs(), *rest, self.autocast or other.autocast)

    def detach(self) -> GroupFeature:
        if self.parts is not None and self.whole is not None and self.weights is not None:
            if not torch.is_grad_enabled():
                return self
            trace = tree_map(lambda part: part.detach() if isinstance(part, Tensor) else part, self.trace)
            parts = tuple(part.map(Tensor.detach) for part in self.parts)
            rest = self.elements.detach(), self.weights.detach(), self.group, trace, self.span
            return GroupFeature.of_parts(parts, self.whole, *rest, self.autocast)
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
        """Compute the values that were left out; for names that a feature does not have, explain why."""
        if name == "values" and self.whole is not None:
            with torch.no_grad(), autocast_as(self.autocast, self.device):
                values = restored(self.parts or (), self.whole())
            # From here on it is an ordinary feature: what a reader writes into the values, layers see.
            for part, value in (("values", values), ("parts", None), ("whole", None)):
                object.__setattr__(self, part, value)
            return values
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'GroupFeature' object has no attribute {name!r}")
        raise AttributeError(
            f"a GroupFeature is not a tensor and has no {name!r}: use feature.map(…) for pointwise functions, "
            "GroupBatchNorm, GroupConv2d, SpatialPool or GroupPool instead of the layers of torch.nn, or feature.values"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and pickles, which hold the values of all elements."""
        return GroupFeature, (self.values, self.elements, self.weights, self.group, self.trace, self.span)

    def __repr__(self) -> str:
        batch, channels, count, height, width = self.shape
        kept = "full" if self.weights is None else "weighted"
        own = " per image" if self.moves_elements else ""
        sizes = f"{self.group}: {batch} images, {channels} channels, {count} elements{own}, {height}×{width}"
        return f"GroupFeature({sizes}, {kept}, {str(self.dtype).removeprefix('torch.')}, {self.device})"


def _same(one: Tensor, two: Tensor) -> bool:
    """Whether two branches have the same elements. The grid travels with the feature: mostly it is one tensor."""
    if one is two:
        return True
    if one.shape != two.shape:
        return False
    if one.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.equal(one, two)
    # Reading from another device would wait for it.
    torch._assert_async((one == two).all(), "cannot add features on different elements")
    return True


def mean_over(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean of values `(B, C, G, H, W)` over elements under weights `(B, G)`."""
    if weights is None:
        return values.mean(dim=2) if values.shape[2] > 1 else values.squeeze(2)
    return torch.einsum("bcghw,bg->bchw", values, weights.to(values.dtype))


def _noted(out: Tensor, function: Callable[..., Tensor], values: Tensor) -> Tensor:
    """Note how an activation is computed again, if its input is."""
    return noted(out, function, values) if function is not F.dropout and has_recipe(values) else out


def _is_pointwise(function: Callable[..., Any]) -> bool:
    """Whether a function is known to treat every element apart."""
    if type(function) is nn.Conv3d:
        sizes = {*function.kernel_size, *function.stride}
        return sizes == {1} and function.padding in ((0, 0, 0), "valid", "same")
    if isinstance(function, nn.Module):
        return type(function) in POINTWISE_MODULES and not getattr(function, "inplace", False)
    return function in POINTWISE and function is not F.dropout


def _keeps_elements_apart(function: Callable[..., Any], rest: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a pointwise function may be applied to some of the elements: it is not random, and not in place."""
    if function is F.prelu:
        return True
    if function is F.dropout:
        return options.get("training", rest[1] if len(rest) > 1 else True) is False
    if options.get("inplace", False) or any(value is True for value in rest):
        return False
    return not any(isinstance(value, Tensor) for value in (*rest, *options.values()))


def _whole(feature: GroupFeature) -> Callable[[], Tensor]:
    """Computes the values of all elements, without holding on to more than that needs."""
    if feature.whole is not None:
        return feature.whole
    values = feature.values
    return lambda: values


def _added(one: GroupFeature, two: GroupFeature, weights: Tensor) -> tuple[Part, ...] | None:
    """The parts of a sum with these weights: the elements that both branches have. None: all are needed."""
    if one.parts is None and two.parts is None:
        return None
    if one.parts is not None and two.parts is not None and _keep_the_same(one, two):
        return (Part(one.parts[0].use, one.parts[0].values + two.parts[0].values),)
    every = Use(None, tuple(range(weights.shape[1])), True)
    mine = one.parts or (Part(replace(every, even=one.weights is None), one.values),)
    yours = two.parts or (Part(replace(every, even=two.weights is None), two.values),)
    found = []
    for right in yours:
        for left, _ in crossed(mine, [right.use]):
            common = tuple(place for place in left.use.picks if place in right.use.picks)
            if not common:
                return None
            ours = pick(left.values, [left.use.picks.index(place) for place in common])
            others = pick(right.of(left.use.images), [right.use.picks.index(place) for place in common])
            even = left.use.even and right.use.even
            found.append(Part(Use(left.use.images, common, even), ours + others))
    parts = merged_parts(found)
    return parts if _hold_all(parts, weights) else None


def _keep_the_same(one: GroupFeature, two: GroupFeature) -> bool:
    """Whether two branches are known to keep the same elements, all alike: then so does their sum."""
    if one.parts is None or two.parts is None or len(one.parts) != 1 or len(two.parts) != 1:
        return False
    mine, yours = one.parts[0].use, two.parts[0].use
    return mine == yours and mine.even and mine.images is None


def _hold_all(parts: tuple[Part, ...], weights: Tensor) -> bool:
    """Whether all elements of positive weight are in the parts: not if the branches of an image share none."""
    if not can_read(weights):
        return True  # sets of learned levels, which are the same for all images and share an element
    return sum(int(rows_of(part.use, weights).count_nonzero()) for part in parts) == int(weights.count_nonzero())


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
    """How much of the group is not in use, `(B,)`: the sum over all decisions that belong to the loss."""
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
    """Values `(B,)` of a decision; 0 for images whose window was drawn at random, but with their slopes."""
    return values if q.explored is None else torch.where(q.explored[:, 0] < 0, values, values - values.detach())


class Prediction(NamedTuple):
    """The answer of a network.

    Args:
        logits: `(B, classes)`, or maps `(B, classes, H, W)`.
        trace: What its levels decided, by the name of their layer; empty where there are none.
    """

    logits: Tensor
    trace: Trace

    @property
    def outputs(self) -> Any:
        """All that the network returned: the logits, unless a converted network has several outputs."""
        return self.logits

    @property
    def kl(self) -> Tensor:
        """The KL of all levels that belong to the loss, `(B,)` in nats; 0 where there are none."""
        return total_kl(self.trace, self.logits)

    @property
    def unused(self) -> Tensor:
        """How much of the group is not in use, `(B,)`: the sum over the levels that belong to the loss."""
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
