"""vpgcnn evaluate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vpgcnn.apps.commands.common import data_dir_option, parser, plural, print_json, table
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn evaluate runs/mnist67-180
  vpgcnn evaluate runs/mnist67-180 --split validation --json
  vpgcnn evaluate runs/cifar10-se2 --cost                        what the windows save
  vpgcnn evaluate runs/mine/best.safetensors --data photos/      other images of the same classes

θ is the share of all rotations (or hues) that a layer uses for an image: 1 stands for all of them.
"""


def main(arguments: list[str]) -> int:
    """Test a trained network."""
    command = parser("evaluate", "Test a trained network, and show the mean level (θ) of each class.")
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument("--data", help="another dataset, image folder or .npz file (default: the data of the run)")
    command.add_argument(
        "--split",
        choices=("test", "validation", "train", "all"),
        help="which images (default: test; all if --data is another folder)",
    )
    command.add_argument("--cost", action="store_true", help="also count the multiplications that images need")
    command.add_argument("--json", action="store_true", help="print JSON")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.apps.commands.use import fingerprint_of, load_run, same_place

    model, card, data = load_run(options.run)
    from accelerate import Accelerator

    from vpgcnn.lab.data import DATASETS, load
    from vpgcnn.lab.networks import symmetry
    from vpgcnn.lab.training.loop import evaluate
    from vpgcnn.measure import against_truth, idle_levels, read_levels

    trained = data
    if options.data:
        data = replace(data, name=options.data, size=card.size, limit=None)
    dataset = load(data, options.data_dir)
    if not options.data and fingerprint_of(options.run) not in (None, dataset.fingerprint()):
        raise UserError(
            f"{options.run} was trained on different data than these ({dataset.notes[0]}), so some of the test images "
            "may have been used for training: choose the original data with --data-dir, or other images with --data"
        )
    if dataset.classes != card.classes or dataset.channels != card.channels:
        raise UserError(
            f"the network expects {_kind(card.classes, card.channels)}, but "
            f"{dataset.name} has {_kind(dataset.classes, dataset.channels)}"
        )
    others = options.data and options.data not in DATASETS and not same_place(options.data, trained.name)
    part = options.split or ("all" if others else "test")
    split = dataset.all() if part == "all" else getattr(dataset, part)
    if not len(split):
        raise UserError(f"{dataset.name} has no {part} images")
    accelerator = Accelerator()
    model = model.to(accelerator.device)
    result: dict[str, Any] = {"split": part, **evaluate(model, split, accelerator)}
    reading = read_levels(model, split.images)
    per_image = reading.per_image()
    theta, shared = per_image.circles(), reading.circles()
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
        result["against_truth"] = {}
        for layer, values in per_image.theta.items():
            # An axis of one element, such as the rotations of Dihedral(1), is not a circle.
            counts = [axis.count for axis in per_image.groups[layer].axes]
            places = [place for place, count in enumerate(counts) if count > 1 and place < values.shape[1]]
            for column, place in enumerate(places if len(places) == truth.shape[1] else ()):
                found = against_truth(values[:, place], truth[:, column])
                name = layer if len(places) == 1 else f"{layer} {per_image.groups[layer].axes[place].name}"
                result["against_truth"][name] = {key: round(value, 4) for key, value in found.items()}
    result["idle"] = idle_levels(reading)
    if options.cost:
        result["cost"] = _cost(model, split, card.classes)
    if options.json:
        print_json(result)
        return 0
    print(f"{part}: accuracy {result['accuracy']:.2%} on {plural(result['images'], 'image')}")  # noqa: T201
    print(f"nll {result['nll']:.4f}, kl {result['kl']:.4f} nats per image, unused {result['unused']:.4f}")  # noqa: T201
    if theta:
        words = {"hue": "hues", "both": "rotations or hues", "color": "shifts"}
        moves = words.get(symmetry(card.model), "rotations")
        whole = f"the share of all {moves} in use (1 is all of them)"
        if {axis.name for group in per_image.groups.values() for axis in group.axes if axis.count > 1} == {"mirror"}:
            whole = "from 0.5 (the image as it is) to 1 (its mirror image, too)"
        print(f"\nθ, {whole}, mean of each class:")  # noqa: T201
        if "ranges" in theta:
            print("(ranges: the augmenter moves an image by up to this share of 180°, either way)")  # noqa: T201
        names = [name for name in card.classes if name in next(iter(result["theta"].values()))]
        rows = [("class", *result["theta"])]
        rows += [(name, *(f"{values[name]:.3f}" for values in result["theta"].values())) for name in names]
        table(rows)
    for layer, found in result.get("against_truth", {}).items():
        print(  # noqa: T201
            f"θ of {layer} compared with the true range of each image: rank correlation "
            f"{found['rank_correlation']:.3f}, mean distance {found['error']:.3f}, overlap {found['overlap']:.3f}"
        )
    if options.cost:
        cost = result["cost"]
        print(  # noqa: T201
            f"\nmultiplications of the group convolutions: {cost['mean'] / 1e6:.2f} million per image, "
            f"{cost['share']:.1%} of the {cost['whole'] / 1e6:.2f} million with the whole group"
        )
        table([("class", "share"), *((name, f"{share:.1%}") for name, share in cost["of_classes"].items())])
    for sentence in result["idle"]:
        print(f"note: {sentence}")  # noqa: T201
    if result["theta_of_all"]:
        listed = ", ".join(f"{layer} {value:.3f}" for layer, value in result["theta_of_all"].items())
        print(f"\nθ, the same for all images: {listed}")  # noqa: T201
    return 0


def _cost(model: Any, split: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    """The multiplications per image, and their share of those with the whole group, also for each class."""
    from vpgcnn.lab.networks import to_unit
    from vpgcnn.measure import multiplications

    found = multiplications(model, to_unit(split.images))
    if not found.whole:
        raise UserError("--cost counts group convolutions, and this network has none; of a converted one, see net.cost")
    each = {
        name: round(float(found.share[split.labels == label].mean()), 4)
        for label, name in enumerate(classes)
        if bool((split.labels == label).any())
    }
    mean, share = round(float(found.used.mean())), round(float(found.share.mean()), 4)
    return {"mean": mean, "whole": round(found.whole), "share": share, "of_classes": each}


def _kind(classes: tuple[str, ...], channels: int) -> str:
    more = ", …" if len(classes) > 5 else ""
    return (
        f"{plural(len(classes), 'class')} ({', '.join(classes[:5])}{more}) of images with {plural(channels, 'channel')}"
    )
