"""Messages and progress bars for the person who waits."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, Self

import torch

__all__ = ["Progress", "Quiet", "in_bytes", "in_time", "peak_memory"]


def in_time(seconds: float) -> str:
    """A length of time in words: "45 s", "12 min", "3 h 20 min", "2 d 5 h"."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 36 else f"{hours // 24} d {hours % 24} h"


def in_bytes(count: int) -> str:
    """A size in words: "0.8 GB"; "640 MB" below half a gigabyte."""
    return f"{count / 1e9:.1f} GB" if count >= 5e8 else f"{count / 1e6:.0f} MB"


def peak_memory(device: torch.device) -> int | None:
    """The largest memory in use so far, in bytes: of the GPU, or of this process. None if it is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class Quiet(AbstractContextManager["Quiet"]):
    """Shows nothing: the default of library code."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def message(self, text: str) -> None:
        """Show a line that stays."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """Start a new bar.

        Args:
            title: Its title.
            total: Number of steps.
            done: Steps that are already done.
        """

    def advance(self, count: int, note: str = "") -> None:
        """Advance the bar.

        Args:
            count: Number of steps.
            note: A short text beside the bar.
        """


class Progress(Quiet):
    """Shows lines on standard output, and a bar on standard error if that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def message(self, text: str) -> None:
        if self._bar is not None and sys.stdout.isatty():
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)  # noqa: T201

    def begin(self, title: str, total: int, done: int = 0) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def advance(self, count: int, note: str = "") -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=count, note=note)
