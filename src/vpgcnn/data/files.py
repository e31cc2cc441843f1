"""Where data lie on disk, how they are fetched, and whether they are what was published."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from vpgcnn.errors import UserError

__all__ = [
    "VARIABLE",
    "Archive",
    "PublishedFile",
    "cache_directory",
    "check",
    "data_directory",
    "fetch",
    "md5",
]

VARIABLE = "VPGCNN_DATA"
Progress = Callable[[str, int, int | None], None]
"""Told of a name, the bytes that have come, and how many there will be."""


@dataclass(frozen=True)
class PublishedFile:
    """A file as its authors published it: where it belongs under the data directory, and its MD5."""

    path: str
    md5: str
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Archive:
    """A tar file that holds published files.

    Or one that is unpacked whole: the members that match `pattern`, into the folder `into`.
    """

    name: str
    md5: str
    urls: tuple[str, ...]
    into: str = ""
    pattern: str = ""

    @property
    def folder(self) -> PurePosixPath:
        """The folder within the archive that is unpacked."""
        return PurePosixPath(self.pattern).parent


def data_directory(given: Path | None = None) -> Path:
    """`--data-dir`, else the environment variable VPGCNN_DATA, else a folder in the user's cache."""
    chosen = given
    if chosen is None and os.environ.get(VARIABLE):
        chosen = Path(os.environ[VARIABLE])
    if chosen is None:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vpgcnn" / "data"
    try:
        return chosen.expanduser()
    except RuntimeError as error:
        raise UserError(f"{chosen} is no data directory: {error}") from error


def cache_directory() -> Path:
    """Where copies are kept that can be made again: a folder in the user's cache."""
    return (Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vpgcnn" / "decoded").expanduser()


def md5(path: Path) -> str:
    """The MD5 of a file, as the publishers of these datasets give it."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def check(file: PublishedFile, root: Path) -> str:
    """Whether a published file is "ok", "missing" or "damaged" here."""
    path = root / file.path
    if not path.is_file():
        return "missing"
    return "ok" if md5(path) == file.md5 else "damaged"


def fetch(files: list[PublishedFile], archive: Archive | None, root: Path, progress: Progress) -> list[Path]:
    """Download what is missing or damaged; nothing is left under its name before its checksum was right."""
    wanted = [file for file in files if check(file, root) != "ok"]
    folder = (
        archive is not None and archive.pattern and not (root / archive.into / Path(archive.pattern).parent).is_dir()
    )
    if not wanted and not folder:
        return []
    unpacked: list[Path] = []
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as scratch:
            if archive is not None and (folder or not archive.pattern):
                whole = _download(archive.name, archive.urls, archive.md5, Path(scratch), progress)
                if folder:
                    unpacked = _unpack_folder(whole, archive, Path(scratch), root)
                else:
                    _unpack(whole, wanted, Path(scratch), root)
            if archive is None or archive.pattern:
                for file in wanted:
                    _place(_download(Path(file.path).name, file.urls, file.md5, Path(scratch), progress), file, root)
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror or error}") from error
    return [root / file.path for file in wanted] + unpacked


def _download(name: str, urls: tuple[str, ...], expected: str, scratch: Path, progress: Progress) -> Path:
    problems = []
    for url in urls:
        target = scratch / name
        try:
            with urllib.request.urlopen(url, timeout=30) as answer, target.open("wb") as out:
                length = answer.headers.get("Content-Length")
                _copy(answer, out, name, int(length) if length else None, progress)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            problems.append(f"{url}: {getattr(error, 'reason', error)}")
            continue
        got = md5(target)
        if got == expected:
            return target
        problems.append(f"{url}: checksum {got} instead of {expected}")
    raise UserError(f"cannot fetch {name} ({'; '.join(problems)})")


def _copy(source: BinaryIO, out: BinaryIO, name: str, length: int | None, progress: Progress) -> None:
    done = 0
    while block := source.read(1 << 20):
        out.write(block)
        done += len(block)
        progress(name, done, length)


def _unpack(archive: Path, wanted: list[PublishedFile], scratch: Path, root: Path) -> None:
    with tarfile.open(archive) as tar:
        for file in wanted:
            try:
                source = tar.extractfile(file.path)
            except KeyError:
                source = None
            if source is None:
                raise UserError(f"{archive.name} holds no {file.path}")
            target = scratch / Path(file.path).name
            with source, target.open("wb") as out:
                shutil.copyfileobj(cast(BinaryIO, source), out)
            if md5(target) != file.md5:
                raise UserError(f"{file.path} in {archive.name} is not the published file")
            _place(target, file, root)


def _unpack_folder(archive: Path, about: Archive, scratch: Path, root: Path) -> list[Path]:
    """The members that match, all of them or none."""
    new = scratch / "unpacked"
    new.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            wanted = member.isfile() and name.match(about.pattern) and name.parent == about.folder
            source = tar.extractfile(member) if wanted else None
            if source is not None:
                with source, (new / name.name).open("wb") as out:
                    shutil.copyfileobj(cast(BinaryIO, source), out)
    target = root / about.into / about.folder
    target.parent.mkdir(parents=True, exist_ok=True)
    new.replace(target)
    return sorted(target.iterdir())


def _place(source: Path, file: PublishedFile, root: Path) -> None:
    target = root / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
