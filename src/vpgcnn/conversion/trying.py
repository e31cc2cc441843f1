"""A first run of a network that is to be converted: which convolutions see the images, in which order, at what cost."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from vpgcnn.conversion.outputs import parts_of
from vpgcnn.conversion.views import Record, attach, record_of
from vpgcnn.errors import UserError
from vpgcnn.groups import Group

__all__ = ["Run", "copied", "evaluating", "examples", "input_of", "like_of", "tried"]

SIZES = (224, 112, 64, 32, 28, 299)
"""Sides of the images that `convert` tries where it gets no example."""

MARK: Any = None
"""Stands for a decision in the trace of a first run, where only the names are of interest."""


class Run(NamedTuple):
    """One evaluation of the original: what ran, the images and their answer.

    Args:
        convs: The convolutions that see the images, in the order they ran.
        images: `(B, C, H, W)`, before standardisation.
        answer: The tensors that the original answers with, by name: "" for one alone.
        shared: The convolutions that all of them depend on.
        maps: For each convolution, the height and width of its output each time it ran.
        before: For each convolution, the multiplications for one image until its first output.
        inside: Multiplications for one image until the views are pooled.
        whole: Multiplications for one image in all.
        reached: The convolutions that a gradient of the answer reaches; all where that cannot be told.
        repeated: Those that run again in the backward pass, on what carries no record.
    """

    convs: list[str]
    images: Tensor
    answer: dict[str, Tensor]
    shared: frozenset[str]
    maps: dict[str, list[tuple[int, int]]]
    before: dict[str, int]
    inside: int
    whole: int
    reached: frozenset[str]
    repeated: list[str]


def input_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The tensor that a convolution is called with."""
    found = args[0] if args else kwargs.get("input")
    return found if isinstance(found, Tensor) else None


def like_of(module: nn.Module) -> Tensor:
    """A tensor that tells a module's precision and device: a parameter, or a buffer where weights are buffers."""
    found: Tensor = next(itertools.chain(module.parameters(), module.buffers()), torch.zeros(()))
    return found


def copied(model: nn.Module) -> nn.Module:
    """A copy of a network, which `torch.compile` does not compile: it would not see which rows are views."""
    blank = [name for name, part in model.named_modules() if isinstance(part, LazyModuleMixin)]
    if blank:
        kind = type(model.get_submodule(blank[0])).__name__
        raise UserError(f"{blank[0] or 'the network'} ({kind}) has no weights yet: run the network on images first")
    try:
        network = copy.deepcopy(model)
    except Exception as error:  # whatever a network raises that holds what cannot be copied
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise UserError(
            f"the network cannot be copied ({reason}): torch.nn.utils.remove_weight_norm helps where its weights are "
            "computed by the older weight_norm"
        ) from error
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            parent._modules[name] = _uncompiled(child)
    return _uncompiled(network)  # type: ignore[return-value]


def _uncompiled(module: nn.Module | None) -> nn.Module | None:
    """The module that `torch.compile` wrapped."""
    while module is not None and "_orig_mod" in module._modules:
        module = module._modules["_orig_mod"]
    return module


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module then gets its own mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient: torch's counter of multiplications wants graphs for those that do."""
    asking = [each for each in network.parameters() if each.requires_grad and each.is_leaf]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_(True)


def examples(model: nn.Module, convs: dict[str, Any]) -> Iterator[Tensor]:
    """Random images of the sizes that the model may take, its own first."""
    first = next(iter(convs.values()))
    like = like_of(first)
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None) or {}
    size = config.get("input_size") if isinstance(config, dict) else getattr(config, "input_size", None)
    channels, *sides = size or (first.in_channels,)
    own = getattr(model, "image_size", None)
    shapes = [tuple(sides)] if sides else [(own, own)] if isinstance(own, int) else []
    generator = torch.Generator().manual_seed(0)
    for height, width in [*shapes, *((side, side) for side in SIZES if (side, side) not in shapes)]:
        yield torch.rand(2, channels, height, width, generator=generator).to(like)


@contextmanager
def _alone(network: nn.Module, model: nn.Module) -> Iterator[None]:
    """Refuse a copy that runs modules of its original, which closures hold: they would be neither moved nor trained."""
    own, theirs = set(network.modules()), {part: name for name, part in model.named_modules()}
    thread, found = threading.get_ident(), list[str]()

    def note(module: nn.Module, _: object) -> None:
        if module in theirs and module not in own and threading.get_ident() == thread:
            found.append(theirs[module])

    hook = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        hook.remove()
    if found:
        raise UserError(
            f"a copy of the network still runs {found[0] or 'the original'} of the original, through a function that "
            f"holds it: let forward find its modules as attributes"
        )


def tried(
    network: nn.Module,
    model: nn.Module,
    convs: dict[str, Any],
    group: Group,
    until: str | None,
    standard: tuple[Tensor, ...],
    example: Tensor | None,
) -> Run:
    """Run a copy of the original on an example.

    Args:
        network: The copy.
        model: The original.
        convs: The copy's convolutions by name.
        group: The group.
        until: The module after which views are pooled.
        standard: Mean and standard deviation of the images.
        example: `(B, C, H, W)`, before standardisation. None: random images.
    """
    problem: Exception | None = None
    for images in examples(network, convs) if example is None else [example[:2]]:
        images = images.to(like_of(network).device)
        try:
            with _alone(network, model):
                return _observed(network, convs, group, until, standard, images)
        except UserError:
            raise
        except Exception as error:  # whatever a network raises for images that it does not take
            problem = error
    what = "images of the usual sizes" if example is None else f"the example {tuple(example.shape)}"
    wish = ": pass example=, images as it takes them" if example is None else ""
    reason = f"{type(problem).__name__}: {problem}".split("\n")[0]
    raise UserError(f"the network does not run on {what}{wish} ({reason})") from problem


def _observed(
    network: nn.Module,
    convs: dict[str, Any],
    group: Group,
    until: str | None,
    standard: tuple[Tensor, ...],
    images: Tensor,
) -> Run:
    ran: list[str] = []
    blind: list[str] = []  # what does not see the images, as far as records tell
    apart: dict[str, int] = {}  # what sees other rows than one for each image, and how many
    ended: list[tuple[int, int]] = []
    maps: dict[str, list[tuple[int, int]]] = {}
    before: dict[str, int] = {}
    counter = FlopCounterMode(display=False)

    def multiplications() -> int:
        return counter.get_total_flops() // (2 * len(images))

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> None:
            given = input_of(args, kwargs)
            if given is not None and isinstance(out, Tensor) and given.dim() == out.dim() == 4:
                found = blind if record_of(given) is None else ran
                by_row = torch._C._functorch.is_functorch_wrapped_tensor(given)  # torch.vmap
                if by_row or (found is ran and len(given) != len(images)):
                    apart[name] = len(given)
                    return
                if out.shape[1] == convs[name].out_channels:
                    maps.setdefault(name, []).append((out.shape[-2], out.shape[-1]))
                    before.setdefault(name, multiplications())
                    found += [] if name in found else [name]
                    record = record_of(out)
                    if record is not None:  # what is computed from this carries its name
                        attach(out, replace(record, trace={**record.trace, name: MARK}))

        return hook

    hooks = [conv.register_forward_hook(note(name), with_kwargs=True) for name, conv in convs.items()]
    if until is not None:
        end = network.get_submodule(until)
        hooks.append(end.register_forward_hook(lambda *_: ended.append((len(ran), multiplications()))))
    mean, std = (each.to(images) for each in standard)
    pixels = ((images - mean) / std).detach()
    try:
        with evaluating(network), _frozen(network), counter:
            record = Record(group, (), len(images), pooled=True)
            output = network(attach(pixels.clone(), record))
    finally:
        for hook in hooks:
            hook.remove()
    broken = [name for name, part in network.named_parameters() if not bool(part.isfinite().all())]
    if broken:
        raise UserError(f"the weights of the network are not all finite numbers: {broken[0]}")
    lost = [name for name in blind if name not in ran and _depends(network, convs[name], pixels)]
    if lost:
        raise UserError(f"{lost[0]} sees a tensor that was filled with values, not computed from the images")
    if until is not None and not ended:
        raise UserError(f"{until} does not run in evaluation mode")
    many, inside = (len(ran), multiplications()) if until is None else ended[0]
    ran = [name for name in ran[:many] if name not in apart]
    if not ran and apart:
        name, rows = next(iter(apart.items()))
        raise UserError(
            f"{name} sees a batch of {rows} for {len(images)} images, so it cannot tell their views apart: let forward "
            "pass on the batch as it comes, without pairs or crops beside it, and not image by image"
        )
    if not ran:
        raise UserError("there is no convolution (nn.Conv2d) that sees the images in evaluation mode")
    answer = parts_of(output)
    if not answer:
        raise UserError(f"the network returns no tensor, but a {type(output).__name__}")
    seen = [set(found.trace) for part in answer.values() if (found := record_of(part)) is not None]
    shared = frozenset(set.intersection(*seen)) if seen else frozenset()
    plain = {name: part.as_subclass(Tensor) for name, part in answer.items()}
    with evaluating(network):
        again = parts_of(network(pixels.clone()))
    if again.keys() != plain.keys() or not all(_alike(again[name], part) for name, part in plain.items()):
        raise UserError(
            "the network answers otherwise when it is asked again: by chance, or by what it was asked before"
        )
    reached, repeated = _reached(network, {name: convs[name] for name in ran}, record, pixels)
    return Run(ran, images, plain, shared, maps, before, inside, multiplications(), reached, repeated)


def _reached(
    network: nn.Module, convs: Mapping[str, Any], record: Record, pixels: Tensor
) -> tuple[frozenset[str], list[str]]:
    """The convolutions that a gradient of the answer reaches, and those that run again on its way; see `Run`.

    Their outputs are multiplied by a number that asks for a gradient: 1.

    Args:
        network: The copy.
        convs: Its convolutions by name.
        record: That of the first run.
        pixels: The images, standardised.
    """
    ones = {name: pixels.new_ones((), requires_grad=True) for name in convs}
    repeated: list[str] = []

    def note(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: object) -> Tensor | None:
            if torch._C._current_graph_task_id() != -1 and record_of(input_of(args, kwargs)) is None:
                repeated.append(name)
            return out * ones[name] if isinstance(out, Tensor) else None

        return hook

    hooks = [conv.register_forward_hook(note(name), with_kwargs=True) for name, conv in convs.items()]
    try:
        with evaluating(network), torch.enable_grad():
            answer = parts_of(network(attach(pixels.clone(), record))).values()
            sums = [part.abs().sum().float() for part in answer if part.requires_grad]
            if not sums:  # a network may compute gradients in training only
                return frozenset(convs), repeated
            total = torch.stack(sums).sum()
            with torch._C.DisableTorchFunctionSubclass():
                total = total.as_subclass(Tensor)  # what is computed again in `backward` is to tell views apart
            total.backward()
        found = frozenset(name for name, one in ones.items() if one.grad is not None)
    except Exception:  # whatever a network raises that cannot be trained like this
        found = frozenset(convs)
    finally:
        for hook in hooks:
            hook.remove()
        for parameter in network.parameters():
            parameter.grad = None
    return found, repeated


def _alike(one: Tensor, two: Tensor) -> bool:
    """Whether two answers to the same question are one, up to the rounding of parallel sums."""
    if one.shape != two.shape:
        return False
    one, two = one.as_subclass(Tensor), two
    if not one.is_complex():
        one, two = one.float(), two.float()
    size = float(two.abs().nan_to_num().amax()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=0.0, atol=1e-3 * size, equal_nan=True)


def _depends(network: nn.Module, conv: nn.Module, pixels: Tensor) -> bool:
    """Whether what a convolution sees depends on the images: a positional encoding does not."""
    seen: list[Tensor] = []
    hook = conv.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args[0] if args else kwargs["input"]).clone()), with_kwargs=True
    )
    try:
        with evaluating(network):
            network(pixels.clone())
            many = len(seen)
            network(pixels.flip(0, -1) * 0.7)
    finally:
        hook.remove()
    return not all(torch.equal(one, two) for one, two in zip(seen[:many], seen[many:], strict=True))
