"""What travels with a batch of views: how many there are of each image, their weights, and what levels decided.

A converted network sees `(B·m, …)`: m views of each image, the views of one image side by side. That batch is a
`Views`, a tensor with a `Record`. Whatever torch computes from it is a `Views` again, with the records of all inputs
merged, so that every layer finds the record on its own input: nothing is kept in the network or between calls.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions
from torch.utils._pytree import tree_flatten, tree_unflatten

from vpgcnn._ops.autograd import Function
from vpgcnn._ops.weighted_norm import batch_norm, batch_norm_by_first
from vpgcnn.errors import UserError
from vpgcnn.features import Trace, merged, recorded
from vpgcnn.groups import Group
from vpgcnn.levels import Distribution

__all__ = ["Decided", "Matrix", "NeedsAll", "Record", "Tracking", "Views", "attach", "coverage", "on_grid", "record_of"]

Matrix = tuple[tuple[int, int], tuple[int, int]]
"""An orthogonal 2×2 matrix of whole numbers."""
_Function = Callable[..., Any]
Grads = dict[tuple[str, int], Tensor]
"""Gradients of decisions (layer, number of the tensor) on their way to where the decision was made."""


class NeedsAll(Exception):  # noqa: N818 (no error: another way is taken)
    """Raised where views that were left out turn out to be needed."""


class Decided(Exception):  # noqa: N818 (no error: an answer)
    """Raised once a level has decided, if nothing else was asked.

    Args:
        q: What it decided.
    """

    def __init__(self, q: Distribution) -> None:
        super().__init__()
        self.q = q


_CALLS = itertools.count(1)


class Views(Tensor):
    """A tensor that carries a `Record`. Made by `attach`; torch's functions pass the record on."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A copy without the record: what a network remembers of a call belongs to no other."""
        with torch._C.DisableTorchFunctionSubclass():
            found: Tensor = copy.deepcopy(self.as_subclass(Tensor), memo)
        return found

    @classmethod
    def __torch_function__(
        cls,
        function: _Function,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _call(function, args, kwargs or {})


class Tracking(TorchFunctionMode):
    """Passes records on while it is active, also for tensors that cannot be `Views` (those of torch.export)."""

    def __torch_function__(
        self,
        function: _Function,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _call(function, args, kwargs or {})


# ---------------------------------------------------------------- the record


@dataclass(frozen=True)
class _Level:
    """The views that a level keeps, of those that were kept before."""

    layer: str
    before: _Rule | None


@dataclass(frozen=True)
class _Both:
    """The views that both of two branches keep."""

    one: _Rule
    two: _Rule


_Rule = _Level | _Both
"""How weights follow from a trace."""


@dataclass(frozen=True, eq=False)
class Record:
    """What is known about a batch of views. Immutable.

    Args:
        group: The group; view number u shows u⁻¹ · image for element u of its grid.
        moves: What each element does to the plane, on points (x right, y up).
        size: Rows of the batch, B·m.
        narrows: Whether the network has a level that may leave views out.
        weights: `(B, m)`, rows sum to 1: the shares of the views after the levels so far. None: no level yet.
        trace: What the levels so far decided.
        rule: How the weights follow from the trace.
        pooled: Whether the views were averaged already; then only the trace is of use.
        grads: This call's gradients across checkpoints, see `_Carry`; None where nothing is trained.
        severed: Whether the trace has no graph here, because a reentrant checkpoint keeps it apart.
        kept: The numbers of the views that are run, if some are left out because they count by 0.
        known: Decisions that were made beforehand, by layer.
        peeks: Whether only the first decision is asked for.
        call: The number of the call it belongs to; later ones are larger.
    """

    group: Group
    moves: tuple[Matrix, ...]
    size: int
    narrows: bool = False
    weights: Tensor | None = None
    trace: Trace = dataclasses.field(default_factory=dict)
    rule: _Rule | None = None
    pooled: bool = False
    grads: Grads | None = None
    severed: bool = False
    kept: tuple[int, ...] | None = None
    known: Trace = dataclasses.field(default_factory=dict)
    peeks: bool = False
    call: int = 0

    @property
    def shown(self) -> tuple[int, ...]:
        """The numbers of the views that are run."""
        return tuple(range(self.group.count)) if self.kept is None else self.kept

    @property
    def count(self) -> int:
        """The number of views of each image that are run: m, unless some are left out."""
        return self.group.count if self.kept is None else len(self.kept)

    def spread(self, rows: Tensor) -> Tensor:
        """Rows `(B·count, …)` among those of all views, `(B·m, …)`; 0 for views that are not run."""
        views = rows.unflatten(0, (-1, self.count))
        every = views.new_zeros(len(views), self.group.count, *views.shape[2:])
        every[:, self.kept] = views
        return every.flatten(0, 1)

    def restricted(self, rows: Tensor) -> Tensor:
        """Those rows of all views, `(B·m, …)`, whose views are run: `(B·count, …)`."""
        return rows.unflatten(0, (-1, self.group.count))[:, self.kept].flatten(0, 1)

    def fits(self, tensor: Tensor) -> bool:
        """Whether the rows of a tensor are the views."""
        return not self.pooled and tensor.dim() > 0 and _equal(tensor.shape[0], self.size)

    def weights_at(self, values: Tensor) -> Tensor | None:
        """The weights of the views that are run, `(B, count)`, or None.

        They have a gradient also where a checkpoint keeps the levels apart.

        Args:
            values: The tensor that carries this record.
        """
        weights = self._weights_of_all(values)
        return weights if weights is None or self.kept is None else weights[:, self.kept]

    def _weights_of_all(self, values: Tensor) -> Tensor | None:
        if self.rule is None or not self._bridges(values):
            return self.weights
        return _evaluated(self.rule, self.trace_at(values))

    def trace_at(self, values: Tensor) -> Trace:
        """The trace, with a gradient as `weights_at`."""
        if not self._bridges(values):
            return self.trace
        assert self.grads is not None
        bridged: Trace = {}
        for layer, q in self.trace.items():
            leaves, structure = tree_flatten(q)
            taps = [
                _Tap.apply(values, leaf.detach(), self.grads, (layer, number)) if leaf.is_floating_point() else leaf
                for number, leaf in enumerate(leaves)
            ]
            bridged[layer] = tree_unflatten(taps, structure)
        return bridged

    def _bridges(self, values: Tensor) -> bool:
        return self.severed and self.grads is not None and torch.is_grad_enabled() and values.requires_grad

    def decided(self, layer: str, q: Distribution, values: Tensor) -> tuple[Record, Tensor]:
        """The record after one more decision, and the values to go on with.

        Args:
            layer: The name of the layer.
            q: What its level decided.
            values: The layer's output, a plain tensor whose record was this one.
        """
        trace = recorded(self.trace, layer, q)
        name = next(reversed(trace))
        rule = _Level(name, self.rule)
        weights = _narrowed(on_grid(q), self._weights_of_all(values))
        severed = self.severed
        if self.grads is not None:
            severed = severed or not torch.is_grad_enabled()
            own = [(number, leaf) for number, leaf in enumerate(tree_flatten(q)[0]) if leaf.requires_grad]
            if own and torch.is_grad_enabled():
                keys = tuple((name, number) for number, _ in own)
                values = _Carry.apply(values, self.grads, keys, *(leaf for _, leaf in own))
        return dataclasses.replace(self, weights=weights, trace=trace, rule=rule, severed=severed), values

    def called(self, **changes: Any) -> Record:
        """The record at the start of another call of the network."""
        return dataclasses.replace(self, call=next(_CALLS), **changes)

    def after_pooling(self) -> Record:
        """The record once the views were averaged: only the trace goes on."""
        return dataclasses.replace(self, weights=None, rule=None, pooled=True)

    def merged(self, other: Record) -> Record:
        """The record of what is computed from two tensors, as the sum of two `GroupFeature`s has it.

        A tensor that a network kept from an earlier call, such as a mask of ones, counts as a constant.
        """
        if self is other:
            return self
        if self.call != other.call:
            return max(self, other, key=lambda record: record.call)
        weights, rule = self.weights, self.rule
        if self.rule is None:
            weights, rule = other.weights, other.rule
        elif other.rule is not None and self.rule != other.rule:
            assert self.weights is not None
            assert other.weights is not None
            weights, rule = _shared(self.weights, other.weights), _Both(self.rule, other.rule)
        return dataclasses.replace(
            self if other.pooled else other,
            weights=weights,
            rule=rule,
            trace=_joined(self.trace, other.trace),
            severed=self.severed or other.severed,
        )


def _joined(one: Trace, two: Trace) -> Trace:
    if one is two:
        return one
    try:
        return merged(one, two)
    except ValueError as error:
        raise UserError(
            "a convolution with a level is used in two branches that are joined later: choose others by levels="
        ) from error


def _equal(one: int, two: int) -> bool:
    """Whether two sizes are the same; of symbolic ones (torch.export), whether they are for every batch."""
    if isinstance(one, int) and isinstance(two, int):
        return one == two
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(one == two)


def coverage(weights: Tensor) -> Tensor:
    """How much of each view is kept, `(B, m)` in [0, 1]."""
    return weights / weights.amax(dim=1, keepdim=True)


def _narrowed(weights: Tensor, before: Tensor | None) -> Tensor:
    if before is None:
        return weights
    kept = weights * coverage(before)
    kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, weights)  # sampled views may be disjoint
    return kept / kept.sum(dim=1, keepdim=True)


def _shared(one: Tensor, two: Tensor) -> Tensor:
    one, two = coverage(one), coverage(two)
    kept = torch.minimum(one, two)
    kept = torch.where(kept.sum(dim=1, keepdim=True) > 0, kept, one + two)
    return kept / kept.sum(dim=1, keepdim=True)


def on_grid(q: Distribution) -> Tensor:
    """The weights of all views, `(B, m)`, by a decision."""
    # In the precision of θ: a window on the identity alone then has a weight of exactly 0 elsewhere.
    return q.weights(q.group.grid(dtype=q.theta.dtype, device=q.theta.device))


def _evaluated(rule: _Rule, trace: Trace) -> Tensor:
    if isinstance(rule, _Both):
        return _shared(_evaluated(rule.one, trace), _evaluated(rule.two, trace))
    before = None if rule.before is None else _evaluated(rule.before, trace)
    return _narrowed(on_grid(trace[rule.layer]), before)


# ---------------------------------------------------------------- gradients across reentrant checkpoints


class _Carry(Function):
    """Values as they are; their backward also gives a decision the gradients that `_Tap` collected for it.

    A reentrant checkpoint knows the graph of its arguments and outputs only, and a record is neither. What uses a
    decision on the other side of a checkpoint therefore taps a copy of it, and the gradient takes this way. All taps
    are downstream of the values, so that they have run when this runs.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, grads: Grads, keys: tuple[tuple[str, int], ...], *leaves: Tensor) -> Tensor:
        return values.clone()  # no view, so that an activation may work in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.grads, ctx.keys = inputs[1:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return grads[0], None, None, *(ctx.grads.pop(key, None) for key in ctx.keys)


class _Tap(Function):
    """A copy of a decision's tensor whose gradient is collected for `_Carry`. It counts as computed from values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, leaf: Tensor, grads: Grads, key: tuple[str, int]) -> Tensor:
        return leaf.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.grads, ctx.key = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        before = ctx.grads.get(ctx.key)
        ctx.grads[ctx.key] = grads[0] if before is None else before + grads[0]
        return None, None, None, None


# ---------------------------------------------------------------- passing records on


def record_of(tensor: object) -> Record | None:
    """The record that a tensor carries, if any."""
    return getattr(tensor, "_record", None) if isinstance(tensor, Tensor) else None


def attach(tensor: Tensor, record: Record) -> Tensor:
    """Let a tensor that nobody else holds carry a record."""
    if type(tensor) is Tensor:
        # Not `as_subclass`: it makes a view, and what is a view after a checkpoint cannot be changed in place.
        tensor.__class__ = Views
    tensor._record = record  # type: ignore[attr-defined]
    return tensor


def _found(parts: Iterable[Any], records: list[Record], tensors: list[Tensor]) -> None:
    for part in parts:
        if isinstance(part, Tensor):
            tensors.append(part)
            record = getattr(part, "_record", None)
            if record is not None:
                records.append(record)
        elif isinstance(part, list | tuple):
            _found(part, records, tensors)


_DETACH = frozenset({Tensor.detach, Tensor.detach_, torch.detach, torch.detach_, Tensor.data.__get__})  # type: ignore[attr-defined]
_NOWRAP = get_default_nowrap_functions()
_BLANK = frozenset(
    {Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor}
    | {torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like}
)
"""Functions whose result does not depend on a tensor's values: a constant, or rows that are filled later."""
_SHAPED = frozenset({Tensor.to, Tensor.type_as, Tensor.expand_as, Tensor.view_as, Tensor.reshape_as})
"""Functions that take values from their first argument only."""


def _call(function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of torch on tensors of which some carry records: the result carries them, merged."""
    records: list[Record] = []
    tensors: list[Tensor] = []
    _found(args, records, tensors)
    if kwargs:
        _found(kwargs.values(), records, tensors)
    with torch._C.DisableTorchFunctionSubclass():
        if not records or function in _NOWRAP:
            return function(*args, **kwargs)
        record = records[0]
        for other in records[1:]:
            if other is not record:
                record = record.merged(other)
        special = _SPECIAL.get(function)
        out = function(*args, **kwargs) if special is None else special(record, *args, **kwargs)
        if function is Tensor.__setitem__:
            if record_of(args[0]) is not None:
                attach(args[0], record)
            return out
        if function in _SHAPED and record_of(args[0]) is None:
            return out
        if function in _BLANK and not _may_be_rows(out, record):
            return out
        if function in _DETACH and not record.severed:
            record = dataclasses.replace(record, severed=True)
        return _carrying(out, record, function, tensors)


def _may_be_rows(out: Tensor, record: Record) -> bool:
    """Whether a tensor has as many rows as views, or a multiple of it."""
    if not out.dim() or not record.size:
        return False
    rows, size = out.shape[0], record.size
    return rows % size == 0 if isinstance(rows, int) and isinstance(size, int) else True


def _carrying(out: Any, record: Record, function: _Function, given: list[Tensor]) -> Any:
    if isinstance(out, Tensor):
        if any(out is each for each in given) and record_of(out) is None:
            # An argument without a record comes back: changed in place, or as it was ("buffer.to(x)").
            name = function.__name__
            in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
            return attach(out.view_as(out), record) if in_place else out
        return attach(out, record)
    if isinstance(out, list | tuple) and not isinstance(out, torch.Size):
        return type(out)(_carrying(each, record, function, given) for each in out)
    return out


# ---------------------------------------------------------------- functions that look at the batch as a whole


def _chosen(record: Record, x: Tensor) -> tuple[Tensor, Tensor | None] | None:
    """The rows of x whose statistics count, and the share of each (None: all the same). None: nothing special.

    Rows may be parts of views (tokens, windows), those of one view side by side.
    """
    if record.pooled or record.size == 0 or x.shape[0] % record.size:
        return None
    weights = record.weights_at(x)
    parts = x.shape[0] // record.size
    if weights is not None:
        share = weights.to(torch.promote_types(x.dtype, torch.float32)) / (weights.shape[0] * parts)
        return x, share.flatten().repeat_interleave(parts)
    if record.narrows:  # which views will count is not decided yet, but the image as it is always will
        return x.unflatten(0, (-1, record.count, parts))[:, 0].flatten(0, 1), None
    return None


def _batch_norm(
    record: Record,
    input: Tensor,  # noqa: A002 (torch's name)
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.batch_norm`; in training every image counts the same, and a view by its weight."""
    found = _chosen(record, input) if training else None
    if found is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    rows, share = found
    if rows.numel() <= rows.shape[1] * (1 if share is None else record.count):
        raise ValueError(
            f"Expected more than 1 value per channel when training, got views of size {tuple(input.shape)}"
        )
    rest = (running_mean, running_var, weight, bias, momentum, eps)
    if share is None:
        return batch_norm_by_first(input, record.count, input.shape[0] // record.size, *rest)
    return batch_norm(input, rows, share, *rest)


def _torch_batch_norm(
    record: Record,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *_: object,
) -> Tensor:
    """`torch.batch_norm`, which has its arguments in another order."""
    return _batch_norm(record, input, running_mean, running_var, weight, bias, training, momentum, eps)


def _instance_norm(
    record: Record,
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`F.instance_norm`; the running statistics, where there are any, are those of the images as they are."""
    if use_input_stats and running_mean is not None and record.narrows and record.fits(input):
        with torch.no_grad():
            first = input.unflatten(0, (-1, record.count))[:, 0]
            F.instance_norm(first, running_mean, running_var, None, None, True, momentum, eps)
        running_mean = running_var = None
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


_SPECIAL: dict[_Function, _Function] = {
    F.batch_norm: _batch_norm,
    torch.batch_norm: _torch_batch_norm,
    F.instance_norm: _instance_norm,
}
