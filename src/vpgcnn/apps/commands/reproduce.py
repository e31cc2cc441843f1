"""vpgcnn reproduce."""

from __future__ import annotations

import sys
from pathlib import Path

from vpgcnn.apps.commands.common import data_dir_option, parser, plural, unknown
from vpgcnn.errors import UserError
from vpgcnn.lab.malloc import keep_memory

EXAMPLES = """examples:
  vpgcnn reproduce --list                                       list tables and figures, their data and minutes
  vpgcnn reproduce table-cifar10 --list                         list the arms and seeds of one
  vpgcnn reproduce fig-mnist67-180
  vpgcnn reproduce table-cifar10 --arms full variational --seeds 0 1
  vpgcnn reproduce table-flowers --measure-again                measure the same weights again
  vpgcnn reproduce table-cifar10 --arms full --seeds 0 --epochs 1   a trial, kept apart from the results
  vpgcnn reproduce table-color --no-training                    write the runs that exist so far

Interrupted runs continue where they stopped, and finished runs are not repeated. If a run fails, the others still run.
"""


def main(arguments: list[str]) -> int:
    """Run an experiment with all its arms and seeds."""
    command = parser(
        "reproduce", "Make a table or figure: train every arm with every seed, measure, and write the result."
    )
    command.epilog = EXAMPLES
    command.add_argument("name", nargs="?", help="name of a table or figure")
    command.add_argument("--list", action="store_true", help="list the tables and figures, or the arms of one")
    command.add_argument(
        "--preset",
        choices=("cpu", "paper"),
        default="cpu",
        help="cpu: small networks (default); paper: as in the paper",
    )
    command.add_argument("--arms", nargs="+", help="run only these arms")
    command.add_argument("--seeds", nargs="+", type=int, help="use these seeds")
    command.add_argument("--measure-again", action="store_true", help="repeat the measurements of finished runs")
    command.add_argument("--no-training", action="store_true", help="write the results of finished runs only")
    command.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    command.add_argument("--results", type=Path, help="folder of the results (default: results)")
    command.add_argument("--threads", type=int, default=0, help="number of CPU threads (default: chosen by torch)")
    command.add_argument(
        "--epochs", type=int,
        help="a trial: train for so many epochs only. Runs and results go to RUNS/trial-of-N-epochs, never to the "
        "folder of results, so they cannot be taken for those of the experiment",
    )  # fmt: skip
    data_dir_option(command)
    options = command.parse_args(arguments)
    trial = options.epochs is not None
    if trial and options.results is not None:
        raise UserError("--epochs is a trial, whose results are kept apart: leave --results out")
    options.results = options.results or Path("results")
    from vpgcnn.lab.experiments.base import Experiment, shortened
    from vpgcnn.lab.experiments.registry import IN_PAPER, REPRODUCTIONS, listing, reproduction

    if options.name is not None and options.name not in REPRODUCTIONS:
        raise unknown("experiment", options.name, REPRODUCTIONS)
    if options.list and options.name:
        print(listing(options.name, options.preset, options.results))  # noqa: T201
        return 0
    if options.list:
        entries = []
        for title, inside in (("In the paper", True), ("Not in the paper", False)):
            names = [name for name in REPRODUCTIONS if (name in IN_PAPER) == inside]
            entries += [title, *(listing(name, options.preset, options.results, short=True) for name in names), ""]
        print("\n".join(entries))  # noqa: T201
        print("`vpgcnn reproduce NAME --list` lists the arms and seeds of one of them.")  # noqa: T201
        if not any(" minutes for " in entry for entry in entries):
            print(  # noqa: T201
                f"How many minutes they take is known only where their results are, and {options.results} has none: "
                "run this in a clone of the repository, or name the folder with --results."
            )
        return 0
    if options.name is None:
        raise UserError(f"name a table or figure: one of {', '.join(REPRODUCTIONS)}")
    chosen = reproduction(options.name)
    from vpgcnn.lab.config_io import read_json
    from vpgcnn.lab.experiments.runner import Places, run
    from vpgcnn.lab.training.checks import check_threads
    from vpgcnn.lab.training.loop import Interrupted
    from vpgcnn.lab.training.progress import Progress

    check_threads(options.threads)
    for seed in options.seeds or ():
        if seed < 0:
            raise UserError(f"a seed is a whole number of at least 0, got {seed}")
    if isinstance(chosen, Experiment):
        for arm in options.arms or ():
            chosen.config(arm, 0, options.preset)
    if trial:
        if not isinstance(chosen, Experiment):
            sources = getattr(chosen, "sources", ())
            where = f": give one of the experiments that it looks at ({', '.join(sources)})" if sources else ""
            raise UserError(f"{chosen.name} trains no network by epochs, so --epochs has no effect{where}")
        if options.preset == "paper":
            raise UserError("--epochs is a trial of the cpu preset: leave --preset paper out")
        if options.epochs < 1:
            raise UserError(f"--epochs must be at least 1, got {options.epochs}")
        chosen = shortened(chosen, options.epochs)
        options.runs = options.runs / f"trial-of-{plural(options.epochs, 'epoch').replace(' ', '-')}"
        options.results = options.runs / "results"
    settings = {"data_dir": options.data_dir, "threads": options.threads}
    keep_memory()
    try:
        target = run(
            chosen, Places(options.runs, options.results, settings, Progress()), preset=options.preset,
            arms=options.arms, seeds=options.seeds, again=options.measure_again,
            train=not options.no_training,
        )  # fmt: skip
    except Interrupted as stop:
        print(f"vpgcnn: {stop}; the same command continues there", file=sys.stderr)  # noqa: T201
        return 130
    print(target.with_suffix(".md").read_text(encoding="utf-8"))  # noqa: T201
    kinds = [suffix for suffix in (".json", ".md", ".png", ".html") if target.with_suffix(suffix).exists()]
    print(f"written to {', '.join(str(target.with_suffix(suffix)) for suffix in kinds)}")  # noqa: T201
    failed = read_json(target)["failed"]
    if failed:
        listed = ", ".join(f"{one['arm']} (seed {one['seed']})" for one in failed)
        raise UserError(f"{plural(len(failed), 'run')} failed: {listed}; the same command tries again")
    return 0
