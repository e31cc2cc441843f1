"""regret: the best fixed level is chosen on validation, differences are taken on equal seeds, the table says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vpgcnn import Prediction
from vpgcnn.lab.data import Dataset, Split
from vpgcnn.lab.experiments import regret
from vpgcnn.lab.experiments.by_hand import SETTINGS
from vpgcnn.lab.report.chart import PointPanel
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.recipes import RECIPES, recipe
from vpgcnn.levels import Fixed, Variational
from vpgcnn.objective import Price


def row(arm: str, seed: int, validation: float, test: float, free: float = 0.5) -> dict[str, Any]:
    places = {"rotation": {"free": free, "bound": None, "moved": free}}
    scores = {"accuracy": test, "nll": 1 - test}
    found = {
        "arm": arm,
        "seed": seed,
        "validation": {"accuracy": validation, "nll": 1 - test},
        "test": scores,
        "places": places,
    }
    return found | {"theta": {"last": [[0.5, 0.1]]}, "seconds": 60.0}


def rows_of(task: str, *rows: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["arm"]: line for line in regret.regret_rows({f"regret-{task}": list(rows)})}


def test_the_best_fixed_level_is_chosen_on_validation_and_not_on_test() -> None:
    lines = rows_of(
        "mnist67-180",
        row("fixed-50", 0, 0.90, 0.80),
        row("fixed-100", 0, 0.85, 0.95, free=0.9),
        row("default", 0, 0.88, 0.82, free=0.7),
    )
    assert lines["fixed-50"]["best"]
    assert "fixed-100" not in lines
    assert lines["default"]["regret"][0] == pytest.approx(0.80 - 0.82)
    assert lines["default"]["nll_regret"][0] == pytest.approx(0.18 - 0.20)
    # At unseen places the highest of all fixed levels counts, whichever it is.
    assert lines["default"]["best_places"]["rotation free"] == pytest.approx(0.9)


def test_regret_is_paired_over_equal_seeds() -> None:
    fixed = [row("fixed-50", seed, 0.9, 0.5 + 0.1 * seed) for seed in (0, 1)]
    lines = rows_of("mnist67-180", *fixed, row("default", 1, 0.9, 0.58))
    assert lines["default"]["regret"] == [pytest.approx(0.02), 0.0]


def test_equal_validation_accuracies_are_ordered_by_nll() -> None:
    lines = rows_of("mnist67-180", row("fixed-25", 0, 1.0, 0.7), row("fixed-75", 0, 1.0, 0.8))
    assert lines["fixed-75"]["best"]  # the helper gives a higher test accuracy a lower NLL


def test_the_figure_has_a_point_for_each_level_and_joins_the_fixed_ones() -> None:
    rows = [row("default", seed, 0.9, 0.8 + 0.1 * seed, free=0.6) for seed in (0, 1)]
    rows += [row("fixed-100", 0, 0.9, 0.7, free=0.9), row("closed", 0, 0.9, 0.9, free=0.2)]
    rows[-1]["places"]["rotation"]["bound"] = 0.4
    (panel,) = regret.chart_regret({"regret-mnist67-180": rows}).panels
    assert isinstance(panel, PointPanel)
    default, fixed = panel.series
    assert default.places == [(pytest.approx(0.85), pytest.approx(0.6))]
    assert fixed.joined
    assert fixed.labels == ["closed", "open"]  # from the narrowest to the widest
    assert fixed.places == [(0.9, pytest.approx(0.3)), (0.7, 0.9)]  # free and bound images count alike
    assert panel.x.ends[0] <= 0.7 < 0.9 <= panel.x.ends[1]


def test_a_task_without_fixed_levels_is_left_out() -> None:
    assert rows_of("mnist67-180", row("default", 0, 0.9, 0.9)) == {}


def test_the_table_names_levels_and_signs() -> None:
    lines = regret.regret_rows({"regret-mnist67-180": [row("fixed-50", 0, 0.9, 0.8), row("default", 0, 0.9, 0.7)]})
    text = regret.table_regret(lines)
    assert "| mnist67-180 | fixed-50 (best fixed) | 80.00 ± 0.00 | – |" in text
    assert "| mnist67-180 | **default** | 70.00 ± 0.00 | 10.00 ± 0.00 | 0.300 ± 0.000 | 0.100 ± 0.000 |" in text


@pytest.mark.parametrize("task", regret.TASKS)
def test_arms_differ_in_their_level_only(task: str) -> None:
    entry = regret.EXPERIMENTS[task]
    default = entry.config("default", 0, "cpu")
    assert isinstance(default.model.level, Variational)
    assert default.model.level.explore is None
    assert default.objective == Price()
    by_hand = entry.config("by-hand", 0, "cpu")
    assert isinstance(by_hand.model.level, Variational)
    assert by_hand.model.level.explore == 0
    widths = set()
    for arm in entry.arms:
        config = entry.config(arm, 0, "cpu")
        for same in ("epochs", "batch_size", "optimiser", "data", "balance", "select"):
            if (arm, same) != ("t2-flip", "data"):  # mirrored images in training are what this arm is
                assert getattr(config, same) == getattr(default, same), (arm, same)
        if isinstance(config.model.level, Fixed):
            widths.add(config.model.level.theta)
            assert config.model.group == default.model.group
    counts = [axis.count for axis in default.model.group.axes]
    finite = all(axis.order for axis in default.model.group.axes)
    assert widths == {1 / max(counts), *(width for width in regret.WIDTHS if not finite or width > 1 / max(counts))}


def test_every_recipe_of_the_cpu_preset_has_the_one_default() -> None:
    """No recipe sets a price, a rate of levels, a first width or a share to explore."""
    assert set(SETTINGS) <= set(RECIPES)
    blank = TrainConfig()
    for name in RECIPES:
        config = recipe(name)
        level = config.model.level
        assert config.objective == blank.objective, name
        assert config.level_optimiser == blank.level_optimiser, name
        assert not isinstance(level, Variational) or level == Variational(condition=level.condition), name


def test_bound_images_are_measured_however_few_they_are() -> None:
    """Five of 1,500 images are bound, none of them among the 600 that are evenly chosen; only they are got right."""
    images, reach = torch.zeros(1500, 1, 8, 8, dtype=torch.uint8), torch.ones(1500)
    reach[1:10:2] = 0.5
    images[reach < 1] = 255
    split = Split(images, torch.zeros(1500, dtype=torch.long), reach)

    class Bright(nn.Module):
        """Sees class 0 where an image is bright."""

        def __init__(self) -> None:
            super().__init__()
            self.nothing = nn.Parameter(torch.zeros(()))

        def forward(self, pixels: Tensor) -> Prediction:
            light = pixels.mean(dim=(1, 2, 3))
            return Prediction(torch.stack([light, 0.5 - light], dim=1), {})

    data = Dataset("five bound images", ("0", "1"), split, split, split, ("made up",))
    entry = regret.EXPERIMENTS["mnist67-180"]
    row = entry.measure(Bright().eval(), None, data, Quiet())  # type: ignore[arg-type]
    assert row["places"]["rotation"] == {"free": 0.0, "bound": 1.0, "moved": 0.0}
