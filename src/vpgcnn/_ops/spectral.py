"""Plane convolution in the Fourier basis, for large kernels on a CPU, as matrix products only.

A convolution is a product at each frequency, so a k×k kernel costs a few products per frequency instead of k² per
position: for k = 7 on a 32×32 map, a fifteenth. The price is the transforms. They are products with small matrices
(maps are too small for a fast Fourier transform to win) that leave frequencies first and images and channels last,
the order that the product over channels needs.

With a period of N = size + padding nothing wraps around into the result. A real map is determined by half of its
frequencies along the width, F = N_w/2 + 1, and all of them along the height.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn._ops import choice
from vpgcnn._ops.active import can_read
from vpgcnn._ops.autograd import Function, apply
from vpgcnn._ops.recompute import has_recipe, noted

__all__ = ["conv2d", "convolve", "pays"]

PAYS = 0.25  # the largest share of the multiplications: small products and transposes are slower (measured)
SMALLEST = 5  # the smallest kernel for which it can pay
CHUNK = 64  # images at a time, so that extra memory does not grow with the batch


class Plan(NamedTuple):
    """The sizes of a convolution: height and width of the map, side of the kernel, padding."""

    height: int
    width: int
    size: int
    padding: int

    @property
    def outputs(self) -> tuple[int, int]:
        """Height and width of the output map."""
        grown = 2 * self.padding - self.size + 1
        return self.height + grown, self.width + grown

    @property
    def periods(self) -> tuple[int, int]:
        """Periods of the transform along height and width."""
        return self.height + self.padding, self.width + self.padding

    @property
    def frequencies(self) -> tuple[int, int]:
        """Numbers of frequencies along height and width; half along the width, as maps are real."""
        return self.periods[0], self.periods[1] // 2 + 1


def _plan(values: Tensor, weight: Tensor, padding: int) -> Plan:
    return Plan(values.shape[-2], values.shape[-1], weight.shape[-1], padding)


def conv2d(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    factors: Tensor | None = None,
) -> Tensor:
    """`F.conv2d` by the faster of two algorithms.

    Args:
        values: `(B, C, H, W)`.
        weight: `(O, C, k, k)`.
        bias: `(O,)`, or None.
        stride: As in `F.conv2d`.
        padding: As in `F.conv2d`.
        dilation: As in `F.conv2d`.
        factors: `(B, C)`, multiplied into the values first; None for 1.

    Returns:
        `(B, O, H', W')`.
    """
    if stride == dilation == 1 and weight.shape[-1] >= SMALLEST and _is_faster(values, weight, padding, factors):
        out = convolve(values, weight, padding, factors)
        return out if bias is None else out + bias[:, None, None]
    return F.conv2d(_times_factors(values, factors), weight, bias, stride, padding, dilation)


def _times_factors(values: Tensor, factors: Tensor | None) -> Tensor:
    if factors is None:
        return values
    out = values * factors[..., None, None]
    if has_recipe(values) or factors.requires_grad:  # then the values are kept in any case
        noted(out, _times_factors, values, factors)
    return out


def possible(values: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether the Fourier basis can be used: on a CPU, in full precision."""
    if values.device.type != "cpu" or values.dtype not in (torch.float32, torch.float64):
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or values.dtype != weight.dtype:
        return False
    return min(_plan(values, weight, padding).outputs) > 0


def _is_faster(values: Tensor, weight: Tensor, padding: int, factors: Tensor | None) -> bool:
    """Whether to use the Fourier basis: by the rule, or by measurements where these are wanted."""
    rule = pays(values, weight, padding)
    if not (choice.is_measuring(values) and can_read(weight) and possible(values, weight, padding)):
        return rule
    key = choice.key_of("plane", values, *weight.shape, padding, factors is not None)
    programs = {
        "direct": lambda x, w, f=None: F.conv2d(_times_factors(x, f), w, padding=padding),
        "spectral": lambda x, w, f=None: convolve(x, w, padding, f),
    }
    tensors = (values, weight) if factors is None else (values, weight, factors)
    return choice.choose(key, "spectral" if rule else "direct", tensors, programs) == "spectral"


def pays(values: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether the Fourier basis is faster by the rule: where it needs far fewer multiplications."""
    if not possible(values, weight, padding):
        return False
    plan = _plan(values, weight, padding)
    return _multiplications(plan, values.shape[0], values.shape[1], len(weight)) < PAYS


def _multiplications(plan: Plan, batch: int, inputs: int, outputs: int) -> float:
    """The number of multiplications, relative to that of the sum over taps."""
    rows, columns = plan.frequencies
    products = 4 * rows * columns * batch * inputs * outputs
    kernels = 2 * rows * columns * plan.size**2 * inputs * outputs
    transforms = sum(
        batch * channels * 2 * columns * high * (wide + 2 * rows)
        for channels, (high, wide) in ((inputs, (plan.height, plan.width)), (outputs, plan.outputs))
    )
    direct = batch * inputs * outputs * plan.size**2 * math.prod(plan.outputs)
    return (products + kernels + transforms) / max(direct, 1)


def convolve(values: Tensor, weight: Tensor, padding: int, factors: Tensor | None = None) -> Tensor:
    """`F.conv2d` with stride 1, in the Fourier basis.

    Args:
        values: `(B, C, H, W)`.
        weight: `(O, C, k, k)`.
        padding: As in `F.conv2d`.
        factors: `(B, C)`, multiplied into the values first; the product is not stored for the gradient.

    Returns:
        `(B, O, H', W')`.
    """
    out: Tensor = apply(_Spectral, values.contiguous(), weight, factors, padding)
    return out


class _Spectral(Function):
    """One frequency along the width at a time, so that all but two maps stay in the cache."""

    @staticmethod
    def forward(values: Tensor, weight: Tensor, factors: Tensor | None, padding: int) -> Tensor:
        plan = _plan(values, weight, padding)
        to_high, to_kernel, _ = _matrices(plan, values.shape[-2], values.dtype)
        columns = weight.permute(2, 3, 1, 0).flatten(2).flatten(0, 1)  # k² C·O
        out = values.new_empty(len(values), len(weight), *plan.outputs)
        _, _, from_high = _matrices(plan, out.shape[-2], values.dtype)
        for own in _chunks(values):
            some, into = _product(values, factors, own), out[own]
            lines, made = _analyse(some, plan), _lines(into, plan)
            for line, kernel, goal in zip(lines, to_kernel, made, strict=True):
                spectrum = (to_high @ line).view(2, -1, *some.shape[:2])
                product = _times(spectrum, (kernel @ columns).view(2, -1, *weight.shape[1::-1]))
                torch.mm(from_high, product.view(len(to_high), -1), out=goal)
            _synthesise(made, plan, into)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, int], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.padding = inputs[3]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        values, weight, factors = ctx.saved_tensors
        to_values, to_weight, to_factors, _ = tangents
        parts = [(to_values, weight, factors), (values, to_weight, factors)]
        parts += [] if to_factors is None else [(values, weight, to_factors)]
        made = [
            F.conv2d(_times_factors(x, f), w, padding=ctx.padding)
            for x, w, f in parts
            if x is not None and w is not None
        ]
        return sum(made[1:], made[0])

    @staticmethod
    def vmap(
        _: Any, in_dims: tuple[int | None, ...], values: Tensor, weight: Tensor, factors: Tensor | None, padding: int
    ) -> Any:
        def one(x: Tensor, w: Tensor, f: Tensor | None) -> Tensor:
            return F.conv2d(_times_factors(x, f), w, padding=padding)

        return torch.vmap(one, in_dims[:3])(values, weight, factors), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        values, weight, factors = ctx.saved_tensors
        if not torch.is_grad_enabled():
            wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[2]
            return *_gradients(values, weight, factors, grad, ctx.padding, wanted=wanted), None
        # create_graph=True: torch's own convolution can be differentiated again.
        steps = [1, 1], [ctx.padding] * 2, [1, 1], False, [0, 0], 1
        made = torch.ops.aten.convolution_backward(
            grad, _times_factors(values, factors), weight, None, *steps, [True, True, False]
        )
        to_factors = None if factors is None else (made[0] * values).sum(dim=(-2, -1))
        return _times_factors(made[0], factors), made[1], to_factors, None


def _chunks(values: Tensor) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, len(values), CHUNK)]


def _product(values: Tensor, factors: Tensor | None, own: slice) -> Tensor:
    return _times_factors(values[own], None if factors is None else factors[own])


def _gradients(
    values: Tensor, weight: Tensor, factors: Tensor | None, grad: Tensor, padding: int, *, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Gradients for values, weight and factors; those for values and factors only if wanted."""
    plan = _plan(values, weight, padding)
    to_high, to_kernel, from_high = _matrices(plan, values.shape[-2], values.dtype)
    grad_to_high, _, _ = _matrices(plan, grad.shape[-2], values.dtype)
    scale = _shares(plan)
    columns = weight.permute(2, 3, 1, 0).flatten(2).flatten(0, 1)
    to_values = torch.empty_like(values) if wanted else None
    to_factors = torch.empty_like(factors) if wanted and factors is not None else None
    to_columns = torch.zeros_like(columns)
    for own in _chunks(values):
        some = grad[own]
        changes, lines = _analyse(some, plan), _analyse(_product(values, factors, own), plan)
        made = _lines(values[own], plan) if wanted else changes
        for change, line, kernel, goal, share in zip(changes, lines, to_kernel, made, scale, strict=True):
            change = (grad_to_high @ change).view(2, -1, *some.shape[:2])
            spectrum = (to_high @ line).view(2, -1, len(some), values.shape[1])
            to_columns.addmm_(kernel.t(), _between(spectrum, change).view(len(kernel), -1), alpha=share)
            if wanted:
                product = _times_conjugate(change, (kernel @ columns).view(2, -1, *weight.shape[1::-1]))
                torch.mm(from_high, product.view(len(to_high), -1), out=goal)
        if to_values is not None:
            _synthesise(made, plan, to_values[own])
            if factors is not None and to_factors is not None:
                to_factors[own] = (to_values[own] * values[own]).sum(dim=(-2, -1))
                to_values[own] *= factors[own][..., None, None]
    taps = to_columns.view(plan.size, plan.size, *weight.shape[1::-1])
    return to_values, taps.permute(3, 2, 0, 1).contiguous(), to_factors


# ---------------------------------------------------------------- the transforms along the width


def _lines(maps: Tensor, plan: Plan) -> Tensor:
    """Empty memory for the transform of maps `(M, C, H, W)` along the width: `(F, 2H, M·C)`, real above imaginary."""
    return maps.new_empty(plan.frequencies[1], 2 * maps.shape[-2], maps.shape[0] * maps.shape[1])


def _analyse(maps: Tensor, plan: Plan) -> Tensor:
    """Transform maps `(M, C, H, W)` along the width to `(F, 2H, M·C)`. The products transpose the maps as well."""
    into = _lines(maps, plan)
    matrix, _ = _wide(plan.periods[1], maps.shape[-1], maps.dtype)
    each = into.view(2 * len(into), maps.shape[-2], -1)
    flat = maps.flatten(0, 1)
    for row in range(maps.shape[-2]):
        torch.mm(matrix, flat[:, row].t(), out=each[:, row])
    return into


def _synthesise(lines: Tensor, plan: Plan, into: Tensor) -> None:
    """Transform `(F, 2H, M·C)` back to maps `(M, C, H, W)`."""
    _, matrix = _wide(plan.periods[1], into.shape[-1], into.dtype)
    each = lines.view(2 * len(lines), into.shape[-2], -1)
    flat = into.view(-1, *into.shape[-2:])
    for row in range(into.shape[-2]):
        torch.mm(each[:, row].t(), matrix, out=flat[:, row])


@lru_cache(maxsize=128)
def _wide(period: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Matrices from a real line to half of its frequencies `(2F, size)`, parts interleaved, and back `(size, 2F)`ᵀ."""
    phase = _phase(period, period // 2 + 1, size)
    matrix = torch.stack([phase.cos(), -phase.sin()], dim=1)
    back = matrix * _twice(period)[:, None, None] / period
    return matrix.flatten(0, 1).to(dtype), back.flatten(0, 1).to(dtype)


def _phase(period: int, frequencies: int, size: int, start: int = 0) -> Tensor:
    places, waves = torch.arange(start, start + size, device="cpu"), torch.arange(frequencies, device="cpu")
    return 2 * math.pi / period * (torch.outer(waves, places) % period).double()


def _twice(period: int) -> Tensor:
    """How often each of the stored frequencies occurs among all frequencies."""
    counts = torch.full((period // 2 + 1,), 2.0, dtype=torch.float64, device="cpu")
    counts[0] = 1
    if period % 2 == 0:
        counts[-1] = 1
    return counts


# ---------------------------------------------------------------- along the height, and kernels


@lru_cache(maxsize=128)
def _matrices(plan: Plan, height: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices from complex columns to frequencies `(2N, 2H)`, from taps `(F, 2N, k²)`, and back `(2H, 2N)`."""
    period = plan.periods[0]
    phase = _phase(period, period, height)
    cos, sin = phase.cos(), phase.sin()
    there = torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])
    down, across = (
        _phase(own, count, plan.size, -plan.padding)
        for own, count in zip(plan.periods, (period, plan.frequencies[1]), strict=True)
    )
    both = (across[:, None, None, :] + down[None, :, :, None]).flatten(2)  # F N k²
    # The conjugate, because what networks call a convolution is a correlation.
    taps = torch.cat([both.cos(), both.sin()], dim=1)
    return there.to(dtype), taps.to(dtype), (there.t() / period).contiguous().to(dtype)


@lru_cache(maxsize=128)
def _shares(plan: Plan) -> list[float]:
    """The weight of each stored frequency along the width in a sum over all frequencies."""
    shares: list[float] = (_twice(plan.periods[1]) / math.prod(plan.periods)).tolist()
    return shares


# ---------------------------------------------------------------- products over channels


def _times(spectrum: Tensor, kernel: Tensor) -> Tensor:
    """The complex product of `(2, N, M, C)` and `(2, N, C, O)`."""
    real, imaginary = spectrum
    out = spectrum.new_empty(2, *spectrum.shape[1:3], kernel.shape[-1])
    torch.bmm(real, kernel[0], out=out[0])
    out[0].baddbmm_(imaginary, kernel[1], alpha=-1)
    torch.bmm(real, kernel[1], out=out[1])
    out[1].baddbmm_(imaginary, kernel[0])
    return out


def _times_conjugate(spectrum: Tensor, kernel: Tensor) -> Tensor:
    """The product of `(2, N, M, O)` and the conjugate of `(2, N, C, O)`, summed over O."""
    real, imaginary = spectrum
    back = kernel.transpose(2, 3)
    out = spectrum.new_empty(2, *spectrum.shape[1:3], kernel.shape[2])
    torch.bmm(real, back[0], out=out[0])
    out[0].baddbmm_(imaginary, back[1])
    torch.bmm(imaginary, back[0], out=out[1])
    out[1].baddbmm_(real, back[1], alpha=-1)
    return out


def _between(values: Tensor, change: Tensor) -> Tensor:
    """The product of the conjugate of `(2, N, M, C)` and `(2, N, M, O)`, summed over images: `(2, N, C, O)`."""
    real, imaginary = values.transpose(2, 3)
    out = values.new_empty(2, values.shape[1], values.shape[3], change.shape[3])
    torch.bmm(real, change[0], out=out[0])
    out[0].baddbmm_(imaginary, change[1])
    torch.bmm(real, change[1], out=out[1])
    out[1].baddbmm_(imaginary, change[0], alpha=-1)
    return out
