"""The data directory: where the files of a dataset lie, downloads, and checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from vpgcnn.errors import UserError

__all__ = [
    "VARIABLE",
    "Archive",
    "ManualDownload",
    "ProgressCallback",
    "PublishedFile",
    "cache_directory",
    "data_directory",
    "fetch_files",
    "file_status",
    "md5",
]

VARIABLE = "VPGCNN_DATA"
"""The environment variable that names the data directory."""
ProgressCallback = Callable[[str, int, int | None], None]
"""Called during a download with the name of the file, the bytes received so far, and the total if it is known."""


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors published it.

    Args:
        path: Where the file belongs, relative to the data directory.
        md5: Its published checksum.
        urls: Where to download it; the mirrors are tried in this order. Empty for a file that lies in an archive.
    """

    path: str
    md5: str
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """A tar archive of published files, or of a whole folder of images.

    Args:
        name: The name of the archive.
        md5: Its published checksum.
        urls: Where to download it; the mirrors are tried in this order.
        into: With `pattern`: the folder to unpack into, relative to the data directory.
        pattern: The members to unpack, such as "jpg/image_*.jpg". Without a pattern, `fetch_files` unpacks the
            published files that it needs.
    """

    name: str
    md5: str
    urls: tuple[str, ...]
    into: str = ""
    pattern: str = ""

    @property
    def folder(self) -> PurePosixPath:
        """The folder within the archive whose members match `pattern`."""
        return PurePosixPath(self.pattern).parent


@dataclass(frozen=True)
class ManualDownload:
    """A folder of images that a user has to download and unpack.

    Args:
        folder: Where it belongs, relative to the data directory.
        patterns: The images in the folder.
        instructions: Where to get the images and where to unpack them.
    """

    folder: str
    patterns: tuple[str, ...]
    instructions: str

    def count_images(self, root: Path) -> int:
        """Return the number of images in the data directory `root`."""
        return sum(1 for pattern in self.patterns for _ in (root / self.folder).glob(pattern))


def data_directory(given: Path | None = None) -> Path:
    """Return the data directory.

    Args:
        given: The value of `--data-dir`. None stands for the environment variable VPGCNN_DATA, or for a folder in
            the user's cache if that is not set.

    Raises:
        UserError: If the path begins with the home directory of an unknown user.
    """
    chosen = given
    if chosen is None and os.environ.get(VARIABLE):
        chosen = Path(os.environ[VARIABLE])
    if chosen is None:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vpgcnn" / "data"
    try:
        return chosen.expanduser()
    except RuntimeError as error:
        raise UserError(f"cannot use {chosen} as the data directory: {error}") from error


def cache_directory() -> Path:
    """Return the folder for files that can be recomputed, in the user's cache."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vpgcnn" / "decoded").expanduser()


def md5(path: Path) -> str:
    """Return the MD5 checksum of a file, the kind that the authors of these datasets publish.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def file_status(file: PublishedFile, root: Path) -> str:
    """Compare a file in the data directory with the published checksum.

    Args:
        file: The published file.
        root: The data directory.

    Returns:
        "ok", "missing" or "damaged".
    """
    path = root / file.path
    if not path.is_file():
        return "missing"
    return "ok" if md5(path) == file.md5 else "damaged"


def fetch_files(
    files: Sequence[PublishedFile], archive: Archive | None, root: Path, on_progress: ProgressCallback
) -> list[Path]:
    """Download the files that are missing or damaged.

    A file appears under its final name only after its checksum has been verified.

    Args:
        files: The published files of a dataset.
        archive: The archive that holds them, or a folder of images in addition to them.
        root: The data directory; it is created if needed.
        on_progress: Called after every megabyte.

    Returns:
        The paths of the new files.

    Raises:
        UserError: If no mirror delivers a file with the right checksum, or if `root` cannot be written.
    """
    wanted = [file for file in files if file_status(file, root) != "ok"]
    folder_missing = (
        archive is not None and archive.pattern and not (root / archive.into / Path(archive.pattern).parent).is_dir()
    )
    if not wanted and not folder_missing:
        return []
    unpacked: list[Path] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as scratch:
            if archive is not None and (folder_missing or not archive.pattern):
                downloaded = _download(archive.name, archive.urls, archive.md5, Path(scratch), on_progress)
                if folder_missing:
                    unpacked = _unpack_folder(downloaded, archive, Path(scratch), root)
                else:
                    _unpack_files(downloaded, wanted, Path(scratch), root)
            if archive is None or archive.pattern:
                for file in wanted:
                    name = Path(file.path).name
                    _move_into_place(_download(name, file.urls, file.md5, Path(scratch), on_progress), file, root)
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror or error}") from error
    return [root / file.path for file in wanted] + unpacked


def _download(name: str, urls: tuple[str, ...], expected: str, scratch: Path, on_progress: ProgressCallback) -> Path:
    """Download a file from the first mirror that delivers it with the expected checksum."""
    problems = []
    for url in urls:
        target = scratch / name
        try:
            with urllib.request.urlopen(url, timeout=30) as response, target.open("wb") as out:
                length = response.headers.get("Content-Length")
                _copy(response, out, name, int(length) if length else None, on_progress)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        received = md5(target)
        if received == expected:
            return target
        problems.append(f"{url}: the checksum is {received} instead of {expected}")
    raise UserError(f"cannot fetch {name} ({'; '.join(problems)})")


def _copy(source: BinaryIO, out: BinaryIO, name: str, length: int | None, on_progress: ProgressCallback) -> None:
    done = 0
    while block := source.read(1 << 20):
        out.write(block)
        done += len(block)
        on_progress(name, done, length)


def _unpack_files(archive: Path, wanted: list[PublishedFile], scratch: Path, root: Path) -> None:
    with tarfile.open(archive) as tar:
        for file in wanted:
            try:
                source = tar.extractfile(file.path)
            except KeyError:
                source = None
            if source is None:
                raise UserError(f"{archive.name} does not contain {file.path}")
            target = scratch / Path(file.path).name
            with source, target.open("wb") as out:
                shutil.copyfileobj(cast(BinaryIO, source), out)
            if md5(target) != file.md5:
                raise UserError(f"{file.path} in {archive.name} differs from the published file")
            _move_into_place(target, file, root)


def _unpack_folder(downloaded: Path, archive: Archive, scratch: Path, root: Path) -> list[Path]:
    """Unpack the members that match the pattern; either all of them appear or none."""
    new = scratch / "unpacked"
    new.mkdir()
    with tarfile.open(downloaded) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            wanted = member.isfile() and name.match(archive.pattern) and name.parent == archive.folder
            source = tar.extractfile(member) if wanted else None
            if source is not None:
                with source, (new / name.name).open("wb") as out:
                    shutil.copyfileobj(cast(BinaryIO, source), out)
    target = root / archive.into / archive.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    new.replace(target)
    return sorted(target.iterdir())


def _move_into_place(source: Path, file: PublishedFile, root: Path) -> None:
    target = root / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
