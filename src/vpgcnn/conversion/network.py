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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._pytree import tree_map_only

from vpgcnn._ops.precision import full_precision
from vpgcnn.conversion.mixing import Mix, MixedConv2d, moved, moves_of, pooled
from vpgcnn.conversion.views import Record, Tracking, Views, attach, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction, output_of
from vpgcnn.groups import Group, check_rgb
from vpgcnn.levels import Level, LevelSpec, Variational, VariationalLevel, Window

__all__ = ["Converted", "MixedConv2d", "convert"]

REFUSED = (nn.RNNBase, nn.Transformer, nn.SyncBatchNorm)
"""Modules that give the rows of a batch another meaning than one image each."""
SIZES = (224, 112, 64, 32, 28, 299)
"""Sides of the images that `convert` tries where it gets no example."""
TOLERANCE = 1e-4
"""How far the logits may be from the original's at the start, relative to the largest of them."""
NARROW = 32
"""Channels of the encoder of the default level, at most."""


def _pool_output(_: nn.Module, __: object, output: Any) -> Any:
    """A forward hook that pools the views of a module's output. The trace goes on with it."""

    def pool(part: Tensor) -> Tensor:
        record = record_of(part)
        if record is None or not record.fits(part):
            return part
        return attach(pooled(part, record), record.after_pooling())

    return tree_map_only(Tensor, pool, output)


class Converted(nn.Module):
    """Equivariant as far as its levels allow. Made by `convert`.

    Args:
        network: The original with some of its convolutions replaced.
        group: A finite group that permutes pixels.
        mean: Of the images, for each channel or for all. Images are standardised after they were moved.
        std: As `mean`.
        summary: What was converted, in a sentence.
    """

    mean: Tensor
    std: Tensor
    colors: Tensor

    def __init__(
        self, network: nn.Module, group: Group, mean: Sequence[float], std: Sequence[float], summary: str = ""
    ) -> None:
        super().__init__()
        self.network, self.group, self.summary = network, group, summary
        self._levels = tuple(
            path for path, part in network.named_modules() if isinstance(part, MixedConv2d) and part.level is not None
        )
        inverse = group.inverse(group.grid(dtype=torch.float64))
        self._moves = moves_of(group)
        self._inverse = tuple(group.index(inverse).tolist())
        self.register_buffer("colors", group.rgb(inverse).float(), persistent=False)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def extra_repr(self) -> str:
        return self.summary

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, images: Tensor) -> Prediction:
        """Logits and what the levels decided.

        Args:
            images: `(B, C, H, W)`, before standardisation; square where the group has quarter turns.

        Returns:
            Logits `(B, classes)`, or whatever the original's first output is, and the trace.
        """
        return self._answer(images)

    def _answer(self, images: Tensor, weights: Tensor | None = None) -> Prediction:
        """As `forward`. weights: `(B, m)`, the shares of the views before any level."""
        with nullcontext() if type(images) is Tensor else Tracking():
            views = self._views(images, weights)
            answer = output_of(self.network(views))
            assert isinstance(answer, Tensor)
            record = record_of(answer)
            if record is None or not (record.pooled or record.fits(answer)):
                raise UserError(
                    f"the network's answer {tuple(answer.shape)} is not one for each view of each image (of "
                    f"{len(images)} images × {self.group.count} views): it mixes the images of a batch"
                )
            with torch._C.DisableTorchFunctionSubclass():
                if not record.pooled:
                    logits = pooled(answer, record)
                else:
                    logits = answer.as_subclass(Tensor) if isinstance(answer, Views) else answer
                return Prediction(logits, record.trace_at(answer))

    def _views(self, images: Tensor, weights: Tensor | None) -> Tensor:
        """All views of images, standardised: `(B·m, C, H, W)`."""
        if images.dim() != 4:
            raise ValueError(f"expected images B×C×H×W, got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ValueError(f"expected images of floating point numbers, got {images.dtype}")
        check_rgb(self.group, images)
        views = torch.stack([moved(images, self._moves[number]) for number in self._inverse], dim=1)
        if self.group.acts_on_rgb:
            with full_precision(images.device):
                views = torch.matmul(self.colors.to(images.dtype), views.flatten(3)).view_as(views)
        folded = (views.flatten(0, 1) - self.mean) / self.std
        levels = [self.network.get_submodule(path).level for path in self._levels]
        narrows = weights is not None or any(not level.is_full for level in levels)  # type: ignore[union-attr]
        tracked = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        record = Record(self.group, self._moves, folded.shape[0], narrows, weights, grads={} if tracked else None)
        return attach(folded, record)


def convert(
    model: nn.Module,
    group: Group,
    *,
    level: LevelSpec | None = None,
    layers: str | Sequence[str] | None = None,
    levels: str | Sequence[str] | None = None,
    until: str | None = None,
    mix: Mix = "pointwise",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    example: Tensor | None = None,
) -> Converted:
    """Make a copy of a classifier equivariant to a finite group; it starts with the answers of the original.

    Args:
        model: Any network with convolutions (`nn.Conv2d` or a subclass). It is not changed.
        group: `Hue(m)`, quarter turns and mirrors, or a product of them.
        level: How much of the group each image uses, as for our layers. None: a `Variational` whose window starts
            on the identity alone. `Full()` makes the network fully equivariant at once, so its answers change.
        layers: Convolutions that look at other views, by name or the start of it ("layer3"). None: all.
        levels: Those of them that have a level. None: the last to run whose kernel is larger than 1×1.
        until: The module after which views are pooled; the rest is an ordinary network. None: the end.
        mix: How convolutions look at other views: through a 1×1 kernel, one as large as their own, or not at all.
        mean: Of the images, if the model does not take pixels in [0, 1]: for each channel, or one for all.
        std: As `mean`.
        example: Images `(B, C, H, W)`, before standardisation, to see which convolutions run in evaluation mode, and
            in which order. None: random images of the usual sizes are tried.

    Returns:
        The converted network; its `summary` says how many convolutions were converted.

    Raises:
        UserError: If the network cannot be converted, or would not have the original's answers.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a network, an nn.Module, got {model!r}")
    if not isinstance(group, Group):
        raise TypeError(f"group must be a value such as Rotations(4), got {group!r}")
    if not min(std) > 0:
        raise UserError(f"std must be above 0, got {tuple(std)}")
    if group.order is None:
        raise UserError(f"a network is converted to a finite group, got {group}: choose Rotations(4), say")
    moves_of(group)
    if mix not in ("pointwise", "full", "none"):
        raise UserError(f"mix is pointwise, full or none, got {mix!r}")
    if level is not None and not isinstance(level, LevelSpec):
        raise TypeError(f"level must be a value such as Variational(), got {level!r}")
    odd = [f"{name} ({type(part).__name__})" for name, part in model.named_modules() if isinstance(part, REFUSED)]
    if odd:
        raise UserError(f"cannot convert {odd[0]}: views of an image are images of the batch, which it does not allow")
    if any(isinstance(part, Converted | MixedConv2d) for part in model.modules()):
        raise UserError("the network is converted already: convert the original to another group, or to a product")
    network = copy.deepcopy(model)
    convs = {name: part for name, part in network.named_modules() if _is_convolution(part)}
    if not convs:
        raise UserError("there is no convolution (nn.Conv2d) to convert")
    if until is not None:
        _check_until(network, convs, until)
    standard = tuple(torch.tensor(each).view(1, -1, 1, 1) for each in (mean, std))
    run = _tried(network, convs, group, until, standard, example)
    chosen = _matching(run.convs, layers, "layers")
    large = [name for name in chosen if max(convs[name].kernel_size) > 1]
    levelled = (large or chosen)[-1:] if levels is None else _matching(chosen, levels, "levels")
    for name in chosen:
        conv = convs[name]
        own = _level(level, group, conv) if name in levelled else None
        sees_input = level is not None and level.condition == "input"
        mixed = MixedConv2d(conv, group, mix, own, name or "network", sees_input)
        mixed.training = conv.training
        network = _replaced(network, conv, mixed)
    if until is not None:
        network.get_submodule(until).register_forward_hook(_pool_output)
    summary = f"mixes {len(chosen) if mix != 'none' else 0} of {len(convs)} convolutions over the views of {group}"
    net = Converted(network, group, mean, std, summary).to(run.images.device)
    net.training = model.training
    _check_start(net, run, from_identity=level is None)
    return net


def _is_convolution(part: nn.Module) -> bool:
    return isinstance(part, nn.Conv2d) and not isinstance(part, LazyModuleMixin)


def _check_until(network: nn.Module, convs: dict[str, Any], until: str) -> None:
    names = dict(network.named_modules())
    if until not in names:
        raise UserError(f"there is no module {until!r}: choose from {', '.join(list(names)[1:9])}, …")
    if not any(name == until or name.startswith(f"{until}.") for name in convs):
        raise UserError(f"{until} holds no convolution")


def _matching(names: list[str], wanted: str | Sequence[str] | None, what: str) -> list[str]:
    """The names that are wanted, or start with what is wanted."""
    if wanted is None:
        return names
    wanted = [wanted] if isinstance(wanted, str) else wanted
    for each in wanted:
        if not any(name == each or name.startswith(f"{each}.") for name in names):
            run = f"that runs in evaluation mode: choose from {', '.join(names)}"
            raise UserError(f"{what}: there is no convolution {each!r} {run}")
    return [name for name in names if any(name == each or name.startswith(f"{each}.") for each in wanted)]


def _level(spec: LevelSpec | None, group: Group, conv: nn.Conv2d) -> Level | None:
    """The level of a layer; None where it would use the whole group anyway."""
    if spec is None:
        width = min(conv.out_channels, NARROW)
        spec = Variational(Window(initial=1 / (group.order or 1)), encoder_width=width)
    level = spec.build(group, conv.in_channels if spec.condition == "input" else conv.out_channels)
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


# ---------------------------------------------------------------- trying it


class _Run(NamedTuple):
    """One evaluation of the original: convolutions in the order they ran, images and their answer."""

    convs: list[str]
    images: Tensor
    answer: Tensor


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module then gets its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def _examples(model: nn.Module, convs: dict[str, Any]) -> Iterator[Tensor]:
    """Random images of the sizes that the model may take, its own first."""
    first = next(iter(convs.values()))
    like = next(first.parameters())
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    size = config.get("input_size") if isinstance(config, dict) else getattr(config, "input_size", None)
    channels, *sides = size or (first.in_channels,)
    own = getattr(model, "image_size", None)
    shapes = [tuple(sides)] if sides else [(own, own)] if isinstance(own, int) else []
    generator = torch.Generator().manual_seed(0)
    for height, width in [*shapes, *((side, side) for side in SIZES if (side, side) not in shapes)]:
        yield torch.rand(2, channels, height, width, generator=generator).to(like)


def _tried(
    network: nn.Module,
    convs: dict[str, Any],
    group: Group,
    until: str | None,
    standard: tuple[Tensor, ...],
    example: Tensor | None,
) -> _Run:
    """Run the original on an example."""
    problem: Exception | None = None
    for images in _examples(network, convs) if example is None else [example[:2]]:
        images = images.to(next(network.parameters()).device)
        try:
            return _observed(network, convs, group, until, standard, images)
        except UserError:
            raise
        except Exception as error:  # whatever a network raises for images that it does not take
            problem = error
    tried = "images of the usual sizes" if example is None else f"the example {tuple(example.shape)}"
    wish = ": pass example=, images as it takes them" if example is None else ""
    reason = f"{type(problem).__name__}: {problem}".split("\n")[0]
    raise UserError(f"the network does not run on {tried}{wish} ({reason})") from problem


def _observed(
    network: nn.Module,
    convs: dict[str, Any],
    group: Group,
    until: str | None,
    standard: tuple[Tensor, ...],
    images: Tensor,
) -> _Run:
    ran: list[str] = []
    blind: list[str] = []  # what does not see the images, as far as records tell
    ended: list[int] = []

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], out: object) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(out, Tensor) and args[0].dim() == out.dim() == 4:
                found = blind if record_of(args[0]) is None else ran
                if name not in found and out.shape[1] == convs[name].out_channels:
                    found.append(name)

        return hook

    hooks = [conv.register_forward_hook(note(name)) for name, conv in convs.items()]
    if until is not None:
        end = network.get_submodule(until)
        hooks.append(end.register_forward_hook(lambda *_: ended.append(len(ran))))
    mean, std = (each.to(images) for each in standard)
    pixels = (images - mean) / std
    try:
        with _evaluating(network):
            record = Record(group, (), len(images), pooled=True)
            answer = output_of(network(attach(pixels.clone(), record)))
    finally:
        for hook in hooks:
            hook.remove()
    lost = [name for name in blind if name not in ran and _depends(network, convs[name], pixels)]
    if lost:
        raise UserError(f"{lost[0]} sees a tensor that was filled with values, not computed from the images")
    if until is not None and not ended:
        raise UserError(f"{until} does not run in evaluation mode")
    ran = ran if until is None else ran[: ended[0]]
    if not ran:
        raise UserError("there is no convolution (nn.Conv2d) that sees the images in evaluation mode")
    assert isinstance(answer, Tensor)
    return _Run(ran, images, answer.as_subclass(Tensor))


def _depends(network: nn.Module, conv: nn.Module, pixels: Tensor) -> bool:
    """Whether what a convolution sees depends on the images: a positional encoding does not."""
    seen: list[Tensor] = []
    hook = conv.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    try:
        with _evaluating(network):
            network(pixels)
            many = len(seen)
            network(pixels.flip(0, -1) * 0.7)
    finally:
        hook.remove()
    return not all(torch.equal(one, two) for one, two in zip(seen[:many], seen[many:], strict=True))


def _check_start(net: Converted, run: _Run, *, from_identity: bool) -> None:
    """Refuse a network that does not start with the original's answers."""
    identity = None
    if not from_identity:  # whatever the level keeps, the answer for the image as it is has not changed
        identity = run.images.new_zeros(len(run.images), net.group.count)
        identity[:, 0] = 1
    with _evaluating(net):
        found, expected = net._answer(run.images, identity).logits, run.answer
    if found.shape != expected.shape:
        raise UserError(f"the converted network answers {tuple(found.shape)}, the original {tuple(expected.shape)}")
    if not expected.numel():
        return
    size = float(expected.abs().max())
    apart = float((found - expected).abs().max()) / (size or 1.0)
    if not apart <= max(TOLERANCE, 16 * torch.finfo(expected.dtype).eps):
        raise UserError(
            f"the converted network does not have the original's answers: they differ by {apart:.1e} of the largest "
            f"one ({size:.3g}). Does an image's answer depend on the others of its batch, or on chance?"
        )
