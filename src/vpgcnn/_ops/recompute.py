"""Less memory in training: what a norm, an activation or a dropout made is computed again for the gradient.

A convolution keeps its input for its gradient. That input is cheap to make from the output of the convolution before,
which is kept as well: by the norm in between. Inside `recomputed`, operations note how their output is made from what
is kept; where autograd would keep such an output, it keeps the note instead. The gradients are the same bit by bit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpgcnn._ops.precision import autocast_as, autocast_now

__all__ = ["has_recipe", "noted", "recomputed"]


@dataclass(eq=False)
class _Recipe:
    """How to make a tensor again: a function and what it is applied to, as `_Book.kept` keeps it."""

    function: Callable[..., Tensor]
    inputs: tuple[Any, ...]
    book: _Book
    size: torch.Size
    stride: tuple[int, ...]
    autocast: torch.dtype | None
    device: torch.device

    def made(self) -> Tensor:
        """The tensor; the one that was made last is still there."""
        last = self.book.last
        if last is not None and last[0]() is self:
            return last[1]
        inputs = [each.tensor() if isinstance(each, _View) else each for each in self.inputs]
        with torch.no_grad(), autocast_as(self.autocast, self.device):
            out = self.function(*inputs)
        if out.stride() != self.stride or out.storage_offset():  # views of it are known by their strides
            out = out.new_empty_strided(self.size, self.stride).copy_(out)
        self.book.last = weakref.ref(self), out  # not the recipe itself: nothing may outlive the backward pass
        return out


@dataclass(eq=False)
class _View:
    """A view of a tensor to be made."""

    recipe: _Recipe
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        return self.recipe.made().as_strided(self.size, self.stride, self.offset)


@dataclass(eq=False)
class _Kept:
    """What autograd keeps: a tensor, until a recipe for it is found."""

    content: Tensor | _View


def _view(recipe: _Recipe, tensor: Tensor) -> _View:
    return _View(recipe, tensor.shape, tensor.stride(), int(tensor.storage_offset()))


class _Note(NamedTuple):
    """A recipe, with the tensor that it makes: it holds while that exists and nobody has written to it."""

    out: weakref.ref[Tensor]
    version: int
    recipe: _Recipe


class _Book:
    """The recipes of tensors that exist now and what autograd keeps of them, by the address of their memory."""

    def __init__(self) -> None:
        self.notes: dict[int, _Note] = {}
        self.kept: dict[int, list[weakref.ref[_Kept]]] = {}
        self.last: tuple[weakref.ref[_Recipe], Tensor] | None = None

    def note(self, out: Tensor, recipe: _Recipe) -> None:
        address = out.untyped_storage().data_ptr()

        def forget(dead: weakref.ref[Tensor]) -> None:
            if address in self.notes and self.notes[address].out is dead:
                del self.notes[address]

        self.notes[address] = _Note(weakref.ref(out, forget), out._version, recipe)
        # An operation that keeps its own output did so before there was a recipe.
        for reference in self.kept.pop(address, ()):
            kept = reference()
            if kept is not None and isinstance(kept.content, Tensor):
                kept.content = _view(recipe, kept.content)

    def view(self, tensor: Tensor) -> _View | None:
        """How to make the memory that a tensor looks at; None if that is not known."""
        found = self.notes.get(tensor.untyped_storage().data_ptr())
        alive = None if found is None else found.out()
        if found is None or alive is None or alive._version != found.version or tensor.dtype != alive.dtype:
            return None
        return _view(found.recipe, tensor)

    def pack(self, tensor: Tensor) -> Tensor | _Kept:
        if type(tensor) is not Tensor or not tensor.numel() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return tensor
        view = self.view(tensor)
        kept = _Kept(tensor if view is None else view)
        if view is None:
            address = tensor.untyped_storage().data_ptr()
            others = [each for each in self.kept.get(address, ()) if each() is not None]
            self.kept[address] = [*others, weakref.ref(kept)]
        return kept

    @staticmethod
    def unpack(kept: Tensor | _Kept) -> Tensor:
        content = kept.content if isinstance(kept, _Kept) else kept
        return content.tensor() if isinstance(content, _View) else content


_book: ContextVar[_Book | None] = ContextVar("book", default=None)


@contextmanager
def recomputed() -> Iterator[None]:
    """Keep less for the gradient inside this block: put the forward pass of a training step into it.

    What norms, activations, `ReluDropout` and weights of elements make is computed again in the backward pass, from the
    outputs of the convolutions. The gradients are the same, bit by bit, also with dropout; running statistics are
    updated once. It does nothing under `torch.compile`, which has its own way.
    """
    book = _Book()
    token = _book.set(book)
    try:
        with torch.autograd.graph.saved_tensors_hooks(book.pack, book.unpack):
            yield
    finally:
        _book.reset(token)


def _now() -> _Book | None:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    return _book.get()


def has_recipe(tensor: Tensor) -> bool:
    """Whether a tensor can be made again, so that it is not kept."""
    book = _now()
    return book is not None and type(tensor) is Tensor and book.view(tensor) is not None


def noted(out: Tensor, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Note that `function(*inputs)` makes this tensor again; returns the tensor.

    Args:
        out: A new tensor, or a view of all of one. Nothing is noted if it shares memory with an input.
        function: Without side effects: it updates no statistics and draws no random numbers.
        inputs: What it needs. Tensors that have a recipe themselves are not kept.
    """
    book = _now()
    if book is None or type(out) is not Tensor or not out.requires_grad:
        return out
    memory = out.untyped_storage()
    shared = any(isinstance(each, Tensor) and each.untyped_storage().data_ptr() == memory.data_ptr() for each in inputs)
    if shared or memory.nbytes() != out.numel() * out.element_size():
        return out
    kept = tuple((book.view(each) or each.detach()) if isinstance(each, Tensor) else each for each in inputs)
    recipe = _Recipe(function, kept, book, out.shape, out.stride(), autocast_now(out.device), out.device)
    book.note(out, recipe)
    return out
