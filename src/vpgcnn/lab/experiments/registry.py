"""Everything that can be reproduced, by name, and how a plug-in adds an arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import read_json
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
    pretrained,
    principle,
    ranges,
    regret,
    relaxed,
    signs,
    stability,
    turn_hue,
)
from vpgcnn.lab.experiments.base import Arm, Change, Claim, Count, Experiment, Reproduction, Trial, View, file_stem
from vpgcnn.lab.training.recipes import recipe

__all__ = [
    "COUNTS",
    "EXPERIMENTS",
    "REPRODUCTIONS",
    "TRIALS",
    "VIEWS",
    "claims",
    "listing",
    "register_arm",
    "reproduction",
]

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
        *relaxed.EXPERIMENTS.values(),
    )
}
VIEWS: dict[str, View] = {
    entry.name: entry
    for entry in (
        regret.VIEW,
        signs.TURN,
        signs.MIRROR,
        relaxed.VIEW,
        color.VIEW,
        calibration.VIEW,
        adaaug.VIEW,
        flower_figures.CONFIDENCE,
        flower_figures.ERRORS,
    )
}
COUNTS: dict[str, Count] = {entry.name: entry for entry in (cost.COUNT, evidence.COUNT)}
TRIALS: dict[str, Trial] = {entry.name: entry for entry in (pretrained.TRIAL,)}
REPRODUCTIONS: dict[str, Reproduction] = {**EXPERIMENTS, **VIEWS, **COUNTS, **TRIALS}
"""All names that `vpgcnn reproduce` takes."""


IN_PAPER = {
    "fig-principle": "Figure 3",
    "fig-mnist67-180": "Figure 4",
    "table-cifar10": "Table 1",
    "table-color": "Table 2",
    "table-colormnist": "Table 2 (ColorMNIST)",
    "table-flowers": "Table 2 (Flowers102)",
    "fig-flowers-confidence": "Figures 5 and 7",
    "table-calibration": "Table 3",
    "fig-equivariance-error": "Figure 8",
    "table-cost": "Table 5",
    "table-cifar100": "Table 6",
    "table-adaaug": "Table 7",
    "fig-stability": "Figure 9",
}
"""What the paper calls each table and figure that it has."""


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


def data_of(entry: Reproduction, preset: str) -> list[str]:
    """The datasets that a table or figure needs."""
    if isinstance(entry, Count):
        return []
    if isinstance(entry, Trial):
        return [entry.data]
    sources = [entry] if isinstance(entry, Experiment) else [EXPERIMENTS[name] for name in entry.sources]
    return sorted({recipe(source.recipe, preset).data.name for source in sources})


def listing(name: str, preset: str, results: Path = Path("results"), *, short: bool = False) -> str:
    """What `vpgcnn reproduce --list` prints about a table or figure.

    Args:
        name: The table or figure.
        preset: "cpu" or "paper".
        results: The folder of the results, whose rows say how long their runs took.
        short: Whether to leave out its arms and its file.

    Returns:
        Where it is in the paper, the data it needs and the minutes it took; its arms, one line each; and its file.
    """
    entry = reproduction(name)
    place = f"{IN_PAPER[name]} of the paper" if name in IN_PAPER else "not in the paper"
    facts = [place, *([f"data: {', '.join(found)}"] if (found := data_of(entry, preset)) else [])]
    taken = _minutes(results / f"{file_stem(name, preset)}.json")
    if isinstance(entry, View) and not taken:  # its networks are those of the experiments
        parts = [_minutes(results / f"{file_stem(each, preset)}.json", arms) for each, arms in entry.sources.items()]
        taken = "; ".join(part for part in parts if part)
    facts += [taken] if taken else []
    lines = [f"{name}: {entry.about.removesuffix(' (not in the paper)')}", f"  {'; '.join(facts)}"]
    if short:
        return "\n".join(lines)
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
    elif isinstance(entry, Trial):
        seeds = ", ".join(map(str, entry.seeds))
        lines += [f"  {arm:<18} {about} (seeds {seeds})" for arm, about in entry.arms.items()]
    else:
        lines.append("  trains nothing")
    return "\n".join([*lines, f"  written to results/{file_stem(name, preset)}.json"])


def _minutes(path: Path, arms: Sequence[str] | None = None) -> str:
    """How long the runs of a result took, as far as it says so; of these arms only, if they are given."""
    try:
        data = read_json(path) if path.is_file() else {}
    except UserError:
        return ""
    rows = data.get("rows") if isinstance(data, dict) else None
    known = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    times = [row.get("seconds") for row in known if arms is None or row.get("arm") in arms]
    seconds = [float(each) for each in times if isinstance(each, int | float)]
    if not seconds:
        return ""
    minutes = round(sum(seconds) / 60)
    return f"{minutes:,} minutes for {len(seconds)} run{'s' if len(seconds) > 1 else ''}, by {path}"
