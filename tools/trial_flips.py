"""Flip bytes of saved files, and look at what every reader does with them.

    python tools/trial_flips.py            # 1,000 flips; writes results/scripts/trial-flips.json and .md

A small run, its resume state, settings and result, its folder for the Hub and a converted network are written. Then one
random byte of one file is changed to another random value (every second one within the first 2,000 bytes, where headers
are), and the file is used: by `predict`, `evaluate`, `serve`, `train --resume`, `from_pretrained` and the functions
that read it. It must be refused in one sentence, or the answer must be that of the undamaged file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vpgcnn.apps import cli
from vpgcnn.apps.hub import Pretrained
from vpgcnn.apps.serve.inspector import open_networks
from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json, write_bytes, write_json
from vpgcnn.lab.training.checkpoint import read_tensors
from vpgcnn.lab.training.config import TrainConfig

DATA = ["--data.source", "embedded", "--data.limit", "60", "--batch-size", "16", "--epochs", "1", "--device", "cpu"]


def command(*words: str) -> str:
    """What a command prints; a refusal is raised as UserError, if it is one sentence."""
    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = cli.main(list(words))
    if code:
        assert code == 1, f"exit code {code}: {errors.getvalue()}"
        raise UserError(errors.getvalue().strip())
    return said.getvalue()


def bits(tensors: dict[str, torch.Tensor]) -> list[tuple[str, str, bytes]]:
    """Tensors as plain data, bit by bit."""
    return [
        (name, str(value.dtype), value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        for name, value in sorted(tensors.items())
    ]


def predicted(path: Path) -> Any:
    """What `predict` says of an image."""
    return command("predict", str(path), str(path.parent.parent / "digit.png"), "--json")


def evaluated(path: Path) -> Any:
    """What `evaluate` prints."""
    return command("evaluate", str(path.parent), "--json")


def served(path: Path) -> Any:
    """What the inspector opens."""
    (network,), _ = open_networks([path], torch.device("cpu"))
    return network.card, bits(network.model.state_dict())


def resumed(path: Path) -> Any:
    """The weights after `train --resume`."""
    command("train", "mnist67-180", *DATA, "--out", str(path.parent), "--resume")
    return bits(read_tensors(path.parent / "last.safetensors")[0])


def published(path: Path) -> Any:
    """What `from_pretrained` loads."""
    net = Pretrained.from_pretrained(path.parent)
    return net.card, net.record, bits(dict(net.state_dict()))


def tensors(path: Path) -> Any:
    """Every tensor, and the description."""
    found, description = read_tensors(path)
    return description, bits(found)


def settings(path: Path) -> Any:
    """The settings of a run."""
    return from_json(TrainConfig, read_json(path), str(path))


def result(path: Path) -> Any:
    """A result may have any fields: with its name damaged, the checksum is one of them."""
    return {key: value for key, value in read_json(path).items() if not isinstance(value, str) or len(value) != 64}


@dataclass
class Reader:
    """A file and who reads it.

    Args:
        name: What it is called in the table.
        file: The file whose bytes are flipped, within the folder of the trial.
        read: Uses it, and returns what it found.
        share: How often it is tried, compared with others.
    """

    name: str
    file: str
    read: Callable[[Path], Any]
    share: int = 4
    found: Counter[str] = field(default_factory=Counter)
    harmless: list[str] = field(default_factory=list)


READERS = [
    Reader("predict", "run/best.safetensors", predicted),
    Reader("evaluate", "run/last.safetensors", evaluated, 1),  # of both, the one that this recipe evaluates
    Reader("evaluate", "run/config.json", evaluated, 1),
    Reader("serve", "run/best.safetensors", served),
    Reader("train --resume", "stopped/state.safetensors", resumed, 1),
    Reader("train --resume", "stopped/config.json", resumed, 1),
    Reader("from_pretrained", "net/model.safetensors", published),
    Reader("from_pretrained", "net/config.json", published),
    Reader("state", "run/state.safetensors", tensors),
    Reader("settings", "run/config.json", settings),
    Reader("result", "run/result.json", result),
    Reader("predict, converted", "converted/net.safetensors", predicted),
]


def prepare(root: Path) -> None:
    """Write the files."""
    run = root / "run"
    command("train", "mnist67-180", *DATA, "--out", str(run))
    shutil.copytree(run, root / "stopped")
    (root / "stopped" / "result.json").unlink()
    command("hub", "save", str(run), str(root / "net"), "--license", "mit")
    command("train", "mnist67-180", "--network", "resnet18-small", *DATA, "--out", str(root / "plain"))
    (root / "converted").mkdir()
    command("convert", str(root / "plain"), "--rotations", "4", "--out", str(root / "converted" / "net.safetensors"))
    Image.new("L", (28, 28), 90).save(root / "digit.png")


def flip(reader: Reader, root: Path, dice: random.Random, wanted: Any, early: bool) -> str | None:
    """Change one byte, use the file, and restore the folder; what went wrong, or None."""
    path = root / reader.file
    kept = {each: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    damaged = bytearray(kept[path])
    place = dice.randrange(min(2000, len(damaged)) if early else len(damaged))
    damaged[place] ^= dice.randrange(1, 256)
    path.write_bytes(bytes(damaged))
    where = f"byte {place} of {reader.file}"
    try:
        if reader.read(path) != wanted:
            return f"{where}: another answer"
        reader.found["harmless"] += 1
        reader.harmless.append(where)
        return None
    except UserError as error:
        sentence = str(error)
        if "\n" in sentence or not sentence:
            return f"{where}: not one sentence: {sentence!r}"
        reader.found["refused"] += 1
        return None
    except BaseException as error:  # whatever it is, it is what the trial looks for
        return f"{where}: {traceback.format_exception_only(error)[-1].strip()}"
    finally:
        for each in path.parent.iterdir():
            if each.is_file() and each not in kept:
                each.unlink()
        for each, content in kept.items():
            each.write_bytes(content)


def main() -> None:
    """Flip bytes and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flips", type=int, nargs="?", default=1000, help="how many (default: 1000)")
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the result")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start, wrong, dice = time.monotonic(), [], random.Random(0)
    with tempfile.TemporaryDirectory(prefix="flips-") as scratch:
        root = Path(scratch)
        prepare(root)
        wanted = {}
        for reader in READERS:
            wanted[id(reader)] = reader.read(root / reader.file)
        shutil.rmtree(root / "stopped")
        shutil.copytree(root / "run", root / "stopped")
        (root / "stopped" / "result.json").unlink()
        order = [reader for reader in READERS for _ in range(reader.share)]
        for number in range(options.flips):
            reader = order[number % len(order)]
            problem = flip(reader, root, dice, wanted[id(reader)], number // len(order) % 2 == 0)
            if problem:
                reader.found["wrong"] += 1
                wrong.append(f"{reader.name}, {problem}")
                print(wrong[-1], flush=True)
            if number % 100 == 99:
                print(f"{number + 1} flips, {len(wrong)} wrong, {time.monotonic() - start:.0f} s", flush=True)
    write(options.out, options.flips, wrong)
    sys.exit(bool(wrong))


def write(folder: Path, flips: int, wrong: list[str]) -> None:
    """Write the table."""
    rows: list[dict[str, Any]] = [
        {"reader": reader.name, "file": reader.file, "harmless_at": reader.harmless}
        | {key: reader.found[key] for key in ("refused", "harmless", "wrong")}
        for reader in READERS
    ]  # fmt: skip
    write_json(folder / "trial-flips.json", {"flips": flips, "wrong": wrong, "rows": rows})
    lines = ["# Flipped bytes", "", f"`python tools/trial_flips.py {flips}`: {len(wrong)} went wrong.", ""]
    lines += [
        "| read by | file | refused in one sentence | harmless: the same answer | wrong |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {r['reader']} | {r['file']} | {r['refused']} | {r['harmless']} | {r['wrong']} |" for r in rows]
    harmless = [where for row in rows for where in row["harmless_at"]]
    lines += ["", f"Harmless: {'; '.join(harmless) or 'none'}."]
    write_bytes(folder / "trial-flips.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
