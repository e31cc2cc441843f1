"""vpgcnn look."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpgcnn.apps.commands.common import check_out, parser, plural, print_json
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vpgcnn.lab.diagnosis.look import Finding, Look
    from vpgcnn.lab.report.look import Examples

SHOWN = 4
"""Images of each kind on the page."""
ABOUT = """Look at a folder of images before anything is trained: do orientation, colour, and left and right matter in
them? Says whether the images are spread along each circle, whether the class is carried by the place on it, how sure
that is, and with which command to begin. Writes look.json and report.html, a single page that opens from disk."""
EXAMPLES = """examples:
  vpgcnn look photos/                     one folder per class: photos/CLASS/*.jpg
  vpgcnn look snapshots/                  images without classes: only the first question
  vpgcnn look photos/ --limit 3000        more images than the default, for a surer answer

No network takes part: the answers are about what simple features show. `vpgcnn diagnose` asks a classifier.
"""


def main(arguments: list[str]) -> int:
    """Look at a folder."""
    command = parser("look", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("folder", type=Path, help="image folder, with or without classes, or an .npz file")
    command.add_argument("--limit", type=int, default=1000, help="look at this many images at most (default: 1000)")
    command.add_argument("--out", type=Path, default=Path("look"), help="folder to write to (default: look)")
    command.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = command.parse_args(arguments)
    if options.limit < 1:
        raise UserError(f"--limit must be at least 1, got {options.limit}")
    import torch

    from vpgcnn.lab.config_io import write_bytes, write_json
    from vpgcnn.lab.data.folder import passed_over
    from vpgcnn.lab.diagnosis.look import look
    from vpgcnn.lab.diagnosis.look_words import verdict
    from vpgcnn.lab.report.look import page
    from vpgcnn.lab.report.static import require_matplotlib
    from vpgcnn.lab.training.progress import Progress

    require_matplotlib()
    check_out(options.out)
    with Progress() as progress:
        found = look(options.folder, limit=options.limit, progress=progress)
    said = verdict(found)
    plain = found.as_json()
    plain["verdict"] = {
        "headlines": said.headlines, "sentences": said.sentences, "level": said.advice, "command": said.command,
        "reason": said.reason,
    }  # fmt: skip
    made = f"vpgcnn look {' '.join(arguments)}; torch {torch.__version__}."
    write_json(options.out / "look.json", {"made_by": made, **plain})
    report = options.out / "report.html"
    write_bytes(report, page(plain, _shown(found), made).encode())
    inner = ""
    if options.folder.is_dir():
        inner = passed_over(options.folder) if found.classes else _beside(options.folder)
    if inner:
        print(inner, file=sys.stderr)  # noqa: T201
    for reason in list(found.skipped.values())[:5]:
        print(f"skipped: {reason}", file=sys.stderr)  # noqa: T201
    if len(found.skipped) > 5:
        print(f"skipped: {plural(len(found.skipped) - 5, 'more file')}, see the report", file=sys.stderr)  # noqa: T201
    if options.json:
        print_json(plain)
        return 0
    print(f"{_looked_at(found)}\n")  # noqa: T201
    for change, headline in said.headlines.items():
        print(f"{headline}.\n  " + "\n  ".join(said.sentences[change]) + "\n")  # noqa: T201
    print(said.reason)  # noqa: T201
    print(f"  {said.command}\n" if said.command else "", end="")  # noqa: T201
    print(f"\nreport: {report}")  # noqa: T201
    return 0


def _beside(folder: Path) -> str:
    """A sentence that names the folders of images beside images without classes; empty if there are none."""
    from vpgcnn.lab.data.folder import folders_in, image_files

    inner = [path.name for path in folders_in(folder) if image_files(path)] if image_files(folder) else []
    listed = f"{', '.join(inner[:20])}{' and more' if len(inner) > 20 else ''}"
    return (
        f"passed over {plural(len(inner), 'folder')} beside the images, which have no class: {listed}" if inner else ""
    )


def _looked_at(found: Look) -> str:
    read = len(found.labels)
    some = f"{read:,} of {found.total:,} images (drawn at random)" if read + len(found.skipped) < found.total else ""
    classes = f"of {plural(len(found.classes), 'class')}" if found.classes else "without classes"
    return f"looked at {some or plural(read, 'image')} {classes}"


def _shown(found: Look) -> list[Examples]:
    """Images that speak for each finding."""
    from vpgcnn.lab.report.look import Examples

    groups = []
    for finding in found.findings:
        if finding.spread is None:
            continue
        told, at = finding.spread.of_images, finding.spread.scores
        order = told.argsort(descending=True, stable=True)
        for title, chosen in (
            ("Images that are told from their copies", _mixed(found, finding, order)),
            ("Images that are not told from their copies", _mixed(found, finding, order.flip(0))),
        ):
            rows = []
            for number in chosen:
                copy = int(at[number, 1:].argmax()) + 1
                rows.append(_row(found, finding, number, copy, f"told from {float(told[number]):.0%} of its copies"))
            groups.append(Examples(finding.change, title, tuple(rows)))
        copies: list[tuple[tuple[Any, str], ...]] = []
        for twin in finding.twins[:SHOWN]:
            assert finding.carried is not None
            mine = (finding.carried.labels == twin.label).nonzero()[:, 0]
            taken = mine[finding.carried.taken[mine, twin.place] == twin.other]
            others = (finding.carried.labels == twin.other).nonzero()[:, 0]
            if len(taken):
                row = _row(found, finding, int(taken[0]), twin.place, f"taken for {found.classes[twin.other]}")
                there = int(finding.images[others[0]])
                copies.append((*row, (found.pixels[there].numpy(), f"a {found.classes[twin.other]}")))
        if copies:
            groups.append(Examples(finding.change, "Copies that are taken for another class", tuple(copies)))
    return groups


def _mixed(found: Look, finding: Finding, order: Tensor) -> list[int]:
    """The first images of an order, no two of the same class if there are enough classes."""
    labels = found.labels[finding.images]
    first = {int(labels[number]): number for number in reversed(order.tolist())}
    chosen = [number for number in order.tolist() if first[int(labels[number])] == number][:SHOWN]
    return chosen + [number for number in order.tolist() if number not in chosen][: SHOWN - len(chosen)]


def _row(found: Look, finding: Finding, number: int, place: int, said: str) -> tuple[tuple[Any, str], tuple[Any, str]]:
    """An image and a copy of it, with captions."""
    from vpgcnn.measure import moves_of

    index = int(finding.images[number])
    image = found.pixels[index][None]
    name = found.names[index]
    assert finding.spread is not None
    if finding.change == "mirror":
        copy, moved = image.flip(-1), "mirrored"
    else:
        count = finding.spread.scores.shape[1]
        moves = moves_of(finding.change, count)
        copy = moves(image, moves.places[place])
        degrees = round(360 * place / count)
        moved = f"{degrees - 360 if degrees > 180 else degrees:+d}°"
    return (image[0].numpy(), name), (copy[0].numpy(), f"{moved}: {said}")
