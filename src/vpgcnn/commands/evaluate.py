"""vpgcnn evaluate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vpgcnn.commands.common import data_dir_option, parser, print_json, table
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn evaluate runs/mnist67-180
  vpgcnn evaluate runs/mnist67-180 --split validation --json
  vpgcnn evaluate runs/mine/best.safetensors --data photos/      another folder with the same classes
"""


def main(arguments: list[str]) -> int:
    """Test a trained network."""
    command = parser("evaluate", "Test a trained network, and show the learned levels of each class.")
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="a run's folder or a weights file")
    command.add_argument("--data", help="another dataset, image folder or .npz (default: that of the run)")
    command.add_argument(
        "--split",
        choices=("test", "validation", "train", "all"),
        help="default: test; all of --data that are others",
    )
    command.add_argument("--json", action="store_true", help="as JSON")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.commands.use import fingerprint_of, load_run, same_place

    model, card, data = load_run(options.run)
    from accelerate import Accelerator

    from vpgcnn.analysis import against_truth, apart, read_theta
    from vpgcnn.data import DATASETS, load
    from vpgcnn.models import symmetry
    from vpgcnn.training.loop import evaluate

    trained = data
    if options.data:
        data = replace(data, name=options.data, size=card.size, limit=None)
    dataset = load(data, options.data_dir)
    if not options.data and fingerprint_of(options.run) not in (None, dataset.fingerprint()):
        raise UserError(
            f"{options.run} was trained with other data than are there now ({dataset.notes[0]}), and what is a test "
            f"image here may be a training image there: name those with --data-dir, or test on others with --data"
        )
    if dataset.classes != card.classes or dataset.channels != card.channels:
        raise UserError(
            f"the network knows {_kind(card.classes, card.channels)}, "
            f"{dataset.name} has {_kind(dataset.classes, dataset.channels)}"
        )
    others = options.data and options.data not in DATASETS and not same_place(options.data, trained.name)
    part = options.split or ("all" if others else "test")
    split = dataset.all() if part == "all" else getattr(dataset, part)
    if not len(split):
        raise UserError(f"{dataset.name} has no {part} images")
    accelerator = Accelerator()
    model = model.to(accelerator.device)
    result: dict[str, Any] = {"split": part, **evaluate(model, split, card, accelerator)}
    pixels = split.images.to(accelerator.device)
    levels = read_theta(model, pixels, prepare=card.standardised)
    theta = apart(model, levels)
    shared = apart(model, read_theta(model, pixels[:1], all_levels=True, prepare=card.standardised))
    result["theta"] = {
        layer: {
            name: round(float(values[split.labels == label].mean()), 4)
            for label, name in enumerate(card.classes)
            if bool((split.labels == label).any())
        }
        for layer, values in theta.items()
    }
    result["theta_of_all"] = {
        layer: round(float(values[0]), 4) for layer, values in shared.items() if layer not in theta
    }
    if split.reach is not None and theta:
        truth = split.reach.view(len(split), -1)
        known = apart(model, {layer: truth for layer, values in levels.items() if values.shape[1] == truth.shape[1]})
        result["against_truth"] = {
            layer: {key: round(value, 4) for key, value in against_truth(theta[layer], values).items()}
            for layer, values in known.items()
        }
    if options.json:
        print_json(result)
        return 0
    print(f"{part}: accuracy {result['accuracy']:.2%} on {result['images']} images")  # noqa: T201
    print(f"nll {result['nll']:.4f}, kl {result['kl']:.4f} nats an image")  # noqa: T201
    if theta:
        moves = {"hue": "hues", "both": "rotations or hues"}.get(symmetry(card.model), "rotations")
        print(f"\nθ, the share of all {moves} in use (1 is all of them), mean by class:")  # noqa: T201
        if "ranges" in theta:
            print("(ranges: by how much of the circle the augmenter moves an image, either way)")  # noqa: T201
        names = [name for name in card.classes if name in next(iter(result["theta"].values()))]
        rows = [("class", *result["theta"])]
        rows += [(name, *(f"{values[name]:.3f}" for values in result["theta"].values())) for name in names]
        table(rows)
    for layer, found in result.get("against_truth", {}).items():
        print(  # noqa: T201
            f"θ of {layer} against the true range of each image: rank correlation {found['rank_correlation']:.3f}, "
            f"mean distance {found['error']:.3f}, overlap of the windows {found['overlap']:.3f}"
        )
    if result["theta_of_all"]:
        listed = ", ".join(f"{layer} {value:.3f}" for layer, value in result["theta_of_all"].items())
        print(f"\nθ, the same for all images: {listed}")  # noqa: T201
    return 0


def _kind(classes: tuple[str, ...], channels: int) -> str:
    more = ", …" if len(classes) > 5 else ""
    return f"{len(classes)} classes ({', '.join(classes[:5])}{more}) of images with {channels} channels"
