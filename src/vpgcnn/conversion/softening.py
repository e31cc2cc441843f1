"""Softening: the kernels of a trained network moved towards equivariant ones, without training.

    >>> soft = soften(resnet18, Rotations(4), 0.3)
    >>> soft.network(images)                         # an ordinary network that costs what it did
    >>> soft.defects["layer1.0.conv1"]               # ‖layer(g·x) − g·layer(x)‖ ≤ this · ‖x‖

A convolution commutes with the group if its kernel K equals all its moved copies K^g. The mean over them, PK, does.
Softness s in [0, 1] keeps a part of the rest: K_s = PK + s · (K − PK). The copies of K_s differ by s times what those
of K differ by, so each layer's defect is exactly s times the original's: 0 is equivariant, 1 is the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn

from vpgcnn.conversion.checks import Numbers, check_group, check_images, standard_of
from vpgcnn.conversion.moves import moved, moves_of
from vpgcnn.conversion.network import convolutions, matching
from vpgcnn.conversion.trying import copied, evaluating, examples, tried
from vpgcnn.conversion.views import Matrix
from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.testing import EquivarianceError, equivariance_error

__all__ = ["Softened", "soften"]


@dataclass(frozen=True)
class Softened:
    """A softened network, and how far it is from equivariance.

    Args:
        network: A copy of the original with softened kernels.
        softness: The share of what is not equivariant that the kernels keep.
        defects: For each softened convolution, a bound b: ‖layer(g·x) − g·layer(x)‖ ≤ b · ‖x‖ for all elements g, with
            zeros or nothing around the map, and with stride 1. Where x is the image, its pixels are in [0, 1].
        left: Convolutions that the group acts on, but that stay as they are: a kernel that is not square under quarter
            turns.
        before: The error of the original, measured on the example.
        after: The error of the softened network on the same images.
    """

    network: nn.Module
    softness: float
    defects: dict[str, float]
    left: tuple[str, ...]
    before: EquivarianceError
    after: EquivarianceError

    @property
    def summary(self) -> str:
        """What was softened, in a sentence or two."""
        text = (
            f"{_counted(len(self.defects), 'convolution')} softened to {self.softness:g}: the answers to moved images "
            f"differ by {self.after.mean:.2g} of their size, {self.before.mean:.2g} before"
        )
        return text + (f"; left as they are: {', '.join(self.left)}" if self.left else "")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def soften(
    model: nn.Module,
    group: Group,
    softness: float,
    *,
    layers: str | Sequence[str] | None = None,
    mean: Numbers = 0.0,
    std: Numbers = 1.0,
    example: Tensor | None = None,
) -> Softened:
    """Move the kernels of a copy of a network towards equivariant ones; at softness 0 each of them is equivariant.

    Channels of hidden features do not move with the group, so at 0 rotations leave kernels without a direction, and hue
    shifts a first layer that sees grey. Strides, pools and flattened maps may break the symmetry in their own way, for
    example stride 2 on an even map: `after` has what is left.

    Args:
        model: Any network with convolutions. It is not changed.
        group: `Hue(m)`, quarter turns and mirrors, or a product of them.
        softness: In [0, 1]: 0 keeps only what is equivariant, 1 leaves every kernel as it is.
        layers: The convolutions to soften, by name or the start of it. None: all that the group acts on.
        mean: Of the images, if the model does not take pixels in [0, 1]: for each channel, or one for all.
        std: As `mean`.
        example: Images `(B, C, H, W)`, before standardisation, on which the error is measured. None: random images.

    Returns:
        The network, a bound for each layer, and the measured error.

    Raises:
        UserError: If softness is out of range, or there is no kernel that can be softened.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a network, an nn.Module, got {model!r}")
    check_group(group, "kernels are softened towards")
    if not isinstance(softness, Real):
        raise TypeError(f"softness must be a number from 0 (equivariant) to 1 (the original), got {softness!r}")
    if not 0 <= softness <= 1:
        raise UserError(f"softness goes from 0 (equivariant) to 1 (the original), got {softness}")
    if group.recolors:
        raise UserError(f"{group} is not linear in the colours, so no kernel is equivariant to it: use convert")
    mean, std = standard_of(mean, std)
    if example is not None:
        check_images(group, example, mean, std)
    moves, network = moves_of(group), copied(model)
    convs = convolutions(network)
    if example is None:
        check_images(group, next(examples(network, convs)), mean, std, "what the network takes")
    standard = tuple(torch.tensor(each).view(1, -1, 1, 1) for each in (mean, std))
    run = tried(network, model, convs, group, None, standard, example)
    offset, scale = (each.to(run.images) for each in standard)
    names = matching(run.convs, layers, "layers")
    seeing = _see_the_image(network, convs, (run.images - offset) / scale)
    if group.acts_on_rgb and not seeing & set(names):
        raise UserError(
            f"{group} acts on pixels, but no chosen convolution sees the image as it is: if the network standardises "
            "or splits images inside, give soften the part that comes after"
        )
    images = run.images if example is None else example.to(run.images)
    with evaluating(network):
        before = equivariance_error(lambda pixels: network((pixels - offset) / scale), images, group)
    colors = group.rgb(group.inverse(group.grid(dtype=torch.float64, device=scale.device)))
    turns = any(not matrix[0][0] for matrix in moves)
    defects: dict[str, float] = {}
    left: list[str] = []
    for name in names:
        conv = convs[name]
        if not (group.acts_on_plane or name in seeing):
            continue
        if turns and conv.kernel_size[0] != conv.kernel_size[1]:
            left.append(name)
            continue
        if "weight" not in conv._parameters:
            raise UserError(f"the weight of {name} is computed from other parameters (weight_norm?): remove that first")
        unit = scale.to(torch.float64) if name in seeing else torch.ones(1, dtype=torch.float64, device=scale.device)
        with torch.no_grad():
            kernel = conv.weight.to(torch.float64) / unit
            copies = _copies(kernel, moves, colors if group.acts_on_rgb and name in seeing else None)
            invariant = copies.mean(dim=0)
            soft = invariant + softness * (kernel - invariant)
            conv.weight.copy_(soft * unit)
            defects[name] = softness * _bound(copies - kernel, conv.groups)
    if not defects:
        raise UserError(f"there is no convolution that {group} acts on and that could be softened")
    with evaluating(network):
        after = equivariance_error(lambda pixels: network((pixels - offset) / scale), images, group)
    return Softened(network, softness, defects, tuple(left), before, after)


def _see_the_image(network: nn.Module, convs: dict[str, nn.Conv2d], pixels: Tensor) -> set[str]:
    """The convolutions whose input is the image itself."""
    found: set[str] = set()

    def note(name: str) -> object:
        def hook(_: nn.Module, args: tuple[object, ...]) -> None:
            seen = args[0] if args else None
            if isinstance(seen, Tensor) and seen.shape == pixels.shape and torch.equal(seen, pixels):
                found.add(name)

        return hook

    hooks = [conv.register_forward_pre_hook(note(name)) for name, conv in convs.items()]  # type: ignore[arg-type]
    try:
        with evaluating(network):
            network(pixels.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _copies(kernel: Tensor, moves: Sequence[Matrix], colors: Tensor | None) -> Tensor:
    """The moved copies K^g of a kernel `(O, I, k, k)`: K^g ∗ (g·x) = g·(K ∗ x). `(m, O, I, k, k)`."""
    copies = torch.stack([moved(kernel, matrix) for matrix in moves])
    return copies if colors is None else torch.einsum("goixy,gij->gojxy", copies, colors)


def _bound(differences: Tensor, groups: int) -> float:
    """The largest bound on the operator norm of m convolutions with kernels `(m, O, I, k, k)`.

    It sums the largest singular values of a kernel's taps.
    """
    matrices = differences.unflatten(1, (groups, -1)).permute(0, 4, 5, 1, 2, 3)  # m, k, k, groups, O/groups, I/groups
    norms = torch.linalg.matrix_norm(matrices, ord=2).amax(dim=-1)
    return float(norms.sum(dim=(1, 2)).max())
