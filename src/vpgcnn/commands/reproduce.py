"""vpgcnn reproduce."""

from __future__ import annotations

from pathlib import Path

from vpgcnn.allocator import keep_memory
from vpgcnn.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn reproduce --list                                       what there is, and where its results go
  vpgcnn reproduce fig-mnist67-180
  vpgcnn reproduce table-cifar10 --arms full variational --seeds 0 1
  vpgcnn reproduce table-flowers --measure-again                other measurements of the same weights
  vpgcnn reproduce table-color --no-training                    a table of what has been run so far

Every run resumes where it was; what has been measured is not run again. An arm that fails does not stop the others.
"""


def main(arguments: list[str]) -> int:
    """Run an experiment with all its arms and seeds."""
    command = parser("reproduce", "Make a table or figure: train every arm with every seed, measure, write the result.")
    command.epilog = EXAMPLES
    command.add_argument("name", nargs="?", help="a table or figure")
    command.add_argument("--list", action="store_true", help="what there is")
    command.add_argument("--preset", choices=("cpu", "paper"), default="cpu", help="small, or as in the paper")
    command.add_argument("--arms", nargs="+", help="only these arms")
    command.add_argument("--seeds", nargs="+", type=int, help="other seeds")
    command.add_argument("--measure-again", action="store_true", help="measure anew what was trained before")
    command.add_argument("--no-training", action="store_true", help="write what has been run, and leave the rest")
    command.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are kept (default: runs)")
    command.add_argument("--results", type=Path, default=Path("results"), help="where results go (default: results)")
    command.add_argument("--threads", type=int, default=0, help="CPU threads")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.experiments.base import Experiment
    from vpgcnn.experiments.registry import REPRODUCTIONS, reproduction

    if options.list:
        for name in REPRODUCTIONS:
            print(_listed(name, options.preset))  # noqa: T201
        return 0
    if options.name is None:
        raise UserError(f"which table or figure? choose from {', '.join(REPRODUCTIONS)}")
    chosen = reproduction(options.name)
    from vpgcnn.experiments.runner import Places, run
    from vpgcnn.serial import read_json
    from vpgcnn.training.checks import check_threads
    from vpgcnn.training.loop import Interrupted
    from vpgcnn.training.progress import Progress

    check_threads(options.threads)
    if isinstance(chosen, Experiment):
        for arm in options.arms or ():
            chosen.config(arm, 0, options.preset)
    settings = {"data_dir": options.data_dir, "threads": options.threads}
    keep_memory()
    try:
        target = run(
            chosen, options.name, Places(options.runs, options.results, settings, Progress()), preset=options.preset,
            arms=options.arms, seeds=options.seeds, again=options.measure_again,
            train=not options.no_training,
        )  # fmt: skip
    except Interrupted as stop:
        print(f"{stop}; the same command goes on there")  # noqa: T201
        return 130
    print(target.with_suffix(".md").read_text(encoding="utf-8"))  # noqa: T201
    kinds = [suffix for suffix in (".json", ".md", ".png", ".html") if target.with_suffix(suffix).exists()]
    print(f"written to {', '.join(str(target.with_suffix(suffix)) for suffix in kinds)}")  # noqa: T201
    failed = read_json(target)["failed"]
    if failed:
        said = ", ".join(f"{one['arm']} (seed {one['seed']})" for one in failed)
        raise UserError(f"{len(failed)} of the runs failed: {said}; the same command tries them again")
    return 0


def _listed(name: str, preset: str) -> str:
    """What is said of one entry of the list."""
    from vpgcnn.experiments.base import Experiment, View
    from vpgcnn.experiments.registry import EXPERIMENTS, REPRODUCTIONS

    entry = REPRODUCTIONS[name]
    lines = [f"{name}: {entry.about}"]
    file = f"{name}{'' if preset == 'cpu' else '-paper'}"
    if isinstance(entry, Experiment):
        file = entry.result[preset]
        listed, seeds = ", ".join(entry.arms_of(preset)), ", ".join(map(str, entry.seeds))
        fewer = ", fewer for some" if entry.fewer else ""
        lines.append(f"  arms: {listed}; {'draws' if entry.draws else 'seeds'}: {seeds}{fewer}")
        if preset == "cpu" and entry.optional:
            lines.append(f"  only when named with --arms: {', '.join(sorted(entry.optional))}")
    elif isinstance(entry, View):
        for source, arms in entry.sources.items():
            there = [arm for arm in arms if arm in EXPERIMENTS[source].arms_of(preset)]
            lines.append(f"  from {source}: {', '.join(there)}")
    else:
        lines.append("  nothing is trained")
    return "\n".join([*lines, f"  written to results/{file}.json"])
