"""Messages and progress bars for the person who waits."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any, Self

__all__ = ["Progress", "Quiet"]


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
