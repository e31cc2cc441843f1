"""What each width of a window costs an image, as a level learns it, and the width that is best.

In a training step an image has a window of one width. The backward pass says how its loss would change if the window
were a little wider: the slope of the loss at that width. An encoder predicts these slopes for all widths, as straight
lines between `KNOTS` knots, and learns by regression on those that come back (`teach`). The area under the predicted
slopes is what a window costs. A level takes the window that costs least (`cheapest`). It sees all widths at once, so
neither a flat stretch nor a hill between two widths can hold it.

Widths are counted by their *opening*: 0 for a window on the identity alone, 1 for the whole circle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.constants import constant
from vpgcnn._ops.distributed import is_distributed, sum_over_processes

__all__ = ["KNOTS", "bowl", "cheapest", "cost_of", "decided", "drawn", "slopes_at", "slopes_of", "teach"]

KNOTS = 9
"""At how many openings, evenly spaced from 0 to 1, a slope is predicted."""
DEPTH = 0.05
"""How fast the slopes rise with the opening before anything is learned, in nats; their zero is the first window."""
INFLUENCE = 3.0
"""The steepest slope of the classification loss that an image may teach, as a multiple of the mean over the batch …"""
WORTH = 100.0
"""… or, if that is more, as a multiple of what all images pay."""
CALM = 0.001
"""The square of the answer of an encoder from which on slopes grow faster than it."""
STEP = 1 / (KNOTS - 1)
"""The distance of two knots."""
TINY = 1e-30
"""Keeps quotients finite where they are not used."""
_PLACES = tuple(number / (KNOTS - 1) for number in range(KNOTS))


def bowl(opening: Tensor) -> Tensor:
    """What an encoder answers `(…, K·KNOTS)` where the cost is lowest at the openings `(…, K)`, one for each axis."""
    slopes = DEPTH * (constant(_PLACES, opening.dtype, opening.device) - opening.unsqueeze(-1))
    square = (CALM**2 + 4 * slopes.square()).sqrt() - CALM  # the inverse of `slopes_of`
    return (slopes.sign() * (square / 2).sqrt()).flatten(-2)


def slopes_of(raw: Tensor) -> Tensor:
    """The slopes `(B, K, KNOTS)` of the classification loss, in nats, that an encoder's answers `(B, K·KNOTS)` predict.

    Steeper than proportional: windows of most images cost next to nothing and those of a few cost much. Where the
    encoder takes the former for the latter by a tenth, it should be wrong by a hundredth of the cost.
    """
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    return (raw * (raw.square() + CALM).sqrt()).unflatten(1, (-1, KNOTS))


def cost_of(slopes: Tensor) -> Tensor:
    """The cost `(B, K, KNOTS)` of each knot against closed windows: the area under the slopes `(B, K, KNOTS)`."""
    return F.pad((STEP / 2 * (slopes[..., :-1] + slopes[..., 1:])).cumsum(dim=-1), (1, 0))


def cheapest(slopes: Tensor) -> Tensor:
    """The opening that costs least, exactly; the widest of those that cost the same.

    Args:
        slopes: `(B, K, KNOTS)`, of the cost at evenly spaced openings.

    Returns:
        Openings `(B, K)` in [0, 1]. No gradient passes.
    """
    slopes = slopes.detach()
    found: Tensor = _cheapest(slopes, cost_of(slopes), constant(_PLACES[:-1], slopes.dtype, slopes.device), torch)
    return found


def _cheapest(slopes: Any, cost: Any, start: Any, lib: Any) -> Any:
    """The same by functions that PyTorch and NumPy share, from slopes, their costs, and where each stretch starts."""
    before, after = slopes[..., :-1], slopes[..., 1:]
    # Between two knots the cost is a parabola. Where the slope rises through 0 it has its lowest point between them,
    # else at one of them.
    valley = (before < 0) & (after > 0)
    way = lib.where(valley, -before / (after - before).clip(TINY), 0.0)
    lowest, end = cost[..., :-1] + STEP / 2 * before * way, cost[..., -1]
    least = lib.minimum(lib.amin(lowest, -1), end)
    place = lib.amax(lib.where(lowest <= least[..., None], start + STEP * way, 0.0), -1)
    return lib.where(end <= least, 1.0, place)


def decided(raw: Tensor, prior: Tensor) -> Tensor:
    """`cheapest(slopes_of(raw) + prior)` on a CPU where the program may read numbers.

    NumPy takes a fraction of the time that PyTorch does to start a dozen operations on a few numbers. Slopes are those
    of PyTorch to the last bit, whose roots are rounded differently: rounding decides between widths of equal cost.

    Args:
        raw: An encoder's answers `(B, K·KNOTS)`.
        prior: Slopes `(K, KNOTS)` that all images pay.
    """
    own = slopes_of(raw.detach())
    slopes = (own + prior.detach().to(own.dtype)).numpy()
    with np.errstate(all="ignore"):  # quotients that are not used may overflow
        return torch.from_numpy(_cheapest(slopes, _cost_of(slopes), np.array(_PLACES[:-1], slopes.dtype), np))


def _cost_of(slopes: Any) -> Any:
    """`cost_of` of an array. PyTorch, too, adds up in double precision."""
    cost = np.zeros(slopes.shape, slopes.dtype)
    cost[..., 1:] = (STEP / 2 * (slopes[..., :-1] + slopes[..., 1:])).cumsum(-1, np.float64)
    return cost


def drawn(noise: Tensor) -> Tensor:
    """Random openings from noise in [0, 1): three eighths closed, a quarter open, the others even in between."""
    # Many are closed: what closed windows are good for, such as directions, often takes longest to learn.
    return ((8 * noise - 3) / 3).clamp(0, 1)


def slopes_at(slopes: Tensor, opening: Tensor) -> Tensor:
    """The predicted slopes `(B, K, KNOTS)` at the openings `(B, K)`: `(B, K)`."""
    places = constant(_PLACES, slopes.dtype, slopes.device)
    near = F.relu(1 - (KNOTS - 1) * (opening.unsqueeze(-1) - places).abs())
    return (slopes * near).sum(dim=-1)


class _Teach(Function):
    """The opening; its gradient becomes the error of the predicted slope."""

    generate_vmap_rule = True

    @staticmethod
    def forward(opening: Tensor, predicted: Tensor, paid: Tensor | None) -> Tensor:
        return opening.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        (predicted, paid), (slopes,) = ctx.saved_tensors, grads
        if paid is not None:
            total, count = slopes.abs().sum(dim=0), slopes.new_tensor(float(len(slopes)))
            if is_distributed():
                total, count = sum_over_processes(total), sum_over_processes(count)
            most = torch.maximum(INFLUENCE * total / count.clamp_min(1), WORTH * paid.abs() / max(1, len(slopes)))
            slopes = slopes.clamp(-most, most)
        return None, predicted / max(1, len(predicted)) - slopes, None


def teach(opening: Tensor, predicted: Tensor, paid: Tensor | None = None) -> Tensor:
    """The openings as they are; the backward pass fits the predicted slopes to those of the loss.

    The gradient of `predicted` is that of half the mean squared difference between it and the slope of each image's
    loss, where the loss that is differentiated is the mean over the batch. If it is a multiple of that (a sum, or one
    part of an accumulated gradient), the predictions become slopes of that multiple, whose lowest point is the same.

    Args:
        opening: `(B, K)`, what the windows are made of.
        predicted: `(B, K)`, the predicted slopes there.
        paid: `(B, K)`, the slopes of what all images pay. With them, steeper slopes than `WORTH` times that, and than
            `INFLUENCE` times the mean over the batch, count as these. A few misclassified images have slopes a hundred
            times as steep as the others, and would decide for all that look like them. None: no limit.

    Returns:
        `(B, K)`.
    """
    taught: Tensor = apply(_Teach, opening, predicted, paid)
    return taught
