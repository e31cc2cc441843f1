"""What tests of the applications share: the command line in this process, small networks, a server in a thread."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vpgcnn.apps.cli import main
from vpgcnn.kernels import Siren
from vpgcnn.lab.data import Dataset, Split
from vpgcnn.lab.networks.config import COLOR_CNN, DIGITS
from vpgcnn.lab.training.checkpoint import Card, save_model
from vpgcnn.levels import Variational, Window

PATIENCE = 60.0
"""Seconds to wait for a condition: generous, because the machine may be busy."""
DIGIT = replace(DIGITS, widths=(2, 2, 4), kernel=Siren(hidden=4, omega=4.0))
COLOR = replace(COLOR_CNN, width=3, level=Variational(Window(initial=0.6)), group_pool="mean")


@dataclass(frozen=True)
class Result:
    """How a command ended, like `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def vpgcnn(*words: object) -> Result:
    """Run a command in this process: no second start of Python and torch."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # argparse and tyro
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Result(code, out.getvalue(), errors.getvalue())


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, however busy the machine is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} seconds"
        time.sleep(0.01)


def make_photos(folder: Path, count: int = 30) -> Path:
    """Small pictures of two classes: bright and dark ones."""
    noise = np.random.default_rng(0)
    for name, level in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = (level + noise.integers(0, 100, (16, 16))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def save_network(path: Path, **changes: Any) -> Path:
    """A network with random weights, for grey digits unless changes say otherwise."""
    torch.manual_seed(len(path.name))
    usual = {"model": DIGIT, "classes": ("6", "7", "9"), "channels": 1, "size": 28, "mean": (0.1,), "std": (0.3,)}
    card = Card(**usual | changes)
    save_model(path, card.build(), card, {})
    return path


def digits(count: int = 30, channels: int = 1) -> Dataset:
    """Noise of three classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, 28, 28), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.arange(count) % 3)
    return Dataset("made up", ("6", "7", "9"), split, split, split)


@contextmanager
def served(app: Any, **options: Any) -> Iterator[tuple[str, int]]:
    """A real server in a thread, at this host and port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server starts")
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
