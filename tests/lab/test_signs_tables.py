"""table-gtsrb-turn and table-gtsrb-mirror: twins, columns and claims, from rows of the runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vpgcnn.lab.data.signs import SIGNS
from vpgcnn.lab.experiments import regret, signs
from vpgcnn.lab.experiments.registry import VIEWS

NAMES = [sign.name for sign in SIGNS]


def answers(*names: str) -> torch.Tensor:
    return torch.eye(len(SIGNS))[[NAMES.index(name) for name in names]]


def labels(*names: str) -> torch.Tensor:
    return torch.tensor([NAMES.index(name) for name in names])


def test_only_bound_signs_count_and_only_twins_are_confusions() -> None:
    truth = labels("keep right", "keep right", "keep left", "ahead only", "stop")
    given = answers("keep left", "stop", "keep left", "keep right", "keep left")
    # Of four bound signs, a keep right and an ahead only are taken for a twin; a stop sign has none.
    assert signs.confused(given, truth, "gtsrb-turn") == pytest.approx(2 / 4)
    # Mirrored, ahead only is free: of three, one.
    assert signs.confused(given, truth, "gtsrb-mirror") == pytest.approx(1 / 3)
    assert signs.confused(given, truth, "mnist67-180") is None
    assert signs.confused(answers("stop"), labels("stop"), "gtsrb-turn") is None


def row(arm: str, seed: int, test: float, free: float, bound: float | None, **more: Any) -> dict[str, Any]:
    places = {"rotation": {"free": free, "bound": bound, "moved": free}}
    found = {"arm": arm, "seed": seed, "test": {"accuracy": test}, "places": places, "parameters": 1000}
    return found | {"seconds": 120.0, "twins": 0.02} | more


def test_lines_have_the_mean_of_all_seeds_and_the_worst_of_three() -> None:
    rows = [row("default", 0, 0.96, 0.90, 0.80, truth=[{"auroc": 0.9}]), row("t2", 0, 0.97, 0.30, None)]
    rows.append(row("default", 1, 0.94, 0.92, 0.84, truth=[{"auroc": 0.8}]))
    default, plain = signs.sign_rows({"regret-gtsrb-turn": rows})
    assert default["test"] == [96.0, 94.0]
    assert default["worst"] == pytest.approx(82.0)
    assert default["auroc"] == pytest.approx(0.85)
    assert plain["bound"] is None
    assert plain["worst"] == pytest.approx(30.0)
    table = signs.table_signs([default, plain])
    assert (
        "| **default** | 95.0 ± 1.4 | 91.0 ± 1.4 | 82.0 ± 2.8 | 2.0 ± 0.0 | 82.0 | 0.850 | 0, 1 | 1,000 | 2.0 |"
        in table
    )
    assert "| t2 | 97.0 | 30.0 | – | 2.0 | 30.0 | – | 0 |" in table


def test_a_claim_allows_so_many_points_and_no_more() -> None:
    near = [row("default", seed, 0.95, 0.9, 0.8) for seed in range(3)]
    near += [row("t2", seed, 0.953 + 1e-4 * seed, 0.5, 0.8) for seed in range(3)]
    assert signs.within(0.5, "test")(near).verdict == "yes"
    assert signs.within(0.1, "test")(near).verdict == "no"
    assert signs.within(2.0, "free")(near).verdict == "yes"
    worst = [*near, *(row("full", seed, 0.95, 0.99 + 1e-4 * seed, 0.8) for seed in range(3))]
    assert signs.within(2.0, "free")(worst).verdict == "no"  # one arm is enough
    assert signs.within(2.0, "free")([]).verdict == "not measured"


@pytest.mark.parametrize("task", signs.ARMS)
def test_the_view_asks_for_arms_that_its_experiment_has(task: str) -> None:
    view, entry = VIEWS[f"table-{task}"], regret.EXPERIMENTS[task]
    ((source, arms),) = view.sources.items()
    assert source == entry.name
    assert set(arms) <= set(entry.arms)
    assert set(signs.ARMS[task]) <= set(arms)
    # The view of regrets is about levels: it does not train these.
    assert not set(signs.ARMS[task]) & set(regret.VIEW.sources[entry.name])
