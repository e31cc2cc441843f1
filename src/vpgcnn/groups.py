"""What a symmetry is: small immutable values with one interface.

    >>> group = Rotations(4)
    >>> quarter = group.element(math.pi / 2)
    >>> group.compose(quarter, group.inverse(quarter))
    tensor([0.])

An element is a row of angles in radians, one for each *axis* of the group, wrapped to (−π, π].
`SO2(n)`, `Rotations(n)`, `Hue(m)`, `Saturation(m)` and `Luminance(m)` have one axis, so their elements
are `(..., 1)`; `O2(n)` and `Dihedral(n)` add a mirror axis, whose angle is 0 or π; `Product(a, b)` puts
the axes of `a` before those of `b`. Because every axis is a circle, finite or not, everything that is learned about a
group later (windows, cells, levels) is written once, for circles.

A continuous group is computed on a grid of n angles per continuous axis: `SO2(8)` is the group of
all rotations, evaluated at eight of them.

Out of scope: groups whose axes are not circles (scale), and actions on the plane that are not orthogonal.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from vpgcnn._ops import cone, resample
from vpgcnn._ops.constants import constant
from vpgcnn._ops.precision import full_precision

__all__ = ["O2", "SO2", "Axis", "Dihedral", "Group", "Hue", "Luminance", "Product", "Rotations", "Saturation"]


@dataclass(frozen=True)
class Axis:
    """One circle of a group.

    Args:
        name: What moves along it, say "rotation". Used in reports.
        order: The number of elements of a finite axis; None for a continuous one.
        points: How many angles of a continuous axis are computed.
    """

    name: str
    order: int | None
    points: int | None = None

    @property
    def count(self) -> int:
        """How many points the axis has on the grid."""
        return self.order or self.points or 1


def wrap(angle: Tensor) -> Tensor:
    """Angles in (−π, π]; those that are there already stay as they are. The slope is 1 everywhere."""
    return angle - 2 * math.pi * torch.ceil((angle - math.pi) / (2 * math.pi))


def snap(matrix: Tensor) -> Tensor:
    """Matrices `(..., n, n)` within rounding of a signed permutation become exactly that; the gradient is unchanged."""
    nearest = matrix.detach().round()
    close = (matrix.detach() - nearest).abs() < 2e-6  # the rounding error of an exact turn in float32
    # Entry by entry would not do: near the identity the cosine is much closer to 1 than the sine to 0.
    exact = close.all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    return torch.where(exact, matrix + (nearest - matrix.detach()), matrix)


class Group(ABC):
    """A group of image symmetries. Elements are tensors `(..., K)`, K = `len(group.axes)`."""

    # ------------------------------------------------------------ what each group defines

    @property
    @abstractmethod
    def axes(self) -> tuple[Axis, ...]:
        """The circles that the group is made of, in the order of an element's coordinates."""

    @property
    @abstractmethod
    def acts_on_plane(self) -> bool:
        """Whether elements move pixels."""

    @property
    @abstractmethod
    def acts_on_rgb(self) -> bool:
        """Whether elements change colours, so that images need three channels."""

    @abstractmethod
    def compose(self, u: Tensor, v: Tensor) -> Tensor:
        """The product u·v (first v, then u). Shapes `(..., K)`, broadcast against each other."""

    @abstractmethod
    def inverse(self, u: Tensor) -> Tensor:
        """The inverse u⁻¹, `(..., K)`."""

    @abstractmethod
    def plane(self, u: Tensor) -> Tensor:
        """R_u, the orthogonal matrix `(..., 2, 2)` on points (x right, y up)."""

    @abstractmethod
    def rgb(self, u: Tensor) -> Tensor:
        """ρ(u), the orthogonal matrix `(..., 3, 3)` on colours (R, G, B)."""

    # ------------------------------------------------------------ what some groups define

    @property
    def recolors(self) -> bool:
        """Whether elements also change colours in a way that no matrix does: see `recolor`."""
        return False

    def recolor(self, images: Tensor, u: Tensor) -> Tensor:
        """What elements do to colours beyond the matrix ρ(u), with which it commutes. Groups that `recolors` define it.

        Args:
            images: `(..., 3, H, W)`, floating point, in [0, 1].
            u: Elements `(..., K)`, broadcast against the images.

        Returns:
            Images `(..., 3, H, W)`.
        """
        return images

    # ------------------------------------------------------------ what all groups share

    @property
    def order(self) -> int | None:
        """The number of elements; None for a continuous group."""
        orders = [axis.order for axis in self.axes]
        return None if None in orders else math.prod([order for order in orders if order is not None])

    def identity(self) -> Tensor:
        """The identity, `(K,)`: all angles 0."""
        return torch.zeros(len(self.axes))

    def element(self, *angles: float) -> Tensor:
        """An element `(K,)` from one angle in radians for each axis."""
        if len(angles) != len(self.axes):
            names = ", ".join(axis.name for axis in self.axes)
            raise ValueError(f"{self} has {len(self.axes)} axes ({names}), got {len(angles)} angles: {angles}")
        for axis, angle in zip(self.axes, angles, strict=True):
            steps = 0.0 if axis.order is None else angle * axis.order / (2 * math.pi)
            if abs(steps - round(steps)) > 1e-4:
                raise ValueError(f"the {axis.name} angle {angle} is not one of the {axis.order} of {self}")
        return wrap(torch.tensor(angles, dtype=torch.get_default_dtype()))

    def angle(self, u: Tensor) -> Tensor:
        """Distance from the identity, `(...)`: the length of the row of angles, |angle| for one axis."""
        return torch.linalg.vector_norm(wrap(u), dim=-1)

    def relative(self, u: Tensor, v: Tensor) -> Tensor:
        """v⁻¹u, where u is seen from v: `(..., K)`."""
        return self.compose(self.inverse(v), u)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many grid points each axis has."""
        return tuple(axis.count for axis in self.axes)

    @property
    def count(self) -> int:
        """How many elements the grid has: all of them for a finite group."""
        return math.prod(self.counts)

    def circles_of(self, columns: int) -> dict[int, str]:
        """Which of so many columns of θ are circles, and their names; "" where there is one column for the group.

        An axis of one element, such as the rotations of Dihedral(1), is no circle.
        """
        if columns < 2 or len(self.axes) < 2:
            return {0: ""}
        return {place: axis.name for place, axis in enumerate(self.axes) if axis.count > 1} or {0: ""}

    def counts_of(self, total: int) -> tuple[int, ...]:
        """How many points each axis has on an even grid of `total` elements, which may be another than `grid`'s.

        Args:
            total: The number of elements. Continuous axes share what the finite ones leave.
        """
        finite = math.prod([axis.order for axis in self.axes if axis.order is not None])
        return tuple(axis.order or total // finite for axis in self.axes)

    def grid(
        self,
        offset: Tensor | float = 0.0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """An even grid of elements, `(G, K)`; the identity comes first when `offset` is 0.

        Args:
            offset: Shift of the continuous axes in radians: a number, or `(K,)` with one for each axis.
                Finite axes are listed in full and cannot be shifted.
            dtype: Of the angles; torch's default dtype if None.
            device: Where to put them.

        Returns:
            Angles `(G, K)` in (−π, π].
        """
        where = torch.get_default_device() if device is None else torch.device(device)
        precision = dtype or torch.get_default_dtype()
        grid = constant(_grid_rows(self.counts), precision, where)
        if isinstance(offset, float | int) and offset == 0:
            return grid.clone()  # the caller may write to it
        if self.order is not None:
            raise ValueError(f"the elements of {self} cannot be shifted, got offset {offset}")
        continuous = constant(tuple(axis.order is None for axis in self.axes), precision, where)
        return wrap(grid + continuous * offset)

    def index(self, u: Tensor) -> Tensor:
        """Positions `(...)` of elements `(..., K)` in `grid()`; an error when one is not on it."""
        counts = self.counts
        steps = torch.tensor(counts, dtype=u.dtype, device=u.device) / (2 * math.pi)
        position = u * steps
        nearest = position.round()
        if not torch.allclose(position, nearest, atol=1e-3):
            raise ValueError(f"not on the grid of {counts} elements of {self}: {u.tolist()}")
        flat = torch.zeros(u.shape[:-1], dtype=torch.long, device=u.device)
        for axis, count in enumerate(counts):
            flat = flat * count + nearest[..., axis].long() % count
        return flat

    def transform(self, image: Tensor, u: Tensor | float, mode: str = "bilinear") -> Tensor:
        """The image moved by u: (L_u f)(x) = ρ(u) f(R_u⁻¹ x). Differentiable in image and u.

        image: `(C, H, W)` or `(B, C, H, W)`, floating point, any value range (colours are not clipped);
        in [0, 1] where the group changes saturation or luminance (`recolors`).
        u: one element `(K,)`, one for each image `(B, K)`, or a number for a one-axis group.
        Rotations turn counter-clockwise about the centre and fill with 0. Quarter turns, mirrors
        and hue shifts by 120° are exact permutations; other rotations interpolate (`mode`:
        "bilinear" or "bicubic").
        """
        batch = image if image.dim() == 4 else image.unsqueeze(0)
        if batch.dim() != 4:
            raise ValueError(f"expected an image C×H×W or images B×C×H×W, got shape {_shape(image)}")
        if not image.is_floating_point():
            raise ValueError(f"expected an image of floating point numbers, got {image.dtype}")
        least = torch.promote_types(image.dtype, torch.float32)
        precision = torch.promote_types(u.dtype, least) if isinstance(u, Tensor) else least
        u = torch.as_tensor(u, device=image.device, dtype=precision)
        u = u.reshape(1) if u.dim() == 0 else u
        if u.shape[-1] != len(self.axes) or u.dim() > 2 or (u.dim() == 2 and u.shape[0] != batch.shape[0]):
            raise ValueError(
                f"expected an element ({len(self.axes)},) of {self} or one for each of the "
                f"{batch.shape[0]} images, got shape {tuple(u.shape)}"
            )
        with full_precision(image.device):
            if self.acts_on_rgb:
                check_rgb(self, batch)
                mixing = self.rgb(u).to(batch.dtype)
                batch = torch.matmul(mixing, batch.flatten(2)).reshape(batch.shape)
            if self.recolors:
                batch = self.recolor(batch, u)
            if self.acts_on_plane:
                batch = resample.move(batch, self.plane(u), mode)
        return batch if image.dim() == 4 else batch.squeeze(0)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape))


def check_rgb(group: Group, image: Tensor) -> None:
    """Refuse images `(B, C, H, W)` without three channels where the group mixes colours."""
    if group.acts_on_rgb and image.shape[1] != 3:
        raise ValueError(f"{group} acts on RGB: expected 3 channels, got {image.shape[1]} (shape {_shape(image)})")


def _check_order(name: str, order: int) -> None:
    if isinstance(order, bool) or not isinstance(order, Integral) or int(order) < 1:
        raise ValueError(f"{name} needs a whole number of elements, at least 1, got {order!r}")


def _rotation(angle: Tensor) -> Tensor:
    cos, sin = torch.cos(angle), torch.sin(angle)
    return snap(torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2)))


def _eye(size: int, u: Tensor) -> Tensor:
    return torch.eye(size, dtype=u.dtype, device=u.device).expand(*u.shape[:-1], size, size)


class _Circle(Group):
    """The commutative groups of one axis."""

    def compose(self, u: Tensor, v: Tensor) -> Tensor:
        return wrap(u + v)

    def inverse(self, u: Tensor) -> Tensor:
        return wrap(-u)


class _Turning(_Circle):
    """Circles that turn the plane."""

    acts_on_plane = True
    acts_on_rgb = False

    def plane(self, u: Tensor) -> Tensor:
        return _rotation(u[..., 0])

    def rgb(self, u: Tensor) -> Tensor:
        return _eye(3, u)


@dataclass(frozen=True)
class SO2(_Turning):
    """All rotations of the plane, counter-clockwise.

    Args:
        n: How many angles are computed.
    """

    n: int = 8

    def __post_init__(self) -> None:
        _check_order("SO2", self.n)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("rotation", None, self.n),)


@dataclass(frozen=True)
class Rotations(_Turning):
    """C_n: the n rotations by multiples of 360°/n."""

    n: int

    def __post_init__(self) -> None:
        _check_order("Rotations", self.n)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("rotation", self.n),)


@dataclass(frozen=True)
class Hue(_Circle):
    """H_m: the m hue shifts by multiples of 360°/m, as rotations of RGB about the grey axis (1, 1, 1).

    Hue(3) permutes the channels exactly (red → green → blue → red); other m are linear too, and
    leave the RGB cube for saturated colours: values are never clipped.
    """

    m: int

    acts_on_plane = False
    acts_on_rgb = True

    def __post_init__(self) -> None:
        _check_order("Hue", self.m)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("hue", self.m),)

    def plane(self, u: Tensor) -> Tensor:
        return _eye(2, u)

    def rgb(self, u: Tensor) -> Tensor:
        cos, sin = torch.cos(u[..., 0]), torch.sin(u[..., 0]) * math.sqrt(3)
        stay, back, forth = (1 + 2 * cos) / 3, (1 - cos - sin) / 3, (1 - cos + sin) / 3
        rows = [stay, back, forth, forth, stay, back, back, forth, stay]
        return snap(torch.stack(rows, dim=-1).unflatten(-1, (3, 3)))


class _Recoloring(_Circle):
    """Circles that change colours, but not by a matrix."""

    acts_on_plane = False
    acts_on_rgb = True
    recolors = True

    def plane(self, u: Tensor) -> Tensor:
        return _eye(2, u)

    def rgb(self, u: Tensor) -> Tensor:
        return _eye(3, u)


@dataclass(frozen=True)
class Saturation(_Recoloring):
    """m shifts of the saturation, on a circle that covers its interval [0, 1] twice (as in T³CEN, 2026).

    A saturation s is the point t = 2 arcsin s of a circle, and an element adds an angle to it: s → |sin(t/2 + u/2)|.
    Hue and luminance stay, and so do grey pixels. Shifts add up exactly while t stays in [0, π], for colours inside the
    double cone around the grey axis: |rgb − ℓ| ≤ √1.5 · min(ℓ, 1 − ℓ), with ℓ the mean of the channels.

    The action is not linear, so images must be in [0, 1], not standardised.

    Args:
        m: The number of shifts, the multiples of 360°/m.
    """

    m: int

    def __post_init__(self) -> None:
        _check_order("Saturation", self.m)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("saturation", self.m),)

    def recolor(self, images: Tensor, u: Tensor) -> Tensor:
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        return cone.move_saturation(wide, u[..., 0].to(wide.dtype)).to(images.dtype)


@dataclass(frozen=True)
class Luminance(_Recoloring):
    """m shifts of the luminance, the mean ℓ of the channels, on a circle that covers [0, 1] twice (as in T³CEN, 2026).

    As `Saturation`, for ℓ: hue and saturation stay. Shifts add up exactly while ℓ = sin(t/2) has t in [0, π].

    Args:
        m: The number of shifts, the multiples of 360°/m.
    """

    m: int

    def __post_init__(self) -> None:
        _check_order("Luminance", self.m)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("luminance", self.m),)

    def recolor(self, images: Tensor, u: Tensor) -> Tensor:
        wide = images.to(torch.promote_types(images.dtype, torch.float32))
        return cone.move_luminance(wide, u[..., 0].to(wide.dtype)).to(images.dtype)


class _Orthogonal(Group):
    """Rotations and reflections: u = R_a M^s with M the left-right mirror, coordinates (a, πs)."""

    acts_on_plane = True
    acts_on_rgb = False

    def compose(self, u: Tensor, v: Tensor) -> Tensor:
        turn = u[..., 0] + _sign(u) * v[..., 0]
        return wrap(torch.stack(torch.broadcast_tensors(turn, u[..., 1] + v[..., 1]), dim=-1))

    def inverse(self, u: Tensor) -> Tensor:
        return wrap(torch.stack([-_sign(u) * u[..., 0], u[..., 1]], dim=-1))

    def plane(self, u: Tensor) -> Tensor:
        mirror = torch.stack([_sign(u), torch.ones_like(_sign(u))], dim=-1)
        return _rotation(u[..., 0]) * mirror.unsqueeze(-2)

    def rgb(self, u: Tensor) -> Tensor:
        return _eye(3, u)


def _sign(u: Tensor) -> Tensor:
    return torch.cos(u[..., 1]).round()


@dataclass(frozen=True)
class O2(_Orthogonal):
    """All rotations and reflections of the plane.

    Args:
        n: How many angles are computed, each with and without the mirror.
    """

    n: int = 8

    def __post_init__(self) -> None:
        _check_order("O2", self.n)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("rotation", None, self.n), Axis("mirror", 2))


@dataclass(frozen=True)
class Dihedral(_Orthogonal):
    """D_n: n rotations and n reflections. `Dihedral(1)` is the left-right flip alone."""

    n: int

    def __post_init__(self) -> None:
        _check_order("Dihedral", self.n)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("rotation", self.n), Axis("mirror", 2))


@dataclass(frozen=True)
class Product(Group):
    """Both symmetries at once, each on its own: `Product(Rotations(4), Hue(3))` has 12 elements.

    Hue, saturation and luminance are three such symmetries: `Product(Hue(3), Product(Saturation(4), Luminance(4)))`.
    """

    first: Group
    second: Group

    def __post_init__(self) -> None:
        clash = [
            what
            for what, both in (
                ("the plane", self.first.acts_on_plane and self.second.acts_on_plane),
                ("RGB", _colors_clash(self.first, self.second)),
            )
            if both
        ]
        if clash:
            raise ValueError(
                f"{self.first} and {self.second} both act on {clash[0]}: their product would act on it twice"
            )

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.first.axes + self.second.axes

    @property
    def acts_on_plane(self) -> bool:
        return self.first.acts_on_plane or self.second.acts_on_plane

    @property
    def acts_on_rgb(self) -> bool:
        return self.first.acts_on_rgb or self.second.acts_on_rgb

    def split(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of `(..., K)` in the first and the second group."""
        size = len(self.first.axes)
        return u[..., :size], u[..., size:]

    def compose(self, u: Tensor, v: Tensor) -> Tensor:
        (a, b), (c, d) = self.split(u), self.split(v)
        return torch.cat([self.first.compose(a, c), self.second.compose(b, d)], dim=-1)

    def inverse(self, u: Tensor) -> Tensor:
        a, b = self.split(u)
        return torch.cat([self.first.inverse(a), self.second.inverse(b)], dim=-1)

    def plane(self, u: Tensor) -> Tensor:
        a, b = self.split(u)
        return self.first.plane(a) if self.first.acts_on_plane else self.second.plane(b)

    def rgb(self, u: Tensor) -> Tensor:
        a, b = self.split(u)
        return self.first.rgb(a) if _mixes(self.first) else self.second.rgb(b)

    @property
    def recolors(self) -> bool:
        return self.first.recolors or self.second.recolors

    def recolor(self, images: Tensor, u: Tensor) -> Tensor:
        a, b = self.split(u)
        return self.second.recolor(self.first.recolor(images, a), b)


def _mixes(group: Group) -> bool:
    """Whether some element changes colours by a matrix."""
    if isinstance(group, Product):
        return _mixes(group.first) or _mixes(group.second)
    return group.acts_on_rgb and not isinstance(group, _Recoloring)


def _colors_clash(first: Group, second: Group) -> bool:
    """Whether two groups act on the same property of colours, or one of them on a property that the other changes."""
    if not (first.acts_on_rgb and second.acts_on_rgb):
        return False
    names = [{axis.name for axis in group.axes} for group in (first, second)]
    if names[0] & names[1] or (_mixes(first) and _mixes(second)):
        return True
    # Matrices that keep grey turn or mirror the colours about it: saturation and luminance stay.
    matrices = (first if _mixes(first) else second).rgb((first if _mixes(first) else second).grid(dtype=torch.float64))
    return not torch.allclose(matrices.sum(dim=-1), matrices.new_ones(3))


def _grid_rows(counts: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """The angles of an even grid, in the order of `Group.grid`, in (−π, π]."""
    circles = [[2 * math.pi * (j if 2 * j <= count else j - count) / count for j in range(count)] for count in counts]
    return tuple(itertools.product(*circles))


def even_grid(counts: tuple[int, ...]) -> Tensor:
    """The even grid with this many points on each axis, `(G, K)`, in double precision."""
    return torch.tensor(_grid_rows(counts), dtype=torch.float64)


def relative_index(group: Group) -> Tensor:
    """For a finite group, position of v⁻¹u for each pair: `(G, G)`, rows u, columns v."""
    grid = group.grid(dtype=torch.float64)
    return group.index(group.relative(grid.unsqueeze(1), grid.unsqueeze(0)))


def neighbour_index(group: Group) -> Tensor:
    """For a finite group, positions of u·s for s the identity and one step along each axis: `(S, G)`.

    Right translation commutes with the left action of the group, so a map that looks at these
    neighbours is equivariant. On a circle they are the taps of a circular convolution of size 3.
    """
    grid, counts = group.grid(dtype=torch.float64), group.counts
    steps: list[tuple[float, ...]] = [(0.0,) * len(counts)]
    for axis, count in enumerate(counts):
        step = tuple(2 * math.pi / count * (a == axis) for a in range(len(counts)))
        steps += [step, tuple(-angle for angle in step)][: min(count - 1, 2)]
    shifts = torch.tensor(steps, dtype=grid.dtype)
    return group.index(group.compose(grid.unsqueeze(0), shifts.unsqueeze(1)))


def translate_index(group: Group, g: Tensor) -> Tensor:
    """Positions `(G,)` of g⁻¹u for the elements u of the grid, so (L_g h)(u) = h(u)[index]."""
    grid = group.grid(dtype=torch.float64)
    return group.index(group.relative(grid, g.detach().cpu().double()))
