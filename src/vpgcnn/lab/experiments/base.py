"""What can be reproduced: experiments that train, views of their results, and counts that need no training.

Every table or figure has one file in this folder. It holds the arms with their seeds, the numbers that the
paper printed, the notes, the pairs to compare and the claims; `registry` collects the files.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from torch import nn

from vpgcnn.errors import UserError
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.report.chart import Chart
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.paper import with_paper_settings
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.recipes import recipe

__all__ = [
    "Arm",
    "Change",
    "Claim",
    "Count",
    "Experiment",
    "Finding",
    "Found",
    "Measure",
    "Reproduction",
    "Row",
    "Trial",
    "View",
    "accuracy",
    "file_stem",
    "gap",
    "markdown",
    "shortened",
    "spread",
]

Row = dict[str, Any]
"""The results of one arm and seed, or one line of a table."""
Change = Callable[[TrainConfig], TrainConfig]
"""What an arm does to the settings of a recipe."""
Measure = Callable[[nn.Module, Card, Dataset, Quiet], Row]
"""Measurements of a trained network, beyond its test accuracy."""


@dataclass(frozen=True)
class Arm:
    """One of the networks that an experiment compares.

    Args:
        about: One line for the legend under the table and for `vpgcnn reproduce --list`.
        change: Turns the settings of the experiment's recipe into those of the arm.
        seeds: Its seeds, if they differ from the experiment's.
        optional: Whether the cpu preset runs it only if it is named with `--arms`.
        published: The test accuracy that the paper prints for it, in per cent.
        keep_curves: Whether the results file keeps the arm's curves (see `Experiment.curves`): a figure shows them.
    """

    about: str
    change: Change
    seeds: tuple[int, ...] | None = None
    optional: bool = False
    published: str = ""
    keep_curves: bool = False

    @classmethod
    def of(cls, value: Arm | Change) -> Arm:
        """An arm from a plain function, described by the first line of its docstring."""
        if isinstance(value, Arm):
            return value
        if not callable(value):
            raise TypeError(f"an arm is an Arm or a function from TrainConfig to TrainConfig, got {value!r}")
        lines = (value.__doc__ or "").strip().splitlines()
        return cls(lines[0].rstrip(".") if lines else "", value)

    def __call__(self, config: TrainConfig) -> TrainConfig:
        """The settings of the arm, from those of the recipe."""
        return self.change(config)


@dataclass(frozen=True)
class Finding:
    """What results say about a claim.

    Args:
        verdict: "yes", "rather yes", "open" (within the noise), "rather no", "no", or "not measured".
        evidence: The numbers behind it.
    """

    verdict: str
    evidence: str


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, or of ours, that results can support or contradict.

    Args:
        text: The statement. Thresholds in brackets are ours.
        judge: Computes the verdict from the rows of the experiment.
    """

    text: str
    judge: Callable[[Sequence[Row]], Finding]


@dataclass(frozen=True)
class Experiment:
    """A comparison of arms that differ only in what their descriptions say.

    Args:
        name: What `vpgcnn reproduce` calls it; results are written to files of this name.
        about: One line.
        recipe: The recipe that all arms start from.
        arms: The networks, in the order of the table; a plain function becomes an arm described by its docstring.
        seeds: The seeds of every arm that does not have its own.
        measure: Adds measurements to each row.
        table: The rows as a Markdown table.
        chart: The figure, if there is one.
        notes: What a reader needs to know to read the table.
        tried: How the settings of the cpu preset were found, and what else was tried.
        pairs: Arms whose difference on equal seeds is printed under the table.
        claims: What the paper, or we, say about these numbers.
        draws: Whether a seed also selects a draw of the dataset.
        watch: How many validation images to record the levels of after each epoch.
        history: Computes more of a row from the lines of metrics.jsonl.
        keys: Measurements that every row must have; a row without them is measured again.
        curves: Measurements that are too large to keep for every arm: only those with `keep_curves` keep them.
        in_paper: Whether the paper preset takes each arm's hyperparameters from the paper's tables.
        base: Changes the recipe of the cpu preset before the arms do; see `by_hand`.
    """

    name: str
    about: str
    recipe: str
    arms: Mapping[str, Arm | Change]
    seeds: tuple[int, ...]
    measure: Measure
    table: Callable[[list[Row]], str]
    chart: Callable[[list[Row]], Chart] | None = None
    notes: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    claims: tuple[Claim, ...] = ()
    draws: bool = False
    watch: int = 0
    history: Callable[[list[Row]], Row] | None = None
    keys: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    in_paper: bool = True
    base: Change | None = None

    def arm(self, name: str) -> Arm:
        """The arm of this name."""
        if name not in self.arms:
            close = difflib.get_close_matches(name, list(self.arms), 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(self.arms)}"
            raise UserError(f"unknown arm {name!r}: {hint}")
        return Arm.of(self.arms[name])

    def arms_of(self, preset: str) -> list[str]:
        """The arms that a preset runs by default. One whose settings equal those of an earlier arm is left out."""
        seen: list[TrainConfig] = []
        kept = []
        for arm in self.arms:
            config = self.config(arm, 0, preset)
            if config not in seen and not (preset == "cpu" and self.arm(arm).optional):
                kept.append(arm)
            seen.append(config)
        return kept

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """The seeds of an arm."""
        seeds = self.arm(arm).seeds
        return self.seeds if seeds is None else seeds

    def config(self, arm: str, seed: int, preset: str) -> TrainConfig:
        """The settings of one run.

        Args:
            arm: The name of the arm.
            seed: The seed; of the dataset too, if `draws`.
            preset: "cpu" or "paper".

        Returns:
            The settings. If the run starts from another arm's weights, `start_from` is the name of that run's folder.
        """
        config = recipe(self.recipe, preset)
        if self.base is not None and preset == "cpu":
            config = self.base(config)
        config = replace(self.arm(arm)(config), seed=seed, watch=self.watch)
        if preset == "paper" and self.in_paper:
            config = with_paper_settings(config)
        if config.start_from is not None:
            config = replace(config, start_from=Path(f"{config.start_from}-{seed}"))
        return replace(config, data=replace(config.data, seed=seed)) if self.draws else config


Found = Mapping[str, list[Row]]
"""The rows of each experiment, by its name."""


def shortened(experiment: Experiment, epochs: int) -> Experiment:
    """The same experiment with fewer epochs, as a trial. Its results belong into a folder of their own."""

    def short(name: str) -> Arm:
        arm = experiment.arm(name)
        return replace(arm, change=lambda config: replace(arm(config), epochs=epochs))

    about = f"{experiment.about} (a trial of {epochs} epoch{'' if epochs == 1 else 's'}, not a result)"
    return replace(experiment, about=about, arms={name: short(name) for name in experiment.arms})


@dataclass(frozen=True)
class View:
    """A table or figure of results that experiments have already produced; it trains only what they lack.

    Args:
        name: What `vpgcnn reproduce` calls it.
        about: One line.
        sources: The arms that it needs of each experiment.
        rows: The lines of its table, from the rows of each experiment.
        table: The lines as Markdown.
        chart: The figure, from the rows of each experiment.
        notes: What a reader needs to know to read the table.
    """

    name: str
    about: str
    sources: Mapping[str, tuple[str, ...]]
    rows: Callable[[Found], list[Row]]
    table: Callable[[list[Row]], str]
    chart: Callable[[Found], Chart] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Count:
    """Numbers that need no training.

    Args:
        name: What `vpgcnn reproduce` calls it.
        about: One line.
        rows: The lines of its table, for a preset.
        table: The lines as Markdown.
        notes: What a reader needs to know to read the table.
        claims: What the paper says about these numbers.
    """

    name: str
    about: str
    rows: Callable[[str, Quiet], list[Row]]
    table: Callable[[list[Row]], str]
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = field(default=())


@dataclass(frozen=True)
class Trial:
    """A comparison of networks that are trained by a function of their own, not by a recipe.

    Args:
        name: What `vpgcnn reproduce` calls it.
        about: One line.
        arms: The networks, each with its description.
        seeds: The seeds of every arm.
        train: Trains and measures an arm with a seed, on the data of a folder. The runner adds the arm, the seed, the
            commit and the seconds.
        table: The rows as Markdown.
        data: The dataset that it loads.
        data_words: What the arms are trained on.
        budget: How long.
        notes: What a reader needs to know to read the table.
        claims: What we say about these numbers.
    """

    name: str
    about: str
    arms: Mapping[str, str]
    seeds: tuple[int, ...]
    train: Callable[[str, int, Path | None, Quiet], Row]
    table: Callable[[list[Row]], str]
    data: str
    data_words: str
    budget: str
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


Reproduction = Experiment | View | Count | Trial


def file_stem(name: str, preset: str) -> str:
    """The name of a result's files, without suffix."""
    return name if preset == "cpu" else f"{name}-{preset}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    body = [f"| {' | '.join(map(str, line))} |" for line in rows]
    return "\n".join([f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *body])


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation of shares, in per cent."""
    return f"{100 * mean(values):.2f}" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")


def accuracy(row: Row) -> float:
    """Test accuracy in per cent."""
    return 100 * float(row["test"]["accuracy"])


def gap(rows: Iterable[Row], first: str, second: str, measure: Callable[[Row], float] = accuracy) -> list[float]:
    """first − second on each seed that both arms have."""
    found = {(row["arm"], row["seed"]): measure(row) for row in rows if row["arm"] in (first, second)}
    return [found[first, seed] - found[second, seed] for arm, seed in found if arm == first and (second, seed) in found]
