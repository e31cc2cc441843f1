"""Which of several algorithms computes a convolution: by a fixed rule, or the one that was fastest when it was tried.

Algorithms differ in rounding, so a choice by the clock would make the same command give other bits. The rule therefore
decides unless somebody asks for measurements, and always where a program has to be the same every time: with torch's
deterministic algorithms, and while a program is compiled, exported, traced or transformed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vpgcnn._ops.active import can_read

__all__ = ["VARIABLE", "Paths", "choose", "fixed_paths", "is_measuring", "key_of", "measured_paths"]

VARIABLE = "VPGCNN_PATHS"
"""Environment variable: `fixed` for the rule (the default), `measure`, or a JSON file to keep what is found."""
FORMAT = "vpgcnn paths 1"
WORTH = 0.95
"""Another algorithm than the rule's is taken if it needs at most this share of its time: less may be noise."""
ROUNDS, ENOUGH = 7, 0.3
"""How often each algorithm is tried, at most; fewer times once that has taken so many seconds."""

Program = Callable[..., Tensor]
Times = dict[str, dict[str, float]]


class Paths:
    """What was measured: the time of each algorithm by kind of convolution.

    Args:
        file: A JSON file to begin with and to write to after each measurement; None: only this process remembers.
    """

    def __init__(self, file: Path | str | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.found: Times = {}
        if self.file is not None:
            self.found, wrong = _read(self.file)
            self._give_up(wrong)

    def choose(
        self, key: str, rule: str, tensors: Sequence[Tensor], programs: Mapping[str, Program], leaves: Sequence[Tensor]
    ) -> str:
        """The name of the fastest program; all are tried the first time that a key is seen."""
        times = self.found.get(key)
        if times is None or set(times) != set(programs):
            times = self.found[key] = _times(tensors, programs, leaves)
            if self.file is not None:
                others, wrong = _read(self.file)  # another process may have written meanwhile
                self._give_up(wrong or _write(self.file, {**others, **self.found}))
        fastest = min(times, key=times.__getitem__)
        return fastest if times[fastest] <= WORTH * times[rule] else rule

    def _give_up(self, wrong: str | None) -> None:
        """Neither read nor write the file any more: being faster is not worth an error."""
        if wrong is not None:
            warnings.warn(f"{self.file} {wrong}: it is left alone, and this process measures by itself", stacklevel=3)
            self.file = None


_paths: ContextVar[Paths | None] = ContextVar("paths", default=None)
_fixed: ContextVar[bool] = ContextVar("fixed", default=False)
_by_variable: dict[str, Paths | None] = {}


@contextmanager
def measured_paths(file: Path | str | None = None) -> Iterator[Paths]:
    """Inside this block, try the algorithms of each convolution once and take the fastest from then on.

    Answers and gradients are the same up to rounding, but not bit by bit: which algorithm wins depends on the machine
    and on what else it does. Training that must give the same bits again reads a file that is complete.

    Args:
        file: A JSON file in which to keep what was measured, also from earlier programs on this machine.
    """
    paths = Paths(file)
    token, other = _paths.set(paths), _fixed.set(False)
    try:
        yield paths
    finally:
        _paths.reset(token)
        _fixed.reset(other)


@contextmanager
def fixed_paths() -> Iterator[None]:
    """Inside this block, choose by the rule, whatever the environment says: the same bits every time."""
    token = _fixed.set(True)
    try:
        yield
    finally:
        _fixed.reset(token)


def is_measuring(values: Tensor) -> bool:
    """Whether the algorithm for these values is to be chosen by measurements."""
    if torch.compiler.is_compiling() or _now() is None or torch.are_deterministic_algorithms_enabled():
        return False
    return can_read(values) and values.device.type == "cpu" and values.numel() > 0


def _now() -> Paths | None:
    """Where measurements are kept; None: the rule decides."""
    if _fixed.get():
        return None
    paths = _paths.get()
    if paths is not None:
        return paths
    setting = os.environ.get(VARIABLE, "fixed")
    if setting in ("", "fixed"):
        return None
    if setting not in _by_variable:
        if setting != "measure" and not setting.endswith(".json"):
            warnings.warn(
                f"{VARIABLE} must be fixed, measure or a file that ends in .json, got {setting!r}", stacklevel=3
            )
            _by_variable[setting] = None
        else:
            _by_variable[setting] = Paths(None if setting == "measure" else setting)
    return _by_variable[setting]


def choose(
    key: str, rule: str, tensors: Sequence[Tensor], programs: Mapping[str, Program], leaves: Iterable[Tensor] = ()
) -> str:
    """The name of the program to take, from measurements.

    Args:
        key: What the time depends on, from `key_of`.
        rule: The program that the rule takes.
        tensors: What the programs are given.
        programs: What to try: each from the tensors to the output.
        leaves: Tensors that the programs use besides, and that need gradients as well.
    """
    paths = _now()
    return rule if paths is None else paths.choose(key, rule, tensors, programs, tuple(leaves))


def key_of(what: str, values: Tensor, *sizes: object) -> str:
    """All that the time of a convolution depends on, as text.

    Args:
        what: The choice to be made.
        values: The input, whose shape, strides, precision and device count.
        sizes: Whatever else counts.
    """
    strides = values.stride()
    order = sorted(range(values.dim()), key=lambda axis: -strides[axis])
    where = f"{values.device.type}×{torch.get_num_threads()}"
    mode = "gradients" if torch.is_grad_enabled() else "answers"
    half = torch.get_autocast_dtype(values.device.type) if torch.is_autocast_enabled(values.device.type) else None
    parts = what, tuple(values.shape), tuple(order), values.dtype, half, where, mode, *sizes
    return " ".join(str(part).replace("torch.", "").replace(" ", "") for part in parts)


def _times(tensors: Sequence[Tensor], programs: Mapping[str, Program], leaves: Sequence[Tensor]) -> dict[str, float]:
    """The shortest time of each program, in seconds, all tried in turn."""
    # Detached: the gradients that are tried must not pass on to the layers before.
    own = [each.detach().requires_grad_(each.requires_grad and torch.is_grad_enabled()) for each in tensors]
    wanted = [each for each in (*own, *leaves) if each.requires_grad]
    best: dict[str, float] = {}
    start = time.perf_counter()
    for attempt in range(1 + ROUNDS):
        for name, program in programs.items():
            before = time.perf_counter()
            out = program(*own)
            if wanted and out.requires_grad:
                torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)
            spent = time.perf_counter() - before
            if attempt:  # the first one also makes constants and fills caches
                best[name] = min(best.get(name, spent), spent)
        if best and time.perf_counter() - start > ENOUGH:
            break
    return {name: float(f"{spent:.3g}") for name, spent in best.items()}


# ---------------------------------------------------------------- the file


def _machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"format": FORMAT, "torch": torch.__version__, "processor": names[0] if names else platform.machine()}


def _read(file: Path) -> tuple[Times, str | None]:
    """The measurements in a file, and why it must not be written to, if so."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError):
        return {}, "cannot be read"
    if not isinstance(content, dict) or content.get("format") != FORMAT or not _is_sound(content.get("seconds")):
        return {}, "does not hold measured paths"
    here = _machine()
    other = [f"{name} {content.get(name)}" for name in here if content.get(name) != here[name]]
    return ({}, f"was measured with {' and '.join(other)}") if other else (dict(content["seconds"]), None)


def _is_sound(found: object) -> bool:
    def positive(number: object) -> bool:
        return isinstance(number, float | int) and not isinstance(number, bool) and 0 < number < math.inf

    if not isinstance(found, dict):
        return False
    return all(isinstance(times, dict) and times and all(map(positive, times.values())) for times in found.values())


def _write(file: Path, found: Times) -> str | None:
    """Write measurements, all of the file or nothing; why that failed, if so."""
    text = json.dumps({**_machine(), "seconds": dict(sorted(found.items()))}, indent=1, ensure_ascii=False)
    beside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(f"{text}\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        return f"cannot be written ({error.strerror or error})"
    return None
