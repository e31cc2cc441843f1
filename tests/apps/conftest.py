"""Runs that several test files look at: each is trained once in a session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from app_support import make_photos, vpgcnn


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with "my photos" (60 pictures of two classes) and "run", a run on them. Read only."""
    root = tmp_path_factory.mktemp("secret-place")
    photos = make_photos(root / "my photos")
    words = ["train", "mnist67-180", "--data.name", photos, "--data-dir", root, "--out", root / "run", "--seed", 5]
    words += ["--epochs", 2, "--batch-size", 8, "--select", "accuracy", "--threads", 1, "--model.widths", 3, 3, 4]
    words += ["--model.stem-stride", 1, "--model.kernel-sizes", 3, 3, 3]
    words += ["--model.level", "Variational(Window(0.5), condition='output')", "--model.kernel", "Siren(hidden=6)"]
    words += ["--level-optimiser.lr", 1e-4]  # so slowly that windows of different images stay different
    result = vpgcnn(*words, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test"]["images"] == 9
    return root
