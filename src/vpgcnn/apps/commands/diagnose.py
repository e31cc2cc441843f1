"""vpgcnn diagnose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpgcnn.apps.commands.common import check_out, parser, plural, print_json
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.lab.diagnosis.study import Study
    from vpgcnn.lab.report.diagnosis import Shown

ABOUT = """Measure whether a classifier is sensitive to rotation or hue, for which images and classes, and whether it
should be. The command shows the classifier every image of a folder (folder/class/*.jpg) at every place of a circle. It
writes diagnosis.json and report.html, a single page that opens from disk."""
EXAMPLES = """classifiers:
  runs/flowers102            a run of vpgcnn, or its .safetensors file
  my_models:resnet           a function without arguments (or a module) in my_models.py, in this folder or installed
  code/net.py:build          the same, in a file
  net.pt2, net.pt            torch.export and TorchScript; needs --trust, because such files can run any code
  net.onnx                   needs onnxruntime: pip install 'vpgcnn[export]'

examples:
  vpgcnn diagnose runs/flowers102 --data flowers/ --group hue
  vpgcnn diagnose my_models:resnet --data photos/ --group rotation --size 224 --mean .485 .456 .406 --std .229 .224 .225
  vpgcnn diagnose net.onnx --data photos/ --group hue --classes names.txt --limit 500

If the classifier does not come with class names, the names of the folder's classes, sorted, stand for its logits;
--classes gives other names. Files written by torch.save are never opened.
"""
GROUPS = ("rotation", "hue", "linear-hue")
SHOWN = 6
"""The page shows this many images whose answer changes most, and as many whose answer changes least."""


def main(arguments: list[str]) -> int:
    """Diagnose a classifier."""
    command = parser("diagnose", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("classifier", help="a run, a file or a function; see below")
    command.add_argument("--data", type=Path, required=True, help="image folder with one folder per class")
    command.add_argument(
        "--group", choices=GROUPS, required=True,
        help="what moves; hue: the hue in HSV, linear-hue: the rotation of RGB that Hue(m) applies",
    )  # fmt: skip
    command.add_argument("--steps", type=int, default=12, help="number of places on the circle (default: 12)")
    command.add_argument("--limit", type=int, help="use only this many images, drawn at random")
    command.add_argument("--size", type=int, help="image side in pixels (default: the model's, or 224)")
    command.add_argument(
        "--mean", type=float, nargs="+", default=[0.0],
        help="the model expects (pixels - mean) / std, with pixels in [0, 1]: one number, or one per channel",
    )  # fmt: skip
    command.add_argument("--std", type=float, nargs="+", default=[1.0], help="see --mean")
    command.add_argument("--grey", action="store_true", help="the model takes images with one channel")
    command.add_argument("--classes", type=Path, help="text file with one class name per line, in the order of logits")
    command.add_argument("--batch", type=int, default=64, help="batch size (default: 64)")
    command.add_argument("--device", help="cpu, cuda or mps (default: the fastest one available)")
    command.add_argument("--trust", action="store_true", help="open .pt2 and .pt files, which can run any code")
    command.add_argument("--out", type=Path, default=Path("diagnosis"), help="folder to write to (default: diagnosis)")
    command.add_argument("--json", action="store_true", help="print the measurements as JSON instead of the verdict")
    options = command.parse_args(arguments)
    for name in ("steps", "size", "batch"):
        value = getattr(options, name)
        if value is not None and value < (2 if name == "steps" else 1):
            raise UserError(f"--{name} must be at least {2 if name == 'steps' else 1}, got {value}")
    import torch

    from vpgcnn.lab.config_io import write_bytes, write_json
    from vpgcnn.lab.data.stream import ImageFolder
    from vpgcnn.lab.diagnosis.classifiers import open_classifier
    from vpgcnn.lab.diagnosis.study import study
    from vpgcnn.lab.diagnosis.words import verdict
    from vpgcnn.lab.report.diagnosis import page
    from vpgcnn.lab.report.static import require_matplotlib
    from vpgcnn.lab.training.progress import Progress
    from vpgcnn.measure import moves_of

    require_matplotlib()
    check_out(options.out)
    folder = ImageFolder.open(options.data, options.limit)
    names = _names(options.classes)
    moves = moves_of(options.group, options.steps)
    classifier = open_classifier(
        options.classifier, size=options.size, channels=1 if options.grey else 3, mean=options.mean, std=options.std,
        device=_device(options.device), trust=options.trust,
    )  # fmt: skip
    if _trained_on(options.classifier, options.data):
        print(  # noqa: T201
            "note: the network was trained on most of these images, so its accuracy on new images may be lower",
            file=sys.stderr,
        )
    with Progress() as progress:
        if not options.json:
            progress.message(f"{len(folder)} images, as {classifier.size}×{classifier.size} pixels")
        found = study(classifier, folder, moves, names, batch=options.batch, look_at=options.data, progress=progress)
    judged, plain = verdict(found), found.as_json()
    made = f"vpgcnn diagnose {' '.join(arguments)}; torch {torch.__version__}."
    most, least = ([_shown(found, image) for image in images] for images in found.ranked(SHOWN))
    write_json(options.out / "diagnosis.json", {"command": made, "verdict": judged, **plain})
    report = options.out / "report.html"
    write_bytes(report, page(plain, judged, most, least, moves.whole, made).encode())
    for reason in list(folder.skipped.values())[:5]:
        print(f"skipped: {reason}", file=sys.stderr)  # noqa: T201
    if len(folder.skipped) > 5:
        print(f"skipped: {plural(len(folder.skipped) - 5, 'more file')}, see the report", file=sys.stderr)  # noqa: T201
    if found.grey:
        verb = "has" if len(found.grey) == 1 else "have"
        print(f"skipped: {plural(len(found.grey), 'grey image')}, which {verb} no hue", file=sys.stderr)  # noqa: T201
    if options.json:
        print_json({"verdict": judged, **plain})
        return 0
    print("\n\n".join([judged["headline"], *judged["sentences"], judged["text"]]))  # noqa: T201
    print(f"\nreport: {report}")  # noqa: T201
    return 0


def _trained_on(classifier: str, folder: Path) -> bool:
    """Whether this is a run trained on this folder, which has no separate test images."""
    from vpgcnn.apps.commands.use import same_place
    from vpgcnn.lab.data.folder import part_folders
    from vpgcnn.lab.training.record import read_settings
    from vpgcnn.lab.training.run import chosen_weights

    path = Path(classifier)
    if not path.is_dir() and path.suffix != ".safetensors":
        return False
    settings = read_settings(chosen_weights(path))
    return settings is not None and same_place(settings.data.name, folder) and "" in part_folders(folder)


def _names(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read class names from {path}: {error}") from error
    return [line.strip() for line in lines if line.strip()]


def _device(name: str | None) -> Any:
    import torch

    if name is None:
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"there is no device {name!r} here: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def _shown(found: Study, image: int) -> Shown:
    """Read an image again and move it to all places."""
    import torch

    from vpgcnn.lab.report.diagnosis import Shown

    orbit, classifier = found.orbit, found.classifier
    pixels = found.folder.image(found.places[image], classifier.size, classifier.channels)[None]
    moved = torch.cat([orbit.moves(pixels, place) for place in orbit.moves.places])
    small = torch.nn.functional.interpolate(moved, (64, 64), mode="area") if moved.shape[-1] > 64 else moved
    answers = [
        (orbit.classes[int(guess)], float(sure))
        for guess, sure in zip(orbit.guesses[:, image], orbit.certainty[:, image], strict=True)
    ]
    return Shown(
        found.path(image), orbit.classes[int(orbit.labels[image])], float(orbit.distance[1:, image].mean()),
        small.numpy(), answers, orbit.confidence[:, image].tolist(),
    )  # fmt: skip
