"""Files that were damaged on the way: refused in one sentence, or proved to hold what was written."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from app_support import save_network, vpgcnn
from safetensors import safe_open
from safetensors.torch import save_file

from vpgcnn.apps.hub import Pretrained
from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json, write_bytes, write_json
from vpgcnn.lab.training.checkpoint import checksum, load_model, read_tensors, save_tensors
from vpgcnn.lab.training.config import TrainConfig

FLIPS = 150
"""Damaged copies of each file; half of the damage is in its first 2,000 bytes, where the header is."""


@pytest.fixture(scope="module")
def saved(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run, with "net", the same network as a folder for the Hub."""
    root = tmp_path_factory.mktemp("saved")
    shutil.copytree(trained / "run", root / "run")
    Pretrained.of(root / "run").save_pretrained(root / "net")
    return root


def _network(path: Path) -> Any:
    model, card = load_model(path)
    return card, {name: value.tolist() for name, value in model.state_dict().items()}


def _tensors(path: Path) -> Any:
    tensors, description = read_tensors(path)
    return description, {name: (value.dtype, value.tolist()) for name, value in tensors.items()}


def _published(path: Path) -> Any:
    net = Pretrained.from_pretrained(path.parent)
    return net.card, net.record, {name: value.tolist() for name, value in net.state_dict().items()}


READERS: dict[str, Callable[[Path], Any]] = {
    "run/best.safetensors": _network,
    "run/state.safetensors": _tensors,
    "run/config.json": lambda path: from_json(TrainConfig, read_json(path), str(path)),
    "run/result.json": lambda path: {key: value for key, value in read_json(path).items() if not _is_checksum(value)},
    "net/model.safetensors": _published,
    "net/config.json": _published,
}


def _is_checksum(value: object) -> bool:
    """A result may have any fields: with its name damaged, the checksum is one of them."""
    return isinstance(value, str) and len(value) == 64


@pytest.mark.parametrize("name", READERS)
def test_a_flipped_byte_is_refused_or_harmless(name: str, saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved / Path(name).parent, tmp_path / Path(name).parent)
    path, read = folder / Path(name).name, READERS[name]
    whole, wanted = path.read_bytes(), read(path)
    dice, harmless, refusals = random.Random(name), 0, []
    for number in range(FLIPS):
        damaged = bytearray(whole)
        place = dice.randrange(min(2000, len(whole)) if number % 2 else len(whole))
        damaged[place] ^= dice.randrange(1, 256)
        path.write_bytes(bytes(damaged))
        try:
            assert read(path) == wanted, f"byte {place} of {name} changed what is read"
            harmless += 1
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) + harmless == FLIPS
    assert len(refusals) > FLIPS / 2
    assert all(path.name in sentence and "\n" not in sentence for sentence in refusals)


def _damage(path: Path) -> Path:
    """Change one bit of the last number in a weights file: still a finite number, of about the same size."""
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(bytes(content))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RUN"),
        ("predict", "RUN", "PHOTO"),
        ("diagnose", "RUN", "--data", "PHOTOS", "--group", "rotation", "--out", "OUT"),
        ("serve", "RUN", "--port", "0"),
        ("export", "RUN", "--out", "OUT.onnx"),
        ("tune", "RUN", "--may-cost", "1%"),
        ("hub", "save", "RUN", "OUT"),
        ("train", "mnist67-180", "--start", "RUN", "--out", "OUT"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_refuses_damaged_weights(
    words: tuple[str, ...], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)  # it would serve for ever
    run = shutil.copytree(trained / "run", tmp_path / "run")
    damaged = _damage(run / "best.safetensors")
    places = {"RUN": run, "PHOTOS": trained / "my photos", "PHOTO": trained / "my photos" / "dark" / "1.png"}
    places |= {"OUT": tmp_path / "out", "OUT.onnx": tmp_path / "out.onnx"}
    result = vpgcnn(*(places.get(word, word) for word in words))
    assert result.returncode == 1
    assert result.stderr == (
        f"vpgcnn: {damaged} is damaged: its content does not match its checksum; use another copy, or write it again\n"
    )


def test_resume_refuses_a_damaged_state(trained: Path, tmp_path: Path) -> None:
    from vpgcnn.lab.training.loop import train

    run = shutil.copytree(trained / "run", tmp_path / "run")
    (run / "result.json").unlink()
    _damage(run / "state.safetensors")
    config = from_json(TrainConfig, read_json(run / "config.json"))
    with pytest.raises(UserError, match=r"state.safetensors is damaged: its content does not match its checksum"):
        train(config, run, resume=True)


def test_files_without_a_checksum_load_with_a_note(tmp_path: Path) -> None:
    path = save_network(tmp_path / "net.safetensors")
    with safe_open(path, framework="pt") as stream:
        text = stream.metadata()
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    assert text.pop("sha256") == checksum(text["description"], tensors)
    save_file(tensors, path, metadata=text)
    with pytest.warns(UserWarning, match=r"net.safetensors has no checksum .* damage to it would not be noticed"):
        model, _ = load_model(path)
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    save_file(tensors, path, metadata={**text, "sha257": "0" * 64})
    with pytest.raises(UserError, match=r"net.safetensors is damaged: .*'sha257'"):
        load_model(path)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.ones(2, 2, dtype=torch.bfloat16),
        torch.arange(6).view(2, 3).T,
        torch.zeros(2, dtype=torch.complex64),
    ],
    ids=["scalar", "empty", "bool", "bfloat16", "transposed", "complex"],
)
def test_tensors_of_every_kind_have_a_checksum(tensor: torch.Tensor, tmp_path: Path) -> None:
    save_tensors(tmp_path / "a.safetensors", {"x": tensor}, {"a": 1})
    tensors, description = read_tensors(tmp_path / "a.safetensors")
    assert torch.equal(tensors["x"], tensor)
    assert description == {"a": 1}


def test_a_checksum_covers_names_types_shapes_numbers_and_the_description() -> None:
    one = {"a": torch.zeros(2, 3), "b": torch.ones(2)}
    others: list[tuple[str, dict[str, torch.Tensor]]] = [
        ("{ }", one),
        ("{}", {"a": one["a"], "c": one["b"]}),
        ("{}", {"a": one["a"].view(torch.int32), "b": one["b"]}),
        ("{}", {"a": one["a"].view(3, 2), "b": one["b"]}),
        ("{}", {"a": one["a"], "b": torch.tensor([1.0, 1.0001])}),
        ("{}", {"a": one["a"]}),
    ]
    sums = {checksum(text, tensors) for text, tensors in [("{}", one), *others]}
    assert len(sums) == 1 + len(others)
    assert checksum("{}", dict(reversed(one.items()))) == checksum("{}", one)


def test_settings_changed_by_hand_say_how_to_keep_the_change(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_json(path, {"epochs": 3, "name": "Blüte"}, sealed=True)
    assert read_json(path) == {"epochs": 3, "name": "Blüte"}
    data = json.loads(path.read_text()) | {"epochs": 4}
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"config.json does not match its checksum: .* remove the line \"sha256\""):
        read_json(path)
    del data["sha256"]
    path.write_text(json.dumps(data))
    assert read_json(path)["epochs"] == 4


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_pickles_are_never_loaded_and_the_way_out_is_said(new: bool, tmp_path: Path) -> None:
    path = tmp_path / "plain.pth"
    torch.save({"weight": torch.zeros(2)}, path, _use_new_zipfile_serialization=new)
    said = vpgcnn("evaluate", path).stderr
    assert said.startswith(f"vpgcnn: {path} was written by torch.save, as a pickle, which can run code")
    assert "safetensors.torch.save_file(model.state_dict()" in said
    assert "vpgcnn convert --help" in said
    assert said.count("\n") == 1


def test_a_damaged_safetensors_file_is_not_called_a_pickle(tmp_path: Path) -> None:
    """Its first byte may be that of a pickle: it is the lowest one of the length of the header."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes((0x280).to_bytes(8, "little") + b'{"weight":{"dtype":"F32"')
    said = vpgcnn("evaluate", path).stderr
    assert said.startswith(f"vpgcnn: {path} is damaged or not a safetensors file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_what_is_no_file_is_written_and_not_replaced(tmp_path: Path) -> None:
    """As root, `vpgcnn predict RUN photos --csv /dev/null` put a file in the place of the device."""
    pipe, real, link = tmp_path / "pipe", tmp_path / "real.csv", tmp_path / "link.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_bytes(pipe, b"answers")
    assert os.read(reader, 100) == b"answers"
    os.close(reader)
    assert pipe.is_fifo()
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert sorted(tmp_path.iterdir()) == [link, pipe, real]
