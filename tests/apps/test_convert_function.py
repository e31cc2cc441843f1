"""vpgcnn convert MODULE:FUNCTION: any network, and what later commands do with it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from vpgcnn.apps import cli
from vpgcnn.conversion import Converted
from vpgcnn.errors import UserError
from vpgcnn.lab import plugins
from vpgcnn.lab.training.checkpoint import load_model

CODE = """
from torch import nn

def small():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
    )

def number():
    return 3

def broken():
    net = small()
    nn.init.constant_(net[0].weight, float("nan"))
    return net

def noconv():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 2))

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = small()

    def forward(self, x):
        logits = self.body(x)
        return logits, logits * 2

def two():
    return Two()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_ALLOWED", set())
    for key in [key for key in sys.modules if key.startswith(plugins.PREFIX) or key == "my_nets"]:
        monkeypatch.delitem(sys.modules, key)
    path = tmp_path / "my_nets.py"
    path.write_text(CODE)
    return path


def pictures(folder: Path) -> Path:
    """Pictures in colour of two classes."""
    noise = np.random.default_rng(0)
    for name, level in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir(parents=True)
        for number in range(16):
            pixels = (level + noise.integers(0, 100, (32, 32, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def converted(code: Path, *words: object) -> Path:
    torch.manual_seed(3)
    model = plugins.build_network(f"{code}:small")
    save_file(model.state_dict(), code.parent / "trained.safetensors")
    (code.parent / "names.txt").write_text("bright\ndark\n")
    out = code.parent / "hues.safetensors"
    given = [f"{code}:small", "--weights", "trained.safetensors", "--size", "32", "--classes", "names.txt"]
    assert cli.main(["convert", *given, "--hues", "3", "--out", str(out), *map(str, words)]) == 0
    return out


def test_any_network_is_converted_with_its_weights(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = converted(code, "--mean", 0.4, 0.5, 0.6, "--std", 0.2, 0.2, 0.3)
    printed = capsys.readouterr().out
    assert "of the largest on 256 images of noise\n" in printed  # there are no data of a run
    assert "times the original's" in printed
    assert "windows start at θ = 0.33 for every image, which is the identity alone (1 of 3 elements)" in printed
    assert "vpgcnn --use my_nets.py train FOLDER --start" in printed
    plugins.load_plugin(code)
    network, card = load_model(out)
    assert card.classes == ("bright", "dark")
    assert isinstance(network.network, Converted)
    torch.manual_seed(3)
    plain: nn.Module = plugins.build_network(f"{code}:small").eval()
    images = torch.rand(4, 3, 32, 32)
    ready = (images - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor([0.2, 0.2, 0.3]).view(3, 1, 1)
    with torch.no_grad():
        assert torch.allclose(network(images).logits, plain(ready), atol=1e-5)
        assert list(network(images).theta) == ["3"]


def test_any_network_is_softened(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = converted(code, "--softness", 0, "--mean", 0.4, 0.5, 0.6, "--std", 0.2, 0.2, 0.3)
    assert "1 convolution softened to 0" in capsys.readouterr().out
    (model, card), images = load_model(out), torch.rand(4, 3, 32, 32)
    assert card.model.group.order == 1
    with torch.no_grad():
        assert torch.allclose(model(images).logits, model(images.roll(1, dims=1)).logits, atol=1e-5)


def test_only_the_first_output_counts_and_it_says_so(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["convert", "my_nets:two", "--size", "32", "--hues", "3", "--mean", "0.4", "0.5", "0.6", "--std", "0.2"]
    assert cli.main(given) == 0
    assert "my_nets:two has 2 outputs: only the first counts, 2 classes" in capsys.readouterr().out


def test_a_weights_file_does_not_choose_which_code_runs(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = converted(code)
    monkeypatch.setattr(plugins, "_ALLOWED", set())
    with pytest.raises(UserError, match=r"my_nets.py:small, which is code: .*--use my_nets.py"):
        load_model(out)
    assert cli.main(["export", str(out), "--out", str(code.parent / "net.onnx")]) == 1


def test_later_commands_take_it(
    code: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = converted(code)
    monkeypatch.setattr(plugins, "_ALLOWED", set())
    photos, use = pictures(code.parent / "photos"), ["--use", str(code)]
    run = code.parent / "run"
    words = ["--epochs", "1", "--batch-size", "8", "--threads", "1", "--out", str(run)]
    capsys.readouterr()
    assert cli.main([*use, "train", "--data", str(photos), "--start", str(out), *words]) == 0
    printed = capsys.readouterr().out
    assert f"network: {code}:small on Hue(3), a level for each image" in printed
    assert "32 × 32 pixels" in printed  # the size that the network was converted for; the pictures are smaller
    advised = shlex.split(printed.rpartition("inspect it with: ")[2])
    assert advised == ["vpgcnn", *use, "evaluate", str(run)]
    assert cli.main(advised[1:]) == 0
    assert "θ" in capsys.readouterr().out
    diagnosed = ["--data", str(photos), "--group", "hue", "--steps", "3", "--out", str(code.parent / "diagnosis")]
    assert cli.main([*use, "diagnose", str(run), *diagnosed]) == 0
    assert cli.main([*use, "export", str(run)]) == 0
    (photos / "dark").rename(photos / "grim")
    assert cli.main([*use, "train", "--data", str(photos), "--start", str(out), *words[:-1], str(run / "2")]) == 1
    assert "has the classes bright, dark, but the images have bright, grim" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["my_nets:number", "--hues", "3"], "must return a torch.nn.Module, got int"),
        (["my_nets:absent", "--hues", "3"], "has no 'absent'"),
        (["no_such_module:small", "--hues", "3"], "cannot import 'no_such_module'"),
        (["my_nets:small"], "no group to convert to"),
        (["my_nets:small", "--hues", "3", "--grey", "--size", "32"], "does not accept images (2, 1, 32, 32)"),
        (
            ["my_nets:small", "--hues", "3", "--weights", "plain.pth"],
            "plain.pth was written by torch.save, as a pickle",
        ),
        (
            ["my_nets:small", "--hues", "3", "--weights", "none.safetensors"],
            "there is no weights file",
        ),
        (["my_nets:small", "--hues", "3", "--size", "32", "--classes", "my_nets.py"], "names, but my_nets:small has 2"),
        (
            ["my_nets:small", "--hues", "3", "--size", "32", "--classes", "twice.txt"],
            "has the class 'a' twice: give each",
        ),
        (["my_nets:small", "--hues", "3", "--size", "32", "--classes", "empty.txt"], "empty.txt has 0 names, but"),
        (
            ["my_nets:small", "--hues", "3", "--size", "48", "192"],
            "commands take square images, got --size 48 192: in Py",
        ),
        (
            ["my_nets:broken", "--hues", "3", "--size", "32"],
            "the weights of the network are not all finite numbers: 0",
        ),
        (["my_nets:small", "--hues", "3", "--out", "empty.txt/net.safetensors"], "empty.txt is not a writable folder"),
        (["my_nets:noconv", "--hues", "3", "--size", "32"], "there is no convolution (nn.Conv2d) to convert"),
        (["my_nets:small", "--hues", "3", "--mean", "0.5", "0.5"], "--mean takes one number or 3"),
        (["my_nets:small", "--hues", "3", "--std", "0"], "--std must be above 0, got 0\n"),
    ],
)
def test_what_cannot_be_is_said(code: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str) -> None:
    (code.parent / "empty.txt").touch()
    (code.parent / "twice.txt").write_text("a\na\n")
    torch.save({"weight": torch.zeros(2)}, code.parent / "plain.pth")
    assert cli.main(["convert", *words]) == 1
    said = capsys.readouterr().err
    assert reason in said
    assert "Traceback" not in said
