"""vpgcnn tune."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from vpgcnn.apps.commands.common import check_file, data_dir_option, parser, print_json, table
from vpgcnn.errors import UserError

ABOUT = """Open or close the windows of a trained network, without training, as far as a stated loss of accuracy allows.
Tries settings from all windows closed to all open on images that the network was not trained on, and takes the most
open one that costs at most --may-cost of accuracy against closed windows, at the stated confidence: if other images of
this kind had been drawn, the promise would hold in at least 95 of 100 cases. Images have to be independent: frames of
one video, or copies of one photograph, are not, and then the confidence is lower than stated."""
EXAMPLES = """examples:
  vpgcnn tune runs/mnist67-180 --may-cost 0.5%
  vpgcnn tune runs/photos --may-cost 2% --confidence 0.9 --data more-photos/
  vpgcnn evaluate runs/mnist67-180/tuned.safetensors

Writes tuned.safetensors next to the weights, and tuning.html with the curve of cost against robustness. Accuracy "when
moved" is that of rotated images; of shifted hues or mirrors where the network has no rotations. The run's validation
images also chose the epoch, unless it was trained with --select last; for a strict promise give images that were used
for nothing else with --data.
"""


def main(arguments: list[str]) -> int:
    """Choose how open the windows of a network are."""
    command = parser("tune", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run, or a weights file")
    command.add_argument(
        "--may-cost", type=_share, default=0.005, metavar="SHARE",
        help="accuracy that windows may cost against closed ones: 0.5%% or 0.005 (default: 0.5%%)",
    )  # fmt: skip
    command.add_argument("--confidence", type=_share, default=0.95, help="of the promise: 0.95 or 95%% (default)")
    command.add_argument("--data", help="another dataset, image folder or .npz file (default: the run's validation)")
    command.add_argument("--out", type=Path, help="file to write (default: tuned.safetensors next to the weights)")
    command.add_argument("--json", action="store_true", help="print JSON")
    data_dir_option(command)
    options = command.parse_args(arguments)
    if options.out is not None and options.out.suffix != ".safetensors":
        raise UserError(f"--out must end in .safetensors, got {options.out.name!r}")
    if options.out is not None:
        check_file(options.out)
    from dataclasses import replace

    from vpgcnn.apps.commands.use import fingerprint_of, load_run, same_place
    from vpgcnn.lab.config_io import to_json, write_bytes
    from vpgcnn.lab.data import DATASETS, load
    from vpgcnn.lab.networks import symmetry
    from vpgcnn.lab.report.tuning import tuning_page
    from vpgcnn.lab.training.checkpoint import read_tensors, save_model
    from vpgcnn.lab.training.progress import Progress, Quiet
    from vpgcnn.lab.training.run import chosen_weights
    from vpgcnn.lab.training.tuning import TUNED, tune
    from vpgcnn.levels import set_dial
    from vpgcnn.measure import Circle

    model, card, data = load_run(options.run)
    trained = data
    weights = chosen_weights(options.run)
    if options.data:
        data = replace(data, name=options.data, size=card.size, limit=None)
    dataset = load(data, options.data_dir)
    if dataset.classes != card.classes:
        raise UserError(f"{dataset.name} has other classes than the network: {', '.join(dataset.classes[:5])}")
    if dataset.channels != card.channels:
        raise UserError(f"the network expects {card.channels} channels, but {dataset.name} has {dataset.channels}")
    others = options.data and options.data not in DATASETS and not same_place(options.data, trained.name)
    if not others and fingerprint_of(options.run) not in (None, dataset.fingerprint()):
        raise UserError(
            f"{options.run} was trained on different data than these ({dataset.notes[0]}), so some of the validation "
            "images may have been used for training: choose the original data with --data-dir, or others with --data"
        )
    split = dataset.all() if others else dataset.validation
    circle: Circle = "hue" if symmetry(card.model) == "hue" else "rotation"
    if card.model.group.axes[-1].name == "mirror" and card.model.group.axes[0].count == 1:
        circle = "mirror"
    if symmetry(card.model) == "color":
        names = [axis.name for axis in card.model.group.axes]
        circle = "saturation" if "saturation" in names else "luminance"
    progress = Quiet() if options.json else Progress()
    with progress:
        found = tune(
            model, split, at_most=options.may_cost, circle=circle, confidence=options.confidence, progress=progress
        )
    set_dial(model, found.dial)
    target = options.out or weights.parent / TUNED
    _, description = read_tensors(weights)
    kept = {key: value for key, value in description.items() if key in ("epoch", "record")}
    save_model(target, model, card, {**kept, "tuned": to_json(found)})
    page = target.with_suffix(".html") if options.out else weights.parent / "tuning.html"
    promise = (
        f"On images like these ({found.images:,} were tested), windows cost at most {100 * found.at_most:g} percentage "
        f"points of accuracy against closed ones (confidence {found.confidence:.0%})."
    )
    columns = ([getattr(point, name) for point in found.points] for name in ("dial", "accuracy", "moved"))
    html = tuning_page(*columns, chosen=found.dial, promise=promise, images=found.images)
    write_bytes(page, html.encode())
    if options.json:
        print_json(asdict(found) | {"written": str(target)})
        return 0
    rows: list[tuple[str, ...]] = [("dial", "mean θ", "accuracy", "costs (points)", "accuracy when moved", "")]
    for point in found.points:
        chosen = "← chosen" if point.dial == found.dial else "as learned" if point.dial == 0 else ""
        rows.append(
            (f"{point.dial:+.1f}", f"{point.theta:.2f}", f"{point.accuracy:.2%}", f"{100 * point.cost:+.2f}",
             f"{point.moved:.1%}", chosen)
        )  # fmt: skip
    table(rows)
    print(f"dial {found.dial:+.1f}. {promise}")  # noqa: T201
    if found.warning:
        print(f"note: {found.warning}")  # noqa: T201
    print(f"written: {target} and {page}")  # noqa: T201
    return 0


def _share(text: str) -> float:
    """A share, as 0.005 or 0.5%."""
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"give a share such as 0.5% or 0.005, got {text!r}") from None
    share = number / 100 if text.endswith("%") else number
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"a share lies between 0 and 100 %, got {text!r}")
    return share
