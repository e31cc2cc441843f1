"""vpgcnn reproduce."""

from __future__ import annotations

from pathlib import Path

from vpgcnn.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn reproduce --list
  vpgcnn reproduce fig-mnist67-180
  vpgcnn reproduce table-cifar10 --arms full variational --seeds 0 1

Every run resumes where it was; what has been measured is not run again.
"""


def main(arguments: list[str]) -> int:
    """Run an experiment with all its arms and seeds."""
    command = parser("reproduce", "Run an experiment: train every arm with every seed, measure, write the result.")
    command.epilog = EXAMPLES
    command.add_argument("name", nargs="?", help="an experiment")
    command.add_argument("--list", action="store_true", help="what there is")
    command.add_argument("--preset", choices=("cpu", "paper"), default="cpu")
    command.add_argument("--arms", nargs="+", help="only these arms")
    command.add_argument("--seeds", nargs="+", type=int, help="other seeds")
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are kept (default: runs)")
    command.add_argument("--results", type=Path, default=Path("results"), help="where results go (default: results)")
    command.add_argument("--threads", type=int, default=0, help="CPU threads")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.experiments.registry import EXPERIMENTS, experiment

    if options.list:
        for name, entry in EXPERIMENTS.items():
            every = ", ".join(map(str, entry.seeds))
            listed = ", ".join(entry.arms_of(options.preset))
            print(f"{name}: {entry.about}\n  arms: {listed}; {'draws' if entry.draws else 'seeds'}: {every}")  # noqa: T201
        return 0
    if options.name is None:
        raise UserError(f"which experiment? choose from {', '.join(EXPERIMENTS)}")
    chosen = experiment(options.name)
    from vpgcnn.experiments.runner import run
    from vpgcnn.training.loop import Interrupted
    from vpgcnn.training.progress import Progress

    arms = options.arms or chosen.arms_of(options.preset)
    for arm in arms:
        chosen.config(arm, 0, options.preset)
    try:
        target = run(
            chosen, options.name, preset=options.preset, arms=arms, seeds=options.seeds, runs=options.runs,
            results=options.results, settings={"data_dir": options.data_dir, "threads": options.threads},
            progress=Progress(),
        )  # fmt: skip
    except Interrupted as stop:
        print(f"{stop}; the same command goes on there")  # noqa: T201
        return 130
    print(target.with_suffix(".md").read_text(encoding="utf-8"))  # noqa: T201
    print(f"written to {target}")  # noqa: T201
    return 0
