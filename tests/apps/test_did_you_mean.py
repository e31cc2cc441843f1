"""A command line that helps: what was meant is said, and no advice leads to the next refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from app_support import make_photos, save_network, vpgcnn

from vpgcnn.groups import Hue
from vpgcnn.lab.experiments import registry
from vpgcnn.lab.networks import PlainConfig
from vpgcnn.lab.training.checkpoint import read_card
from vpgcnn.lab.training.record import read_settings


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian", "unknown command 'trian': did you mean train?"),
        ("train flower102", "unknown recipe 'flower102': did you mean flowers102?"),
        ("train mnist67-180 --learning-rate 1", "unknown setting --learning-rate: did you mean --lr?"),
        ("train mnist67-180 --level full", "unknown setting --level: did you mean --model.level?"),
        ("train mnist67-180 --batch 8", "unknown setting --batch: did you mean --batch-size?"),
        ("train mnist67-180 --reusme", "unknown setting --reusme: did you mean --resume?"),
        ("train mnist67-180 --objective prise", "--objective: unknown value 'prise': did you mean price?"),
        ("train --data x --group rotations", "--group: unknown value 'rotations': did you mean rotation?"),
        ("train mnist67-180 --epochs three", "--epochs takes a whole number, got 'three'"),
        ("train mnist67-180 --model.widths 2 x", "--model.widths does not take '2', 'x'"),
        ("train mnist67-180 --model.level", "--model.level needs a value"),
        ("train mnist67-180 --augmenter.kind imag", "--augmenter.kind: unknown value 'imag': did you mean image?"),
        ("train mnist67-180 extra", "unexpected argument 'extra' (see `vpgcnn train mnist67-180 --help`)"),
        ("train notes.txt", "notes.txt is a file: give the folder of the images, or an .npz file"),
        ("evaluate x --splt test", "unknown option --splt: did you mean --split? (see `vpgcnn evaluate --help`)"),
        ("evaluate x --split tset", "--split: unknown value 'tset': did you mean test?"),
        ("evaluate x --split 7", "--split: unknown value '7': choose from test, validation, train, all"),
        ("evaluate x y", "unexpected argument 'y'"),
        ("evaluate", "the following arguments are required: run"),
        ("convert x --rotation 4", "unknown option --rotation: did you mean --rotations?"),
        ("datasets ferch mnist", "action: unknown value 'ferch': did you mean fetch?"),
        ("hub sav x y", "save | push: unknown value 'sav': did you mean save?"),
        ("hub save x y --licence mit", "unknown option --licence: did you mean --license?"),
        ("export x --format onx", "--format: unknown value 'onx': did you mean onnx?"),
        ("reproduce table-cifar10 --arms ful", "unknown arm 'ful': did you mean full?"),
        ("reproduce tabel-cifar10", "unknown experiment 'tabel-cifar10': did you mean table-cifar10?"),
        ("train mnist67-180 --epochs 1 --epochs 2", "--epochs is given twice: leave one out"),
        ("train mnist67-180 --seed 1 --out a --out=b", "--out is given twice: leave one out"),
        ("evaluate x --split test --split all", "--split is given twice: leave one out"),
        ("look x --out /proc/look", "cannot write to /proc/look: /proc is not a writable folder"),
        ("predict x y.png --csv /proc/x.csv", "cannot write /proc/x.csv: /proc is not a writable folder"),
        ("serve x --port 99999", "--port must be a number from 0 to 65535, got 99999"),
        ("train nowhere/photos", "there is no folder or file nowhere/photos"),
        (
            "train quite-another",
            "there is no folder or file quite-another, and no recipe of that name: recipes are mni",
        ),
        ("train", "name a recipe or a folder of images: vpgcnn train mnist67-180"),
        ("train two --start x --group hue", "--group cannot be combined with --start, which sets the group already"),
        ("train two --group hue --model.group SO2(8)", "--group cannot be combined with --model.group, which sets"),
        ("train two --nonsense 1", "unknown setting --nonsense: did you mean --seed? (see `vpgcnn train two --help`)"),
        ("train mnist67-180 --warmup 7", "warmup is a share of the training, from 0 to below 1, got 7\n"),
        (
            "train mnist67-180 --model.width 8",
            "--model.width does not belong to this network or objective: did you mean --model.widths?",
        ),
        ("train mnist67-180 --objective.nats -1", "--objective: a price must not be negative"),
        ("reproduce table-cifar10 --epochs 1 --results here", "--epochs is a trial, whose results are kept apart"),
        ("reproduce table-calibration --epochs 1", "table-calibration trains no network by epochs"),
        ("reproduce table-cifar10 --epochs 0", "--epochs must be at least 1, got 0"),
    ],
)
def test_what_was_meant_is_said_in_one_sentence(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "two").mkdir()
    result = vpgcnn(*words.split())
    assert result.returncode in (1, 2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"vpgcnn: {sentence}"), result.stderr
    assert result.stderr.count("\n") == 1


def test_a_folder_may_stand_where_a_recipe_does(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 10)
    small = ["--group", "rotation", "--model.widths", 2, 2, 2, "--epochs", 1, "--threads", 1]
    result = vpgcnn("train", photos, "--out", tmp_path / "run", *small)
    assert result.returncode == 0, result.stderr
    config = read_settings(tmp_path / "run" / "last.safetensors")
    assert config is not None
    assert config.data.name == str(photos)
    both = vpgcnn("train", photos, "--data", photos)
    assert both.stderr == "vpgcnn: the folder is given twice: leave out --data\n"


def test_a_recipe_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers102").mkdir()
    assert "flowers102 needs a folder of images" in vpgcnn("train", "./flowers102").stderr
    assert "data" in vpgcnn("train", "flowers102", "--data-dir", tmp_path / "no").stderr


def test_convert_takes_hue_for_hues(tmp_path: Path) -> None:
    config = PlainConfig(width=4, depths=(1, 1))
    weights = save_network(tmp_path / "plain.safetensors", model=config, channels=3, size=16)
    result = vpgcnn("convert", weights, "--hue", 3, "--out", tmp_path / "new.safetensors")
    assert result.returncode == 0, result.stderr
    assert read_card(tmp_path / "new.safetensors").model.group == Hue(3)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["plain.pth", "plain.pt"])
@pytest.mark.parametrize("old", [True, False], ids=["pickle", "zip"])
@pytest.mark.parametrize("trust", [[], ["--trust"]], ids=["", "trust"])
def test_a_file_of_torch_save_needs_no_second_question(name: str, old: bool, trust: list[str], tmp_path: Path) -> None:
    """The advice to add --trust led to a refusal."""
    torch.save({"weight": torch.zeros(2)}, tmp_path / name, _use_new_zipfile_serialization=not old)
    photos = make_photos(tmp_path / "photos", 3)
    result = vpgcnn("diagnose", tmp_path / name, "--data", photos, "--group", "rotation", *trust)
    assert result.returncode == 1
    assert "--trust" not in result.stderr
    assert "files of torch.save are never opened" in result.stderr
    assert "my_models.py:build" in result.stderr
    assert result.stderr.count("\n") == 1


def test_torchscript_still_asks_for_trust(tmp_path: Path) -> None:
    path = tmp_path / "script.pt"
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        torch.jit.script(torch.nn.Flatten()).save(str(path))
    words = ["--data", make_photos(tmp_path / "photos", 3), "--group", "rotation"]
    assert "add --trust" in vpgcnn("diagnose", path, *words).stderr
    missing = vpgcnn("diagnose", tmp_path / "net.onnx", *words)
    assert missing.stderr == f"vpgcnn: there is no file {tmp_path / 'net.onnx'}\n"


def test_weights_of_others_lead_to_a_command_that_takes_them(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "theirs.safetensors")
    line = vpgcnn("evaluate", tmp_path / "theirs.safetensors").stderr
    assert "was not written by vpgcnn" in line
    assert "vpgcnn convert --help" in line


def test_the_list_says_how_long_on_what_and_where_in_the_paper(tmp_path: Path) -> None:
    listed = vpgcnn("reproduce", "--list", "--results", Path(__file__).parents[2] / "results").stdout
    about = {name: "".join(listed.split(f"{name}: ", 1)[1].splitlines()[:2]) for name in registry.REPRODUCTIONS}
    assert "Table 1 of the paper" in about["table-cifar10"]
    assert "data: cifar10" in about["table-cifar10"]
    assert "Figure 4 of the paper" in about["fig-mnist67-180"]
    assert "Table 3 of the paper" in about["table-calibration"]
    assert "data: flowers102" in about["table-calibration"]
    assert all("of the paper" in text or "not in the paper" in text for text in about.values())
    assert "minutes for 27 runs" in about["fig-mnist67-180"]
    assert "table-flowers.json" in about["table-calibration"]  # whose networks it looks at
    nowhere = vpgcnn("reproduce", "--list", "--results", tmp_path).stdout
    assert "minutes for" not in nowhere
    assert "data: cifar10" in nowhere
