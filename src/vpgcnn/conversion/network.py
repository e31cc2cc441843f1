"""Conversion: an ordinary classifier becomes equivariant, or partially so, and starts with the answers it had.

    >>> net = convert(resnet18, Hue(3))              # the same logits as before …
    >>> prediction = net(images)                     # … then fine-tune: Elbo.of(prediction, labels)

The network itself stays as it is, its `forward` included. It sees every image as each element u of the group shows it,
u⁻¹ · image, all in one batch. Chosen convolutions also look at the other views, and at the end the views are averaged
under a window that is learned for each image. Moving the image by the group permutes its views, and a convolution that
looks at them the same way from each is equivariant: exactly, whatever the network does in between.

At the start the kernels that look at other views are 0 and the window holds the identity alone, so the answer is that
of the original network. With the whole group in use it is invariant.

What is known about a batch travels with the data (`conversion/views.py`), so one network can be used by several
threads, copied, and checkpointed. `torch.compile` runs a converted network without compiling it; `torch.export` works
(`strict=False`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from vpgcnn._ops.memory_format import prefer_channels_last
from vpgcnn._ops.precision import full_precision
from vpgcnn.conversion.checks import Numbers, check_group, check_images, standard_of
from vpgcnn.conversion.mixing import MixedConv2d
from vpgcnn.conversion.moves import moved, moves_of
from vpgcnn.conversion.outputs import (
    Kind,
    Kinds,
    Outputs,
    averaged,
    check_kinds,
    kinds_of,
    merged_record,
    parts_of,
    rebuilt,
)
from vpgcnn.conversion.plan import Cost, Mix, Mixing, planned
from vpgcnn.conversion.trying import Run, copied, evaluating, examples, like_of, tried
from vpgcnn.conversion.views import Decided, NeedsAll, Record, Tracking, attach, on_grid, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import GroupFeature, Prediction, Trace
from vpgcnn.groups import Group, check_rgb
from vpgcnn.levels import Distribution, Level, LevelSpec, SharedLevel, Variational, VariationalLevel, Window
from vpgcnn.levels.level import FixedLevel

__all__ = ["Converted", "MixedConv2d", "convert", "convolutions", "matching"]

REFUSED = (nn.RNNBase, nn.Transformer, nn.SyncBatchNorm)
"""Modules that give the rows of a batch another meaning than one image each."""
TOLERANCE = 1e-4
"""How far the logits may be from the original's at the start, relative to the largest of them."""
ROUNDING, DOUBLE = 1e-2, 1e-8
"""How far rounding alone may move them, and how far they may then be in double precision, which decides."""
NARROW = 32
"""Channels of a level's encoder, at most, unless its width was chosen."""
BUDGET = 0.05
"""Multiplications for mixing, relative to those of the views, where `convert` chooses what is mixed."""
EARLY = 0.1
"""The share of the multiplications before a level up to which it decides first, and views it leaves out are not run."""


def _pool_output(_: nn.Module, __: object, output: Any) -> Any:
    """A forward hook that pools the views of a module's output, all parts under one window. The trace goes on."""
    parts = {
        name: part
        for name, part in parts_of(output).items()
        if (record := record_of(part)) is not None and record.fits(part)
    }
    if not parts:
        return output
    record = merged_record(parts)
    kinds: dict[str, Kind] = {name: "map" if part.dim() == 4 else "invariant" for name, part in parts.items()}
    found = averaged(parts, record, kinds)[0]
    after = record.after_pooling()
    return rebuilt(output, parts_of(output) | {name: attach(part, after) for name, part in found.items()})


class Converted(nn.Module):
    """Equivariant as far as its levels allow. Made by `convert`.

    Args:
        network: The original with some of its convolutions replaced.
        group: A finite group that permutes pixels.
        mean: Of the images, for each channel or for all. Images are standardised after they were moved.
        std: As `mean`.
        cost: What it computes, compared with the original.
        decides_first: Whether its only level runs before any mixing, and early enough to run it before the rest.
        pools_by_level: Whether it has one level, whose decision is the one that views are averaged by at the end.
        outputs: How its outputs move with the image, as for `convert`.
    """

    mean: Tensor
    std: Tensor
    colors: Tensor
    back: Tensor

    def __init__(
        self,
        network: nn.Module,
        group: Group,
        mean: Sequence[float],
        std: Sequence[float],
        cost: Cost,
        *,
        decides_first: bool = False,
        pools_by_level: bool = False,
        outputs: Kinds = None,
    ) -> None:
        super().__init__()
        self.pools_by_level, self.outputs = pools_by_level, outputs
        self.by_pixel = False  # whether maps lie pixel by pixel in memory
        self.network, self.group, self.cost, self.decides_first = network, group, cost, decides_first
        inverse = group.inverse(group.grid(dtype=torch.float64))
        self._moves = moves_of(group)
        self._inverse = tuple(group.index(inverse).tolist())
        self.register_buffer("colors", group.rgb(inverse).float(), persistent=False)
        self.register_buffer("back", inverse.float(), persistent=False)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    @property
    def _levelled(self) -> list[MixedConv2d]:
        """The convolutions with a level. They are looked up, because others may wrap modules or copy them."""
        return [part for part in self.network.modules() if isinstance(part, MixedConv2d) and part.level is not None]

    @property
    def _partial(self) -> list[MixedConv2d]:
        """Those whose level may leave views out."""
        return [layer for layer in self._levelled if not layer.level.is_full]  # type: ignore[union-attr]

    @property
    def summary(self) -> str:
        """What was converted, in a sentence."""
        return (
            f"mixes {self.cost.mixed} of {self.cost.convolutions} convolutions over the views of {self.group}; "
            f"{self.cost.ratio:.1f} times the multiplications of the original"
        )

    def extra_repr(self) -> str:
        return self.summary

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, images: Tensor) -> Prediction:
        """Logits and what the levels decided.

        Args:
            images: `(B, C, H, W)`, before standardisation; square where the group has quarter turns.

        Returns:
            Logits `(B, classes)` or maps, the first of the original's outputs, and the trace; `outputs` has all.
        """
        return self._answer(images)

    def _answer(self, images: Tensor, weights: Tensor | None = None) -> Prediction:
        """As `forward`. weights: `(B, m)`, the shares of the views before any level."""
        with nullcontext() if type(images) is Tensor else Tracking():
            if weights is None and self._may_leave_out(images):
                answer = self._without_unused(images)
                if answer is not None:
                    return answer
            answer = self._run(images, self._record(images, weights))
            if not answer.trace:
                self._check_levels(answer.trace)
            return answer

    def _run(self, images: Tensor, record: Record) -> Prediction:
        return _prediction(*self._averaged(images, record))

    def _averaged(self, images: Tensor, record: Record) -> tuple[Any, dict[str, Tensor], Trace]:
        """What the network returns, its tensors that depend on the images, averaged over views, and the trace."""
        output = self.network(self._views(images, record))
        every = parts_of(output)
        parts = {name: part for name, part in every.items() if record_of(part) is not None}
        for name, part in (parts or every).items():
            own = record_of(part)
            if own is None or not (own.pooled or own.fits(part)):
                what = f"output {name!r}" if name else "answer"
                raise UserError(
                    f"the network's {what} {tuple(part.shape)} is not one for each view of each image (of "
                    f"{len(images)} images × {record.count} views): it mixes the images of a batch"
                )
        kinds = kinds_of(parts, self.group, self.outputs)
        return output, *averaged(parts, merged_record(parts), kinds)

    def _check_levels(self, trace: Trace) -> None:
        """Refuse an answer that does not depend on what a level decides."""
        lost = [layer.name for layer in self._partial if layer.name not in trace]
        if lost:
            raise UserError(
                f"the answer does not depend on {lost[0]}, whose level decides which views count: it is on another "
                "branch, or did not run this time. Choose another convolution by levels="
            )

    def _record(self, images: Tensor, weights: Tensor | None = None) -> Record:
        if images.dim() != 4:
            raise ValueError(f"expected images B×C×H×W, got shape {tuple(images.shape)}")
        narrows = weights is not None or bool(self._partial)
        tracked = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        rows = images.shape[0] * self.group.count
        record = Record(self.group, self._moves, rows, narrows, weights, grads={} if tracked else None)
        return record.called()

    def _views(self, images: Tensor, record: Record) -> Tensor:
        """The views of images that are run, standardised: `(B·count, C, H, W)`."""
        return attach(self._pixels(images, record.shown), record)

    def _pixels(self, images: Tensor, shown: tuple[int, ...]) -> Tensor:
        """Chosen views of images, standardised, as a plain tensor."""
        if not images.is_floating_point():
            raise ValueError(f"expected images of floating point numbers, got {images.dtype}")
        check_rgb(self.group, images)
        views = torch.stack([moved(images, self._moves[self._inverse[u]]) for u in shown], dim=1)
        if self.group.acts_on_rgb and shown != (0,):
            with full_precision(images.device):
                colors = self.colors.to(images.dtype)
                colors = colors if len(shown) == self.group.count else colors[list(shown)]
                views = torch.matmul(colors, views.flatten(3)).view_as(views)
                if self.group.recolors:
                    views = self.group.recolor(views, self.back[list(shown)])
        pixels = views.flatten(0, 1)
        # On a CPU, the maps of many views then take a fifth less time in networks of depthwise convolutions.
        pixels = prefer_channels_last(pixels) if self.by_pixel else pixels
        return (pixels - self.mean) / self.std

    # ------------------------------------------------------------ views that do not count

    def _may_leave_out(self, images: Tensor) -> bool:
        """Whether views of weight 0 may be left out: in evaluation, without gradients, outside of programs."""
        return (
            type(images) is Tensor
            and images.dim() == 4
            and len(images) > 0
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch._C._functorch.is_functorch_wrapped_tensor(images)
            and not any(module.training for module in self.modules())
            and len(self._levelled) == 1
        )

    def _without_unused(self, images: Tensor) -> Prediction | None:
        """The answer, computed without views that count by 0; None if they cannot be told beforehand."""
        (layer,) = self._levelled
        q, constant = self._decided_beforehand(layer, images)
        if q is None:
            return None
        used = on_grid(q) > 0
        if constant and self.pools_by_level and not bool(used[:, 1:].any()):
            output = self.network(self._pixels(images, (0,)))  # the original, without any views
            return _prediction(output, parts_of(output), {layer.name: q})
        patterns, which = used.unique(dim=0, return_inverse=True)
        record = self._record(images).called(known={layer.name: q})
        if len(patterns) == 1 and bool(patterns.all()):
            return self._run(images, record)
        output, whole = None, dict[str, Tensor]()
        try:
            for number, pattern in enumerate(patterns):
                index = (which == number).nonzero()[:, 0]
                kept = tuple(pattern.nonzero()[:, 0].tolist())
                own = _of_images(q, index)
                part = record.called(size=len(index) * len(kept), kept=kept, known={layer.name: own})
                output, found, trace = self._averaged(images[index], part)
                if set(trace) != {layer.name}:
                    return None
                for name, values in found.items():
                    if name not in whole:
                        whole[name] = values.new_empty(len(images), *values.shape[1:])
                    whole[name][index] = values
        except NeedsAll:
            return None
        return _prediction(output, whole, {layer.name: q})

    def _decided_beforehand(self, layer: MixedConv2d, images: Tensor) -> tuple[Distribution | None, bool]:
        """What the level decides, if the rest of the network need not be run for it; and whether nothing mixes."""
        assert layer.level is not None
        if layer.level.is_full:
            return None, False
        if _is_constant(layer.level):
            mixed = (part for part in self.network.modules() if isinstance(part, MixedConv2d))
            if any(bool(cross.weight.any()) for part in mixed for cross in part.cross):  # type: ignore[operator]
                return None, False  # they look at all views before the level
            channels = layer.conv.in_channels if layer.sees_input else layer.conv.out_channels
            blank = images.new_zeros(len(images), channels, self.group.count, 1, 1)
            elements = self.group.grid(dtype=images.dtype, device=images.device)
            q: Distribution = layer.level(GroupFeature(blank, elements, None, self.group, {}))
            return q, True
        if not self.decides_first:
            return None, False
        record = self._record(images).called(peeks=True)
        try:
            self.network(self._views(images, record))
        except Decided as decided:
            return decided.q, False
        return None, False


def _prediction(output: Any, parts: Mapping[str, Tensor], trace: Trace) -> Prediction:
    """The prediction from a network's output, whose tensors are replaced. parts: The first one is the logits."""
    logits = next(iter(parts.values()))
    if isinstance(output, Tensor):
        return Prediction(logits, trace)
    return Outputs(logits, trace, rebuilt(output, parts_of(output) | dict(parts)))


def _is_constant(level: Level) -> bool:
    """Whether a level decides the same for every image."""
    if isinstance(level, VariationalLevel):
        return not bool(level.encoder.linear.weight.any())
    return isinstance(level, FixedLevel | SharedLevel)


def _of_images(q: Distribution, index: Tensor) -> Distribution:
    """The decision for some of the images."""
    part: Distribution = tree_map_only(Tensor, lambda values: values[index], q)
    return part


def convert(
    model: nn.Module,
    group: Group,
    *,
    level: LevelSpec | None = None,
    layers: str | Sequence[str] | None = None,
    levels: str | Sequence[str] | None = None,
    until: str | None = None,
    outputs: Kinds = None,
    mix: Mix = "auto",
    budget: float | None = None,
    mean: Numbers = 0.0,
    std: Numbers = 1.0,
    example: Tensor | None = None,
) -> Converted:
    """Make a copy of a network equivariant to a finite group; it starts with the answers of the original.

    Args:
        model: Any network with convolutions (`nn.Conv2d` or a subclass). It is not changed.
        group: `Hue(m)`, `Saturation(m)`, `Luminance(m)`, quarter turns and mirrors, or a product of them.
        level: How much of the group each image uses, as for our layers. None: a `Variational` whose window starts
            on the identity alone. `Full()` makes the network fully equivariant at once, so its answers change.
        layers: Convolutions that look at other views, by name or the start of it ("layer3"). None: all.
        levels: The convolutions that have a level. None: the last of `layers` to run whose kernel is larger than 1×1;
            where there are several outputs, of those that all of them depend on.
            "first": the first one to run; mixing then starts after it, so that in evaluation views of weight 0 are not
            run at all.
        until: The module after which views are pooled; the rest is an ordinary network. None: the end.
        outputs: How the network's outputs move with quarter turns and mirrors: "map" (each channel is a scalar),
            "invariant", or `Directions` for boxes and flows; by name, where there are several. None: one map moves, and
            what has no place does not.
        mix: How convolutions look at other views: through a 1×1 kernel ("pointwise"), one as large as their own
            ("full"), or not at all ("none"). "auto": from the last convolution to the first, as far as the budget goes,
            through 1×1 kernels or, where these cost much, through few channels.
        budget: Multiplications for mixing with "auto", relative to those that the views cost. None: a twentieth.
        mean: Of the images, if the model does not take pixels in [0, 1]: for each channel, or one for all.
        std: As `mean`.
        example: Images `(B, C, H, W)`, before standardisation, to see which convolutions run in evaluation mode, and
            in which order. None: random images of the usual sizes are tried.

    Returns:
        The converted network; its `summary` says how many convolutions mix, its `cost` what it computes.

    Raises:
        UserError: If the network cannot be converted, or would not have the original's answers.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a network, an nn.Module, got {model!r}")
    check_group(group, "a network is converted to")
    moves_of(group)
    mean, std = standard_of(mean, std)
    if example is not None:
        check_images(group, example, mean, std)
    if mix not in ("auto", "pointwise", "full", "none"):
        raise UserError(f"mix is auto, pointwise, full or none, got {mix!r}")
    if budget is not None and mix != "auto":
        raise UserError(f'budget belongs to mix="auto", got mix={mix!r}')
    budget = BUDGET if budget is None else budget
    if not budget >= 0:
        raise UserError(f"budget is a share of the multiplications, at least 0, got {budget}")
    if level is not None and not isinstance(level, LevelSpec):
        raise TypeError(f"level must be a value such as Variational(), got {level!r}")
    odd = [f"{name} ({type(part).__name__})" for name, part in model.named_modules() if isinstance(part, REFUSED)]
    if odd:
        raise UserError(f"cannot convert {odd[0]}: views of an image are images of the batch, which it does not allow")
    if any(isinstance(part, Converted | MixedConv2d) for part in model.modules()):
        raise UserError("the network is converted already: convert the original to another group, or to a product")
    network = copied(model)
    convs = convolutions(network)
    if example is None:
        check_images(group, next(examples(network, convs)), mean, std, "what the network takes")
    if until is not None:
        _check_until(network, convs, until)
    standard = tuple(torch.tensor(each).view(1, -1, 1, 1) for each in (mean, std))
    run = tried(network, model, convs, group, until, standard, example)
    if run.repeated:
        raise UserError(
            f"{run.repeated[0]} is computed again in the backward pass from what an autograd function kept, which does "
            "not tell views apart: let torch keep the maps, or use torch.utils.checkpoint"
        )
    check_kinds(run.answer, outputs)
    chosen = matching(run.convs, layers, "layers")
    levelled = _levelled(run, chosen, convs, levels)
    first = levels == "first" and levelled == run.convs[:1]
    mixing = [name for name in chosen if name in run.reached and not (first and name in levelled)]
    ways, cost = planned(convs, mixing, group, mix, budget, run)
    sees_input = level is not None and level.condition == "input"
    for name in run.convs:
        conv = convs[name]
        own = _level(level, group, conv) if name in levelled else None
        if name not in ways and own is None:
            continue
        if own is not None and name not in run.reached and any(each.requires_grad for each in own.parameters()):
            raise UserError(
                f"no gradient reaches {name or 'the network'} (torch.no_grad or detach), so its level would not learn: "
                "choose another convolution by levels=, or Full() or Fixed() for a level that does not learn"
            )
        mixed = MixedConv2d(conv, group, ways.get(name, Mixing("none")), own, name or "network", sees_input)
        mixed.training = conv.training
        network = _replaced(network, conv, mixed)
    if until is not None:
        network.get_submodule(until).register_forward_hook(_pool_output)
    early = first and run.before[levelled[0]] <= EARLY * run.inside
    net = Converted(network, group, mean, std, cost, decides_first=early, outputs=outputs).to(run.images.device)
    net.training = model.training
    net.by_pixel = any(_is_depthwise(convs[name]) for name in run.convs)
    start = _checked_start(net, model, run, from_identity=level is None)
    net.pools_by_level = until is None and len(net._levelled) == 1 and len(start.trace) == 1
    return net


def _is_depthwise(conv: Any) -> bool:
    return bool(conv.groups == conv.in_channels > 1)


def convolutions(network: nn.Module) -> dict[str, Any]:
    """The convolutions of a network by name; it must have some."""
    every = {name: part for name, part in network.named_modules() if isinstance(part, nn.Conv2d)}
    found = {name: part for name, part in every.items() if not like_of(part).is_complex()}
    if not found:
        reason = "all of them have complex weights" if every else "nn.Conv2d"
        raise UserError(f"there is no convolution ({reason}) to convert")
    return found


def _check_until(network: nn.Module, convs: dict[str, Any], until: str) -> None:
    names = dict(network.named_modules())
    if until not in names:
        raise UserError(f"there is no module {until!r}: choose from {', '.join(list(names)[1:9])}, …")
    if not any(name == until or name.startswith(f"{until}.") for name in convs):
        raise UserError(f"{until} holds no convolution")


def matching(names: list[str], wanted: str | Sequence[str] | None, what: str) -> list[str]:
    """The names that are wanted, or start with what is wanted."""
    if wanted is None:
        return names
    wanted = [wanted] if isinstance(wanted, str) else wanted
    for each in wanted:
        if not any(name == each or name.startswith(f"{each}.") for name in names):
            run = f"that runs in evaluation mode: choose from {', '.join(names)}"
            raise UserError(f"{what}: there is no convolution {each!r} {run}")
    return [name for name in names if any(name == each or name.startswith(f"{each}.") for each in wanted)]


def _levelled(run: Run, chosen: list[str], convs: dict[str, Any], levels: str | Sequence[str] | None) -> list[str]:
    """The convolutions that have a level."""
    if levels is None:
        chosen = [name for name in chosen if name in run.reached] or chosen
        several = len(run.answer) > 1
        shared = [name for name in chosen if several and name in run.shared and len(run.maps[name]) == 1] or chosen
        large = [name for name in shared if max(convs[name].kernel_size) > 1]
        return (large or shared)[-1:]
    if levels == "first" and not any(name == "first" or name.startswith("first.") for name in run.convs):
        return run.convs[:1]
    return matching(chosen, levels, "levels")


def _level(spec: LevelSpec | None, group: Group, conv: nn.Conv2d) -> Level | None:
    """The level of a layer; None where it would use the whole group anyway."""
    spec = Variational(Window(initial=1 / (group.order or 1))) if spec is None else spec
    channels = conv.in_channels if spec.condition == "input" else conv.out_channels
    if isinstance(spec, Variational) and spec.encoder_width is None:
        spec = replace(spec, encoder_width=min(channels, NARROW))
    level = spec.build(group, channels)
    if level.moves_elements:
        raise UserError(f"views are those of the group's elements: {spec} moves them, choose Window()")
    if isinstance(level, VariationalLevel):  # the same for every image until it is trained
        nn.init.zeros_(level.encoder.linear.weight)
    return None if level.is_full else level.train(conv.training)


def _replaced(network: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The network with one module replaced, under all its names."""
    if network is old:
        return new
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is old and parent is not new:
                parent._modules[name] = new
    return network


def _checked_start(net: Converted, model: nn.Module, run: Run, *, from_identity: bool) -> Prediction:
    """The first answer; refuse a network that does not start with the original's."""
    start, apart = _start(net, run.images, run.answer, from_identity)
    net._check_levels(start.trace)
    for name, distance in apart.items():
        expected = run.answer[name]
        eps = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
        if distance <= max(TOLERANCE, 16 * eps):
            continue
        which = f" {name!r}" if name else ""
        if not math.isfinite(distance):
            raise UserError(
                f"the network's answers{which} to the example or to moved copies of it are not all finite numbers: "
                "they cannot be averaged"
            )
        if not (distance <= ROUNDING and _same_in_double(net, model, run.images, from_identity)):
            size = float(expected.abs().max())
            raise UserError(
                f"the converted network does not have the original's answers{which}: they differ by {distance:.1e} of "
                f"the largest one ({size:.3g}). Does an image's answer depend on the others of its batch, or on "
                "rounding?"
            )
    return start


def _start(
    net: Converted, images: Tensor, expected: Mapping[str, Tensor], from_identity: bool
) -> tuple[Prediction, dict[str, float]]:
    """The first answer, and how far each output is from the original's, relative to the largest number of that."""
    identity = None
    if not from_identity:  # whatever the level keeps, the answer for the image as it is has not changed
        identity = images.new_zeros(len(images), net.group.count)
        identity[:, 0] = 1
    record = net._record(images, identity)
    mixed = [part for part in net.modules() if isinstance(part, MixedConv2d)]
    ran = set[nn.Module]()
    hooks = [part.register_forward_hook(lambda module, *_: ran.add(module)) for part in mixed]
    try:
        with evaluating(net):
            start = net._run(images, record)
    except UserError:
        raise
    except Exception as error:  # whatever a network raises for more images than it was made for
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(
            f"the network runs on {len(images)} images, but not on their {record.size} views: does it hold something "
            f"of the size of a batch? ({reason})"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    lost = [part.name for part in mixed if part not in ran]
    if lost:
        raise UserError(
            f"{lost[0]} runs, but not under its name: forward holds it in a list, a dictionary or a function as well. "
            "Let forward find its modules as attributes"
        )
    found = parts_of(start.outputs)
    if found.keys() != expected.keys():
        raise UserError(f"the converted network returns {', '.join(found)}; the original {', '.join(expected)}")
    return start, {name: _apart(name, found[name], each) for name, each in expected.items()}


def _apart(name: str, found: Tensor, expected: Tensor) -> float:
    """The largest difference between two outputs, relative to the largest number of the second."""
    if found.shape != expected.shape:
        which = f" {name!r}" if name else ""
        raise UserError(
            f"the converted network answers{which} {tuple(found.shape)}, the original {tuple(expected.shape)}"
        )
    if not expected.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    expected, found = expected.detach().to(wide), found.to(wide)
    return float((found - expected).abs().max()) / (float(expected.abs().max()) or 1.0)


def _same_in_double(net: Converted, model: nn.Module, images: Tensor, from_identity: bool) -> bool:
    """Whether the answers are the original's in double precision: deep networks can amplify rounding a lot."""
    if images.dtype == torch.float64:
        return False
    images = images.double()
    original, twin = copy.deepcopy(model).double(), copy.deepcopy(net).double()
    for layer in twin._levelled:
        assert layer.level is not None
        layer.level.float()  # a window on the identity alone is that in its own precision only
    try:
        with evaluating(original):
            expected = parts_of(original((images - twin.mean) / twin.std))
        if any(each.is_floating_point() and each.dtype != torch.float64 for each in expected.values()):
            return False
        return max(_start(twin, images, expected, from_identity)[1].values()) <= DOUBLE
    except Exception:  # a network that insists on its precision: nothing speaks for it
        return False
