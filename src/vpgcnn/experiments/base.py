"""What can be reproduced: experiments that train, views of what experiments found, and counts that need no training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from vpgcnn.data import Dataset
from vpgcnn.errors import UserError
from vpgcnn.report.chart import Chart
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.progress import Quiet
from vpgcnn.training.recipes import recipe

__all__ = ["Arm", "Count", "Experiment", "Reproduction", "Row", "View", "accuracy", "gap", "markdown"]

Arm = Callable[[TrainConfig], TrainConfig]
Row = dict[str, Any]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    body = [f"| {' | '.join(map(str, line))} |" for line in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *body])


@dataclass(frozen=True)
class Experiment:
    """A comparison of arms that differ in nothing but what their name says.

    measure: what is added to each row beside accuracy. table: the rows as Markdown. result: the file's name
    for each preset. draws: whether a seed is also the number of a draw of the data. fewer: other seeds for some arms.
    optional: arms that the cpu preset runs only when they are named. watch: how many images' levels are followed
    through training, and history: what is added to a row from the lines of metrics.jsonl. keys: what a row must have;
    one without, of an earlier version, is measured again.
    notes: what a reader of the table has to know, for each preset. published: the paper's test accuracy of an arm.
    """

    about: str
    recipe: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    measure: Callable[[nn.Module, Card, Dataset, Quiet], Row]
    table: Callable[[list[Row]], str]
    result: dict[str, str]
    draws: bool = False
    fewer: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    watch: int = 0
    history: Callable[[list[Row]], Row] | None = None
    chart: Callable[[list[Row]], Chart] | None = None
    keys: tuple[str, ...] = ()
    notes: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)

    def arms_of(self, preset: str) -> list[str]:
        """The arms that a preset runs: those that are the same run as an earlier one are left out."""
        seen: list[TrainConfig] = []
        kept = []
        for arm in self.arms:
            config = self.config(arm, 0, preset)
            if config not in seen and not (preset == "cpu" and arm in self.optional):
                kept.append(arm)
            seen.append(config)
        return kept

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """The seeds that an arm is run with."""
        return self.fewer.get(arm, self.seeds)

    def config(self, arm: str, seed: int, preset: str) -> TrainConfig:
        """The run of one arm and seed. It may start with that of another arm, which is named by its folder's name."""
        if arm not in self.arms:
            raise UserError(f"unknown arm {arm!r}: choose from {', '.join(self.arms)}")
        config = replace(self.arms[arm](recipe(self.recipe, preset)), seed=seed, watch=self.watch)
        if config.start is not None:
            config = replace(config, start=Path(f"{config.start}-{seed}"))
        return replace(config, data=replace(config.data, seed=seed)) if self.draws else config


@dataclass(frozen=True)
class View:
    """A table or figure of what experiments found. Only what they lack is trained.

    sources: which arms of which experiments. rows: from the rows of each to those of the view.
    """

    about: str
    sources: dict[str, tuple[str, ...]]
    rows: Callable[[dict[str, list[Row]]], list[Row]]
    table: Callable[[list[Row]], str]
    chart: Callable[[list[Row]], Chart] | None = None
    notes: str = ""


@dataclass(frozen=True)
class Count:
    """Numbers that need no training. rows: for a preset."""

    about: str
    rows: Callable[[str, Quiet], list[Row]]
    table: Callable[[list[Row]], str]
    chart: Callable[[list[Row]], Chart] | None = None
    notes: str = ""


Reproduction = Experiment | View | Count


def accuracy(row: Row) -> float:
    """In per cent."""
    return 100 * float(row["test"]["accuracy"])


def gap(rows: Iterable[Row], first: str, second: str, measure: Callable[[Row], float] = accuracy) -> list[float]:
    """first − second, on the seeds that both have."""
    found = {(row["arm"], row["seed"]): measure(row) for row in rows if row["arm"] in (first, second)}
    return [found[first, seed] - found[second, seed] for arm, seed in found if arm == first and (second, seed) in found]
