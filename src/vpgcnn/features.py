"""What flows between layers: values over the group, with the weight that each element has."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node

from vpgcnn.groups import Group

__all__ = ["GroupFeature", "Prediction"]


@dataclass(frozen=True, eq=False, repr=False)
class GroupFeature:
    """A feature map on the group: f(u, x) for a list of elements u.

    values:      `(B, C, G, H, W)`.
    elements:    `(G, K)`, or `(B, G, K)` when each image has its own. Angles, see `groups`.
    weights:     `(B, G)`, rows sum to 1: q(u|f) of the layer that made the feature. None: uniform.
    divergence:  `(B,)`: the KL of all levels passed so far. It travels with the data.
    group:       the group that the elements belong to.

    Weights are carried beside the values and applied where elements are summed: the next
    convolution, a norm's statistics, the pool over the group.
    """

    values: Tensor
    elements: Tensor
    weights: Tensor | None
    divergence: Tensor
    group: Group

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
        own = (batch, count) if self.per_image else (count,)
        if self.elements.shape[:-1] != own:
            raise ValueError(f"values have {count} elements, but elements have shape {tuple(self.elements.shape)}")
        if self.weights is not None and self.weights.shape != (batch, count):
            raise ValueError(f"weights must be {batch}×{count}, got shape {tuple(self.weights.shape)}")
        if self.divergence.shape != (batch,):
            raise ValueError(f"divergence must have shape ({batch},), got {tuple(self.divergence.shape)}")

    # ------------------------------------------------------------ the group axis

    @property
    def per_image(self) -> bool:
        """Whether each image has its own elements."""
        return self.elements.dim() == 3

    def coverage(self) -> Tensor | None:
        """How much of each element is kept, `(B, G)` in [0, 1]: weights / largest weight. None: all."""
        if self.weights is None:
            return None
        return self.weights / self.weights.amax(dim=1, keepdim=True)

    def mean(self) -> Tensor:
        """The average over the group under the weights, `(B, C, H, W)`."""
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
        """The same elements, weights and divergence under other values."""
        return replace(self, values=values)

    def map(self, function: Callable[[Tensor], Tensor]) -> GroupFeature:
        """Apply a pointwise function (an activation) to the values. Equivariant."""
        return self.with_values(function(self.values))

    def __add__(self, other: object) -> GroupFeature:
        """Refused: a sum has to say what becomes of weights and divergence, so use `join`."""
        raise TypeError("features are not added: use join(a, b, origin=the feature where the branches part)")

    def detach(self) -> GroupFeature:
        weights = None if self.weights is None else self.weights.detach()
        parts = self.values.detach(), self.elements.detach(), weights, self.divergence.detach()
        return GroupFeature(*parts, self.group)

    def to(self, *args: Any, **kwargs: Any) -> GroupFeature:
        """`Tensor.to` for the values; the other parts follow to the device and keep their precision."""
        values = self.values.to(*args, **kwargs)
        weights = None if self.weights is None else self.weights.to(values.device)
        elements, divergence = self.elements.to(values.device), self.divergence.to(values.device)
        return GroupFeature(values, elements, weights, divergence, self.group)

    def __getitem__(self, images: SupportsIndex | slice | Tensor | list[int]) -> GroupFeature:
        """Some of the images: `feature[3]`, `feature[:8]`, `feature[mask]`. The batch axis stays."""
        if isinstance(images, slice | list) or (isinstance(images, Tensor) and images.dim() > 0):
            index = images
        else:
            number = operator.index(images)
            if not -len(self) <= number < len(self):
                raise IndexError(f"image {number} of {len(self)}")
            index = slice(number % len(self), number % len(self) + 1)
        return GroupFeature(
            self.values[index],
            self.elements[index] if self.per_image else self.elements,
            None if self.weights is None else self.weights[index],
            self.divergence[index],
            self.group,
        )

    def __iter__(self) -> Iterator[GroupFeature]:
        return (self[image] for image in range(len(self)))

    def __repr__(self) -> str:
        batch, channels, count, height, width = self.values.shape
        kept = "full" if self.weights is None else "weighted"
        own = " per image" if self.per_image else ""
        sizes = f"{self.group}: {batch} images, {channels} channels, {count} elements{own}, {height}×{width}"
        return f"GroupFeature({sizes}, {kept}, {str(self.dtype).removeprefix('torch.')}, {self.device})"


def _flatten(feature: GroupFeature) -> tuple[list[Any], Group]:
    return [feature.values, feature.elements, feature.weights, feature.divergence], feature.group


def _unflatten(parts: Iterable[Any], group: Group) -> GroupFeature:
    values, elements, weights, divergence = parts
    return GroupFeature(values, elements, weights, divergence, group)


def _flatten_with_keys(feature: GroupFeature) -> tuple[list[tuple[Any, Any]], Group]:
    parts, group = _flatten(feature)
    names = ("values", "elements", "weights", "divergence")
    return [(GetAttrKey(name), part) for name, part in zip(names, parts, strict=True)], group


# torch.export, torch.func and others may take a feature apart and put it together again.
register_pytree_node(
    GroupFeature,
    _flatten,
    _unflatten,
    serialized_type_name="vpgcnn.GroupFeature",
    flatten_with_keys_fn=_flatten_with_keys,
)


class Prediction(NamedTuple):
    """What a network says of images.

    logits: `(B, classes)`. divergence: `(B,)`, the KL of all its levels, 0 where there are none.
    """

    logits: Tensor
    divergence: Tensor
