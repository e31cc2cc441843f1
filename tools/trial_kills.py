"""Kill commands at random moments, and look at what is left.

    python tools/trial_kills.py            # 20 kills; writes results/scripts/trial-kills.json and .md

Training, conversion, export, `hub save` and the report of `diagnose` are run once undisturbed, then killed with
SIGKILL: at a random moment of the time they took, or in the instant in which a file appears. After each kill every file
must be whole (checksums, ONNX and HTML are read), and the same command must then succeed and leave what the undisturbed
one left: the same bits of every tensor.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vpgcnn.apps import cli
from vpgcnn.lab.config_io import read_json, write_bytes, write_json
from vpgcnn.lab.networks import PlainConfig
from vpgcnn.lab.training.checkpoint import Card, read_tensors, save_model

MODULES = ["tyro", "onnxscript", "onnxruntime", "vpgcnn.lab.training.loop", "vpgcnn.apps.hub", "vpgcnn.export"]
MODULES += [f"vpgcnn.apps.commands.{name}" for name in ("train", "convert", "export", "hub", "diagnose", "use")]
MODULES += ["vpgcnn.lab.diagnosis.study", "vpgcnn.lab.report.diagnosis", "torch._dynamo", "torch.export"]
TRAIN = "--epochs 12 --batch-size 8 --model.group SO2(4) --model.widths 2 2 2 --model.kernel-sizes 3 3 3"
TRAIN += " --model.stem-stride 1 --device cpu --threads 1 --log-steps 1 --save-seconds 0"


def quiet(words: list[str], said: str) -> None:
    """The command in a process of its own."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    torch.set_num_threads(1)
    sys.exit(cli.main(words))


class Trial:
    """One command: how to run it in a folder, and how often to kill it.

    Args:
        name: What it is called in the result.
        words: Its arguments, given the folder that it may write to.
        kills: How often it is killed.
        fresh: Whether each kill starts in an empty folder; otherwise the next run continues.
    """

    def __init__(self, name: str, words: Callable[[Path], list[str]], kills: int, *, fresh: bool = True) -> None:
        self.name, self.words, self.kills, self.fresh = name, words, kills, fresh

    def start(self, folder: Path) -> BaseProcess:
        context = multiprocessing.get_context("forkserver")
        said = str(folder.with_name(f"{folder.name}.txt"))
        process = context.Process(target=quiet, args=(self.words(folder), said))
        process.start()
        return process

    def finish(self, folder: Path) -> float:
        """Run to the end; the seconds that it took."""
        begin = time.monotonic()
        process = self.start(folder)
        process.join()
        if process.exitcode:
            raise SystemExit(f"{self.name} failed:\n{folder.with_name(f'{folder.name}.txt').read_text()[-2000:]}")
        return time.monotonic() - begin

    def run(self, scratch: Path, dice: random.Random) -> list[dict[str, Any]]:
        """Kill it, look at what is left, let it finish, compare."""
        whole = scratch / f"{self.name}-whole"
        whole.mkdir()
        seconds = self.finish(whole)
        found: list[dict[str, Any]] = []
        folder = scratch / f"{self.name}-0"
        folder.mkdir()
        while len(found) < self.kills:
            at_file = len(found) % 2 == 1
            before = state(folder)
            process = self.start(folder)
            begin = time.monotonic()
            moment = dice.uniform(0, seconds / (1 if self.fresh else self.kills))
            skip = dice.randrange(1, 4)  # not always the first file
            while process.is_alive() and (at_file or time.monotonic() - begin < moment):
                if at_file and (now := state(folder)) != before:
                    before, skip = now, skip - 1
                    if skip <= 0 or self.fresh:
                        break
                time.sleep(0.0005 if at_file else 0.002)
            process.kill()
            process.join()
            if process.exitcode != -9:
                if not self.fresh:
                    raise SystemExit(f"{self.name} ended before it was killed {self.kills} times: make it longer")
                clear(folder)
                continue
            left = [path for path in folder.rglob("*") if path.is_file()]
            seen = [path for path in left if not hidden(path, folder)]
            row: dict[str, Any] = {"command": self.name, "when": "a file appeared" if at_file else "random"}
            row |= {"seconds": round(time.monotonic() - begin, 3), "files": len(seen)}
            row["temporary"] = len(left) - len(seen)
            row["damaged"] = [problem for path in seen if (problem := damage(path))]
            if self.fresh:
                self.finish(folder)
                row |= {"same": same(whole, folder), "left over": leftovers(folder)}
                folder = scratch / f"{self.name}-{len(found) + 1}"
                folder.mkdir()
            found.append(row)
            print(json.dumps(row), flush=True)
        if not self.fresh:
            self.finish(folder)
            end = {"same": same(whole, folder), "left over": leftovers(folder)}
            found = [row | end for row in found]
        return found


def state(folder: Path) -> list[tuple[str, int]]:
    """The names and times of all files."""
    rows = []
    for path in sorted(folder.rglob("*")):
        try:
            rows.append((str(path), path.stat().st_mtime_ns))
        except OSError:
            continue
    return rows


def clear(folder: Path) -> None:
    """Empty a folder."""
    shutil.rmtree(folder)
    folder.mkdir()


def hidden(path: Path, folder: Path) -> bool:
    """Whether a file, or a folder that it is in, has a temporary name."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def leftovers(folder: Path) -> list[str]:
    """Temporary files after the command has succeeded."""
    return [path.name for path in folder.rglob(".*")]


def damage(path: Path) -> str:
    """What is wrong with a file; "" if nothing is."""
    try:
        if path.suffix == ".safetensors":
            read_tensors(path)
        elif path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".onnx":
            import onnx

            onnx.checker.check_model(onnx.load(str(path)))
        elif path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
            return f"{path.name} has no end"
        elif path.suffix == ".md" and not path.read_text().strip():
            return f"{path.name} is empty"
    except Exception as error:
        return f"{path.name}: {error}"
    return ""


def same(one: Path, two: Path) -> bool:
    """Whether two folders hold the same files with the same tensors."""
    names = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    if names != sorted(str(path.relative_to(two)) for path in two.rglob("*") if path.is_file()):
        return False
    for name in names:
        if name.endswith(".safetensors"):
            first, second = read_tensors(one / name)[0], read_tensors(two / name)[0]
            equal = first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
        elif name.endswith(".onnx"):
            equal = onnx_tensors(one / name) == onnx_tensors(two / name)
        else:
            equal = not damage(two / name)
        if not equal:
            print(f"{name} differs", flush=True)
            return False
    return True


def onnx_tensors(path: Path) -> dict[str, bytes]:
    """The weights in an ONNX file."""
    import onnx

    return {tensor.name: tensor.raw_data for tensor in onnx.load(str(path)).graph.initializer}


def prepare(scratch: Path) -> tuple[Path, Path, Path]:
    """Images, as a file and as a folder "photos"; a trained network; and an ordinary one."""
    noise = np.random.default_rng(0)
    images = noise.integers(0, 120, (160, 16, 16, 3)).astype(np.uint8)
    images[::2] += 120
    np.savez(scratch / "images.npz", images=images, labels=np.arange(160) % 2)
    for number in range(40):
        path = scratch / "photos" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(path)
    run = scratch / "trained"
    words = ["train", "mnist67-180", "--data.name", str(scratch / "images.npz"), "--out", str(run), *TRAIN.split()]
    with redirect_stdout(io.StringIO()):
        assert cli.main([*words, "--epochs", "1"]) == 0
    torch.manual_seed(0)
    card = Card(PlainConfig(width=4), ("a", "b"), 3, 32, (0.5,), (0.3,))
    save_model(scratch / "plain.safetensors", card.build(), card, {})
    return scratch / "images.npz", run, scratch / "plain.safetensors"


def main() -> None:
    """Run all trials and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the result")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one command, such as convert (default: all)")
    options = parser.parse_args()
    multiprocessing.get_context("forkserver").set_forkserver_preload(MODULES)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        scratch = Path(name)
        images, run, plain = prepare(scratch)
        trials = [
            Trial("train", lambda to: ["train", "mnist67-180", "--data.name", str(images), "--out", str(to / "run"),
                                       "--resume", *TRAIN.split()], 8, fresh=False),
            Trial("convert", lambda to: ["convert", str(plain), "--hue", "3", "--out", str(to / "new.safetensors")], 3),
            Trial("export", lambda to: ["export", str(run), "--out", str(to / "net.onnx")], 3),
            Trial("hub save", lambda to: ["hub", "save", str(run), str(to / "saved")], 3),
            Trial("diagnose", lambda to: ["diagnose", str(run), "--data", str(scratch / "photos"), "--group",
                                          "rotation", "--out", str(to / "report")], 3),
        ]  # fmt: skip
        dice = random.Random(options.seed)
        for trial in [each for each in trials if options.only in (None, each.name)]:
            rows += trial.run(scratch, dice)
    bad = [row for row in rows if row["damaged"] or not row["same"] or row["left over"]]
    result = {"kills": len(rows), "bad": len(bad), "torch": torch.__version__, "rows": rows}
    write_json(options.out / "trial-kills.json", result)
    lines = ["# Killed at random moments", "", "`python tools/trial_kills.py`: SIGKILL at a random moment, or in the "]
    lines[-1] += "instant in which a file appears; then the files are read, and the command is run again."
    lines += ["", "| command | when | after (s) | files | temporary files | damaged | then the same, bit for bit |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row['command']} | {row['when']} | {row['seconds']} | {row['files']} | {row['temporary']} | "
        f"{len(row['damaged'])} | {'yes' if row['same'] and not row['left over'] else 'no'} |"
        for row in rows
    ]
    lines += ["", f"{len(rows)} kills, {len(bad)} with damage or a different end."]
    write_bytes(options.out / "trial-kills.md", ("\n".join(lines) + "\n").encode())
    print(lines[-1])
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
