"""Everything that can be reproduced, by name, and how a plug-in adds an arm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vpgcnn.errors import UserError
from vpgcnn.lab.experiments import (
    adaaug,
    calibration,
    cifar,
    color,
    colormnist,
    convert,
    cost,
    digits,
    evidence,
    flower_figures,
    flowers,
    principle,
    ranges,
    regret,
    stability,
    turn_hue,
)
from vpgcnn.lab.experiments.base import Arm, Change, Claim, Count, Experiment, Reproduction, View, file_stem

__all__ = ["COUNTS", "EXPERIMENTS", "REPRODUCTIONS", "VIEWS", "claims", "listing", "register_arm", "reproduction"]

EXPERIMENTS: dict[str, Experiment] = {
    entry.name: entry
    for entry in (
        digits.EXPERIMENT,
        principle.EXPERIMENT,
        cifar.CIFAR10,
        cifar.CIFAR100,
        colormnist.EXPERIMENT,
        flowers.EXPERIMENT,
        convert.EXPERIMENT,
        stability.EXPERIMENT,
        ranges.EXPERIMENT,
        turn_hue.EXPERIMENT,
        *regret.EXPERIMENTS.values(),
    )
}
VIEWS: dict[str, View] = {
    entry.name: entry
    for entry in (
        regret.VIEW,
        color.VIEW,
        calibration.VIEW,
        adaaug.VIEW,
        flower_figures.CONFIDENCE,
        flower_figures.ERRORS,
    )
}
COUNTS: dict[str, Count] = {entry.name: entry for entry in (cost.COUNT, evidence.COUNT)}
REPRODUCTIONS: dict[str, Reproduction] = {**EXPERIMENTS, **VIEWS, **COUNTS}
"""All names that `vpgcnn reproduce` takes."""


def reproduction(name: str) -> Reproduction:
    """The table or figure of this name."""
    if name not in REPRODUCTIONS:
        raise UserError(f"unknown experiment {name!r}: choose from {', '.join(REPRODUCTIONS)}")
    return REPRODUCTIONS[name]


def register_arm(experiment: str, name: str, arm: Arm | Change) -> None:
    """Add an arm to an experiment, from a plug-in: `vpgcnn --use FILE.py reproduce EXPERIMENT --arms NAME`.

    Args:
        experiment: The name of the experiment, such as "fig-mnist67-180".
        name: The name of the arm in tables and on the command line.
        arm: An `Arm`, or a function from the settings of the experiment's recipe to other ones, described by the
            first line of its docstring.

    Raises:
        UserError: If there is no such experiment, or it has an arm of this name.
    """
    if experiment not in EXPERIMENTS:
        raise UserError(f"unknown experiment {experiment!r}: arms can be added to {', '.join(EXPERIMENTS)}")
    entry = EXPERIMENTS[experiment]
    if name in entry.arms:
        raise UserError(f"{experiment} already has an arm {name!r}: choose another name")
    if not name or any(letter in name for letter in "/\\| \t\n"):
        raise UserError(f"an arm's name becomes a folder and a cell of a table, got {name!r}: use letters and hyphens")
    EXPERIMENTS[experiment] = replace(entry, arms={**entry.arms, name: Arm.of(arm)})
    REPRODUCTIONS[experiment] = EXPERIMENTS[experiment]


def claims() -> Iterator[tuple[str, Claim]]:
    """Every claim, with the name of the table or figure whose rows decide it."""
    for name, entry in REPRODUCTIONS.items():
        for claim in () if isinstance(entry, View) else entry.claims:
            yield name, claim


def listing(name: str, preset: str) -> str:
    """What `vpgcnn reproduce --list` prints about a table or figure: its arms, one line each, and its file."""
    entry = reproduction(name)
    lines = [f"{name}: {entry.about}"]
    if isinstance(entry, Experiment):
        usual, word = entry.arms_of(preset), "draws" if entry.draws else "seeds"
        for arm in entry.arms:
            seeds = ", ".join(map(str, entry.seeds_of(arm)))
            when = f"{word} {seeds}" if arm in usual else f"{word} {seeds}, only with --arms"
            lines.append(f"  {arm:<18} {entry.arm(arm).about} ({when})")
    elif isinstance(entry, View):
        for source, arms in entry.sources.items():
            there = [arm for arm in arms if arm in EXPERIMENTS[source].arms_of(preset)]
            lines.append(f"  from {source}: {', '.join(there)}")
    else:
        lines.append("  trains nothing")
    return "\n".join([*lines, f"  written to results/{file_stem(name, preset)}.json"])
