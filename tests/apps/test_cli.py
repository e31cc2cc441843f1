"""The command line, as a person or a script uses it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from app_support import COLOR, PATIENCE, Result, make_photos, save_network, vpgcnn
from PIL import Image

from vpgcnn.apps.cli import COMMANDS, main
from vpgcnn.groups import SO2, Dihedral, Hue, Product, Rotations
from vpgcnn.lab.networks import PlainConfig
from vpgcnn.lab.networks.config import COLOR_CNN
from vpgcnn.lab.training.checkpoint import Card, load_model, read_card, save_model
from vpgcnn.lab.training.recipes import RECIPES
from vpgcnn.lab.training.record import read_settings
from vpgcnn.levels import Full, Shared, Variational, Window


def process(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    call = [sys.executable, "-m", "vpgcnn", *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, check=False, timeout=4 * PATIENCE, **options)


def assert_one_sentence(result: Result | subprocess.CompletedProcess[str], code: int) -> str:
    """Every refusal is a line on standard error that begins with the program's name."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("vpgcnn: ")
    return line


# ------------------------------------------------------------ help


def test_help_teaches_every_command() -> None:
    result = vpgcnn("--help")
    assert result.returncode == 0
    assert all(f"  {name}" in result.stdout for name in COMMANDS)
    assert "--use FILE.py" in result.stdout
    assert main([]) == 2
    assert vpgcnn("--version").stdout.startswith("vpgcnn 0.")
    for name in COMMANDS:
        result = vpgcnn(name, "--help")
        assert result.returncode == 0, result.stderr
        assert f"vpgcnn {name}" in result.stdout
        assert len(result.stdout.splitlines()) > 4
        assert max(map(len, result.stdout.splitlines())) <= 120


def test_every_setting_is_listed_with_its_value() -> None:
    result = vpgcnn("train", "cifar10-se2", "--preset", "paper", "--help-all")
    assert result.returncode == 0
    for words in ("--model.level", "--objective.peak", "(default: 300)", "--level-optimiser.lr", "--resume"):
        assert words in result.stdout
    assert "--objective.tolerance" in vpgcnn("train", "cifar10-se2", "--objective", "dual", "--help-all").stdout


def test_help_of_a_recipe_fits_a_screen_or_two_and_leads_to_the_rest() -> None:
    whole = vpgcnn("train", "cifar10-se2", "--preset", "paper", "--help-all").stdout
    short = vpgcnn("train", "cifar10-se2", "--preset", "paper", "--help")
    assert short.returncode == 0
    assert len(short.stdout.splitlines()) < 60 < 200 < len(whole.splitlines())
    for words in ("--epochs INT", "(default: 300)", "--model.level LEVEL", "--optimiser.lr FLOAT", "--help-all"):
        assert words in short.stdout
    assert "--augmenter.held" in whole
    assert "--augmenter.held" not in short.stdout
    assert "augmenter.* (" in short.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epochs", "x"], "--epochs takes a whole number, got 'x'"),
        (["--optimiser.lr", "fast"], "--optimiser.lr takes a number, got 'fast'"),
        (["--model.widths", "a", "b"], "--model.widths does not take 'a', 'b'"),
        (["--seed"], "--seed needs a value"),
        (["--data.augment", "shifts"], "--data.augment: unknown value 'shifts': did you mean shift?"),
        (["--device", "cuda"], "--device: unknown value 'cuda': choose from auto, cpu"),
        (["--objective.peak", "1"], "--objective.peak does not belong to this network or objective"),
        (["5"], "unexpected argument '5'"),
        (
            ["--model.group", "none", "--model.level", "shared"],
            "--model.level has no effect on a network without a group: leave it out, or choose a group",
        ),
        (["--seed", "-1"], "seed must be a whole number from 0 to 2⁶³ − 1, got -1"),
        (["--data.seed", "-1"], "data.seed must be a whole number from 0 to 2⁶³ − 1, got -1"),
    ],
    ids=str,
)
def test_a_wrong_value_gets_a_sentence_for_people(words: list[str], sentence: str, tmp_path: Path) -> None:
    result = vpgcnn("train", "mnist67-180", *words, "--data.source", "embedded", "--out", tmp_path / "run")
    assert result.returncode in (1, 2)
    assert result.stderr.removesuffix(" (see `vpgcnn train mnist67-180 --help`)\n").strip() == f"vpgcnn: {sentence}"
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------ processes


def test_a_process_ends_with_the_exit_code(tmp_path: Path) -> None:
    assert_one_sentence(process("train", "imagenet"), 1)
    assert process("info", "--json").returncode == 0
    nowhere = {**os.environ, "VPGCNN_DATA": str(tmp_path / "no")}
    result = process("train", "colormnist-lt", "--epochs", 1, "--out", tmp_path / "r", env=nowhere)
    assert f"there is no data directory {tmp_path / 'no'} (from VPGCNN_DATA)" in assert_one_sentence(result, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written_gets_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--help"], ["models", "--help"], ["datasets"]):
        with Path("/dev/full").open("w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            assert main(words) == 1
        assert capsys.readouterr().err == "vpgcnn: cannot write the output: No space left on device\n"
    monkeypatch.setattr(sys, "stdout", None)  # as after `vpgcnn datasets >&-`
    assert main(["datasets"]) == 0


def test_a_closed_pipe_is_no_error() -> None:
    line = f"{sys.executable} -m vpgcnn datasets --json | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_ctrl_c_saves_and_prints_how_to_continue(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos", 12)
    words = ["train", "mnist67-180", "--data.name", photos, "--out", tmp_path / "run", "--epochs", 100_000]
    words += ["--batch-size", 8, "--model.widths", 2, 2, 2, "--model.kernel-sizes", 4, 3, 3, "--threads", 1]
    call = [sys.executable, "-u", "-m", "vpgcnn", *map(str, words)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "epoch" in line and "1" in line:
                break
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1].startswith("continue with: vpgcnn train mnist67-180 ")
    assert errors.strip().endswith("--resume")
    assert (tmp_path / "run" / "state.safetensors").is_file()


# ------------------------------------------------------------ settings that are values


def tiny_run(photos: Path, out: Path, *words: object) -> Result:
    small = ["--data.name", photos, "--epochs", 1, "--batch-size", 8, "--threads", 1, "--out", out]
    small += ["--model.widths", 2, 2, 2, "--model.kernel-sizes", 3, 3, 3, "--model.stem-stride", 1]
    return vpgcnn("train", "mnist67-180", *small, *words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model.level", "full"], {"level": Full()}),
        (["--model.level", "shared"], {"level": Shared()}),
        (["--model.level", "Variational(Window(0.5))"], {"level": Variational(Window(0.5))}),
        (["--model.group", "SO2(3)", "--model.level=Full"], {"group": SO2(3), "level": Full()}),
    ],
    ids=["full", "shared", "window", "group"],
)
def test_levels_and_groups_are_written_as_in_python(
    words: list[str], expected: dict[str, object], trained: Path, tmp_path: Path
) -> None:
    result = tiny_run(trained / "my photos", tmp_path / "run", *words)
    assert result.returncode == 0, result.stderr
    config = read_settings(tmp_path / "run" / "last.safetensors")
    assert config is not None
    assert {name: getattr(config.model, name) for name in expected} == expected
    assert config.model == read_card(tmp_path / "run" / "last.safetensors").model


def test_the_rule_for_the_weight_of_the_kl_can_be_chosen(trained: Path, tmp_path: Path) -> None:
    words = ["--objective", "dual", "--objective.tolerance", "0.2", "--model.level", "full"]
    result = tiny_run(trained / "my photos", tmp_path / "run", *words)
    assert result.returncode == 0, result.stderr
    config = read_settings(tmp_path / "run" / "last.safetensors")
    assert config is not None
    assert (config.objective.name, config.objective.tolerance) == ("dual", 0.2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model.level", "ful"], "unknown level 'ful': did you mean full?"),
        (["--model.level", "Variatonal(Window(0.5))"], "unknown level 'Variatonal': did you mean Variational?"),
        (["--model.level", "Variational(Windw(0.5))"], "'Windw': did you mean Window?"),
        (["--model.level", "Variational(Window(7))"], "Window(7)"),
        (["--model.level", "Variational("], "'Variational(' is not a level: write one such as Variational()"),
        (["--model.level", "SO2(8)"], "'SO2(8)' is not a level"),
        (["--model.level", "__import__('os').getcwd()"], "unknown level"),
        (["--model.group", "S02(8)"], "did you mean SO2?"),
        (["--model.levle", "full"], "unknown setting --model.levle: did you mean --model.level?"),
        (["--model.no-dics"], "unknown setting --model.no-dics: did you mean --model.no-disc?"),
        (["--speed", "0.1"], "unknown setting --speed"),
    ],
)
def test_a_wrong_setting_gives_one_sentence_and_names_the_help(words: list[str], sentence: str, tmp_path: Path) -> None:
    result = vpgcnn("train", "mnist67-180", "--out", tmp_path / "run", *words)
    line = assert_one_sentence(result, 2)
    assert sentence in line
    assert "vpgcnn train mnist67-180 --help" in line
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------ plug-ins

PLUGIN = """
from dataclasses import dataclass
from vpgcnn.lab import specs
from vpgcnn.lab.data import DatasetEntry, register
from vpgcnn.levels import Window

@specs.register
@dataclass(frozen=True)
class HalfOpen(Window):
    initial: float = 0.25

def load(config, directory):
    raise NotImplementedError

register("nothing-at-all", DatasetEntry(load, about="for a test"))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plug-in; what it registers is forgotten after the test."""
    from vpgcnn.lab import specs
    from vpgcnn.lab.data import registry

    monkeypatch.setattr(specs, "_known", dict(specs._known))
    monkeypatch.setattr(registry, "DATASETS", registry.DATASETS)
    before = dict(registry.DATASETS)
    path = tmp_path / "mine_for_test.py"
    path.write_text(PLUGIN, encoding="utf-8")
    yield path  # type: ignore[misc]
    registry.DATASETS.clear()
    registry.DATASETS.update(before)
    sys.modules.pop("vpgcnn_plugin_mine_for_test", None)


def test_a_plug_in_works_before_every_command(plugin: Path, trained: Path, tmp_path: Path) -> None:
    for name in COMMANDS:
        assert vpgcnn("--use", plugin, name, "--help").returncode == 0
    assert "nothing-at-all" in vpgcnn(f"--use={plugin}", "datasets").stdout
    words = ["--model.level", "Variational(HalfOpen())"]
    result = tiny_run(trained / "my photos", tmp_path / "run", *words)
    assert result.returncode == 0, result.stderr
    assert vpgcnn("--use", plugin, "--use", plugin, "evaluate", tmp_path / "run", "--json").returncode == 0


def test_without_the_plug_in_its_names_are_unknown(trained: Path, tmp_path: Path) -> None:
    result = tiny_run(trained / "my photos", tmp_path / "run", "--model.level", "Variational(HalfOpen())")
    assert "'HalfOpen'" in assert_one_sentence(result, 2)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.py", None, "--use: there is no file"),
        ("plug.txt", "x = 1", "--use expects a Python file, got"),
        ("bad.py", "x = 1\ny = x / 0\n", "bad.py, line 2: ZeroDivisionError: division by zero"),
        ("worse.py", "def f(:\n", "SyntaxError"),
        ("lost.py", "import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_a_plug_in_that_cannot_be_loaded_is_named(
    name: str, content: str | None, sentence: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert sentence in assert_one_sentence(vpgcnn("--use", tmp_path / name, "models"), 1)


def test_use_needs_a_file_and_a_command(plugin: Path) -> None:
    assert "--use needs the path of a Python file" in assert_one_sentence(vpgcnn("--use"), 1)
    assert "--use FILE.py comes before a command" in assert_one_sentence(vpgcnn("--use", plugin), 2)


# ------------------------------------------------------------ evaluate and predict


def test_evaluate_prints_accuracy_and_levels(trained: Path, tmp_path: Path) -> None:
    result = vpgcnn("evaluate", trained / "run")
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "bright" in result.stdout
    data = json.loads(vpgcnn("evaluate", trained / "run", "--split", "validation", "--json", "--cost").stdout)
    assert 0 < data["cost"]["share"] <= 1
    assert data["cost"]["mean"] <= data["cost"]["whole"]
    assert "multiplications of the group convolutions" in vpgcnn("evaluate", trained / "run", "--cost").stdout
    assert data["split"] == "validation"
    assert set(data["theta"]["last"]) <= {"bright", "dark"}
    weights = trained / "run" / "best.safetensors"
    again = vpgcnn("evaluate", weights, "--data", trained / "my photos", "--json")
    assert json.loads(again.stdout)["images"] == 9  # those that it was not trained on
    shutil.copytree(trained / "my photos", tmp_path / "others")
    others = vpgcnn("evaluate", weights, "--data", tmp_path / "others", "--json")
    assert json.loads(others.stdout)["images"] == 60  # all of another folder


def test_evaluate_refuses_other_data_than_those_of_the_run(trained: Path, tmp_path: Path) -> None:
    """A test image of other data may have been a training image."""
    shutil.copytree(trained / "run", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(
        json.dumps({key: value for key, value in result.items() if key != "sha256"} | {"fingerprint": "of others"})
    )
    line = assert_one_sentence(vpgcnn("evaluate", tmp_path / "run"), 1)
    assert "was trained on different data" in line
    assert vpgcnn("evaluate", tmp_path / "run", "--data", trained / "my photos").returncode == 0  # on purpose


def test_levels_of_all_images_are_shown(trained: Path, tmp_path: Path) -> None:
    words = ["--data.name", trained / "my photos", "--data.size", 16, "--epochs", 1, "--batch-size", 16]
    words += ["--model.group", "none", "--model.level", "full", "--model.width", 2, "--model.depths", 1, 1, 1, 1]
    words += ["--augmenter.kind", "shared", "--augmenter.initial", 0.4, "--augmenter.transform", "rotation"]
    result = vpgcnn("train", "flowers102", *words, "--threads", 1, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    shown = vpgcnn("evaluate", tmp_path / "run")
    assert "θ, the same for all images: ranges 0.4" in shown.stdout, shown.stderr


def test_predict_prints_class_confidence_and_level(trained: Path, tmp_path: Path) -> None:
    Image.new("L", (50, 40), 220).save(tmp_path / "a.png")
    Image.new("RGB", (16, 16), "black").save(tmp_path / "b.jpg")
    result = vpgcnn("predict", trained / "run", tmp_path / "a.png", tmp_path / "b.jpg", "--json")
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    assert [Path(answer["file"]).name for answer in answers] == ["a.png", "b.jpg"]
    for answer in answers:
        assert answer["class"] in ("bright", "dark")
        assert 0.5 <= answer["confidence"] <= 1
        assert 0 < answer["theta"]["last"] <= 1
    assert "confidence" in vpgcnn("predict", trained / "run", tmp_path / "a.png").stdout
    # A file that cannot be read does not lose the others.
    (tmp_path / "bad.png").write_text("not an image")
    mixed = vpgcnn("predict", trained / "run", tmp_path / "bad.png", tmp_path / "a.png", "--json")
    assert mixed.returncode == 1
    assert "bad.png is not an image" in mixed.stderr
    first, second = json.loads(mixed.stdout)
    assert first == answers[0]
    assert second["file"].endswith("bad.png")
    assert "not an image" in second["error"]


def test_predict_names_images_without_a_hue(tmp_path: Path) -> None:
    card = Card(replace(COLOR_CNN, width=2), ("a", "b"), 3, 28, (0.5,), (0.5,))
    save_model(tmp_path / "net.safetensors", card.build(), card, {})
    Image.new("L", (28, 28), 200).save(tmp_path / "grey.png")
    Image.new("RGB", (28, 28), "red").save(tmp_path / "red.png")
    result = vpgcnn("predict", tmp_path / "net.safetensors", tmp_path / "grey.png", tmp_path / "red.png")
    assert result.returncode == 0, result.stderr
    assert "grey.png" in result.stderr
    assert "red.png" not in result.stderr


# ------------------------------------------------------------ lists and datasets


def test_lists_for_people_and_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    from vpgcnn.lab import networks

    monkeypatch.setattr(networks, "MODELS", {name: networks.MODELS[name] for name in ("se2-resnet", "resnet18-small")})
    models = json.loads(vpgcnn("models", "--json").stdout)
    assert models["se2-resnet"]["variational"] > models["se2-resnet"]["full"] > 400_000
    assert models["se2-resnet"]["variational"] > models["se2-resnet"]["shared"] > models["se2-resnet"]["t2"]
    assert "se2-resnet" in vpgcnn("models").stdout
    assert json.loads(vpgcnn("info", "--json").stdout)["torch"]
    assert "mnist67-180" in vpgcnn("datasets").stdout
    listed = vpgcnn("reproduce", "--list").stdout
    assert "fig-mnist67-180" in listed
    assert "table-flowers" in listed


def test_verify_distinguishes_damaged_from_missing(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    assert vpgcnn("datasets", "verify", "cifar10", "--data-dir", tmp_path).returncode == 1  # there are no files
    (folder / "test_batch").write_bytes(b"short")
    result = vpgcnn("datasets", "verify", "cifar10", "--data-dir", tmp_path, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["cifar-10-batches-py/test_batch"] == "damaged"


def test_flowers_are_verified_with_their_images(garden: Path) -> None:
    def verify() -> tuple[int, dict[str, str]]:
        result = vpgcnn("datasets", "verify", "flowers102", "--data-dir", garden, "--json")
        return result.returncode, json.loads(result.stdout)

    _, states = verify()
    assert states["flowers-102/jpg/image_*.jpg"] == "6 images"
    photograph = garden / "flowers-102" / "jpg" / "image_00005.jpg"
    photograph.write_bytes(photograph.read_bytes()[:300])
    code, states = verify()
    assert (code, states["flowers-102/jpg/image_00005.jpg"]) == (1, "damaged")
    shutil.rmtree(garden / "flowers-102" / "jpg")
    code, states = verify()
    assert (code, states["flowers-102/jpg/image_*.jpg"]) == (1, "missing")


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["fly"], 2, "unknown command 'fly'"),
        (["evalute", "x"], 2, "unknown command 'evalute': did you mean evaluate?"),
        (["train", "imagenet"], 1, "there is no folder or file imagenet, and no recipe of that name"),
        (["train", "mnist67-18"], 1, "unknown recipe 'mnist67-18': did you mean mnist67-180?"),
        (
            ["train", "mnist67-180", "--network", "se2-resnt"],
            1,
            "unknown network 'se2-resnt': did you mean se2-resnet?",
        ),
        (
            ["train", "mnist67-180", "--network", "se2-net", "--start", "x"],
            1,
            "--network and --start cannot be combined",
        ),
        (["train", "--group", "hue"], 1, "the recipe comes first"),
        (["train", "mnist67-180", "--data", "photos"], 1, "--data cannot be combined with the recipe mnist67-180"),
        (["train", "mnist67-180", "--group", "hue"], 1, "--group belongs to a folder of images"),
        (["train", "mnist67-180", "--preset", "gpu"], 2, "gpu"),
        (["train", "mnist67-180", "--epoch", "3"], 2, "did you mean --epochs?"),
        (["train", "mnist67-180", "--epochs", "three"], 2, "three"),
        (["train", "mnist67-180", "--augmenter.kind", "imag"], 2, "imag"),
        (["train", "mnist67-180", "--data.name", "nowhere", "--out", "{tmp}/r"], 1, "unknown dataset 'nowhere'"),
        (["train", "mnist67-180", "--out", "/dev/null/run"], 1, "/dev/null/run"),
        (["train", "cifar10-se2", "--data-dir", "{tmp}", "--out", "{tmp}/r"], 1, "datasets fetch cifar10"),
        (["train", "colormnist-lt", "--data-dir", "{tmp}/no", "--out", "{tmp}/r"], 1, "no data directory"),
        (["evaluate", "{tmp}/none"], 1, "{tmp}/none"),
        (["evaluate", "{tmp}"], 1, "no weights"),
        (["predict", "{tmp}/none", "a.png"], 1, "{tmp}/none"),
        (["convert", "{tmp}/none", "--hues", "3"], 1, "{tmp}/none"),
        (["datasets", "fetch"], 1, "name a dataset"),
        (["datasets", "fetch", "imagenet"], 1, "unknown dataset 'imagenet'"),
        (["datasets", "verify", "cifar"], 1, "unknown dataset 'cifar': did you mean cifar10"),
        (["datasets", "burn"], 2, "burn"),
        (["reproduce"], 1, "name a table or figure"),
        (["reproduce", "everything"], 1, "unknown experiment 'everything'"),
        (["reproduce", "table-cifar1"], 1, "did you mean table-cifar10"),
        (["reproduce", "table-cifar10", "--arms", "left"], 1, "unknown arm 'left'"),
        (["demo", "--epochs", "0", "--out", "{tmp}/d"], 1, "epochs must be at least 1, got 0"),
        (["demo", "--step", "7", "--out", "{tmp}/d"], 1, "step must divide 180, got 7"),
    ],
)
def test_errors_are_one_sentence(words: list[str], code: int, sentence: str, tmp_path: Path) -> None:
    result = vpgcnn(*(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert result.returncode == code, result.stderr
    assert sentence.replace("{tmp}", str(tmp_path)) in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert_one_sentence(result, 1)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was written"


def test_wrong_images_and_foreign_data_are_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not a picture")
    grey = make_photos(tmp_path / "photos", 4)
    (grey / "bright").rename(grey / "light")
    for words, sentence in (
        (["predict", trained / "run", tmp_path / "a.png"], "a.png is not an image"),
        (["predict", trained / "run", tmp_path / "b.png"], "b.png"),
        (["evaluate", trained / "run", "--data", grey], "the network expects 2 classes (bright, dark)"),
        (["train", "mnist67-180", "--out", trained / "run"], "already"),
    ):
        assert sentence in assert_one_sentence(vpgcnn(*words), 1)


def test_weights_of_the_last_version_are_refused_in_a_sentence(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, tmp_path / "old.safetensors", {"format": "vpgcnn-1", "description": "{}"})
    line = assert_one_sentence(vpgcnn("evaluate", tmp_path / "old.safetensors"), 1)
    assert "0.2" in line


# ------------------------------------------------------------ convert


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a small ordinary network."""
    path = tmp_path_factory.mktemp("plain") / "plain.safetensors"
    card = Card(PlainConfig(width=4, depths=(1, 1)), ("a", "b", "c"), 3, 16, (0.4,), (0.2,))
    torch.manual_seed(0)
    save_model(path, card.build(), card, {})
    return path


@pytest.mark.parametrize(
    ("words", "group", "level"),
    [
        (["--hues", 3], Hue(3), Variational()),
        (["--rotations", 4], Rotations(4), Variational()),
        (["--rotations", 4, "--mirror"], Dihedral(4), Variational()),
        (["--mirror", "--hues", 3], Product(Dihedral(1), Hue(3)), Variational()),
        (["--rotations", 2, "--hues", 3, "--level", "shared"], Product(Rotations(2), Hue(3)), Shared()),
        (["--group", "Product(Rotations(4), Hue(3))"], Product(Rotations(4), Hue(3)), Variational()),
    ],
    ids=["hues", "rotations", "dihedral", "mirror-hues", "shared", "group"],
)
def test_convert_keeps_the_answers(
    words: list[object], group: object, level: object, plain: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new.safetensors"
    result = vpgcnn("convert", plain, *words, "--out", target)
    assert result.returncode == 0, result.stderr
    assert "images of noise" in result.stdout
    model, card = load_model(target)
    assert card.model.group == group
    assert card.model.level == level
    images = torch.rand(5, 3, 16, 16)
    with torch.no_grad():
        before, after = load_model(plain)[0](images).logits, model(images).logits
    assert torch.allclose(before, after, atol=1e-5)
    assert model.network.group == group


def test_the_budget_of_mixing_is_kept(plain: Path, tmp_path: Path) -> None:
    mixed = {}
    for budget in ("0", "1"):
        target = tmp_path / f"{budget}.safetensors"
        assert vpgcnn("convert", plain, "--hues", 3, "--budget", budget, "--out", target).returncode == 0
        mixed[budget] = load_model(target)[0].network.cost.mixed
    assert mixed["0"] == 0 < mixed["1"]


def test_a_fully_converted_network_is_invariant_at_once(plain: Path, tmp_path: Path) -> None:
    target = tmp_path / "full.safetensors"
    assert vpgcnn("convert", plain, "--hues", 3, "--level", "full", "--out", target).returncode == 0
    model, images = load_model(target)[0], torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        assert torch.allclose(model(images).logits, model(images.roll(1, dims=1)).logits, atol=1e-5)


def test_softened_kernels_make_an_ordinary_network(plain: Path, tmp_path: Path) -> None:
    target = tmp_path / "soft.safetensors"
    result = vpgcnn("convert", plain, "--hues", 3, "--softness", 0, "--out", target)
    assert result.returncode == 0, result.stderr
    assert "1 convolution softened to 0" in result.stdout
    (model, card), images = load_model(target), torch.rand(4, 3, 16, 16)
    assert card == load_model(plain)[1]
    with torch.no_grad():
        assert torch.allclose(model(images).logits, model(images.roll(1, dims=1)).logits, atol=1e-5)
        assert not torch.allclose(model(images).logits, load_model(plain)[0](images).logits, atol=1e-3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no group to convert to"),
        (["--hues", "3", "--softness", "2"], "softness goes from 0 (equivariant) to 1 (the original), got 2"),
        (["--hues", "3", "--softness", "0.5", "--level", "full", "--mix", "none"], "--level, --mix cannot be combined"),
        (["--hues", "3", "--group", "Hue(3)"], "--group cannot be combined with --hues"),
        (["--group", "SO2(4)"], "finite group"),
        (["--group", "Hue(3"], "'Hue(3' is not a group"),
        (["--group", "Rotatons(4)"], "did you mean Rotations?"),
        (["--rotations", "3"], "3"),
        (["--hues", "0"], "0"),
        (["--hues", "3", "--levels", "nowhere"], "nowhere"),
        (["--hues", "3", "--mean", "0.5", "--std", "0.2"], "--mean, --std: only for MODULE:FUNCTION; "),
        (["--hues", "3", "--size", "0"], "--size: only for MODULE:FUNCTION; "),
        (["--hues", "3", "--grey", "--classes", "names.txt"], "--grey, --classes: only for MODULE:FUNCTION; "),
        (["--hues", "3", "--mix", "none", "--budget", "0.1"], "budget belongs to mix=\"auto\", got mix='none'"),
        (["--hues", "3", "--budget", "-1"], "at least 0, got -1"),
        (["--hues", "3", "--softness", "0.5", "--budget", "0"], "--budget cannot be combined"),
        (["--hues", "3", "--level", "Variationl()"], "did you mean Variational?"),
        (["--hues", "3", "--out", "{tmp}/net.onnx"], "--out must end in .safetensors, got 'net.onnx'"),
    ],
)
def test_what_cannot_be_converted(words: list[str], sentence: str, plain: Path, tmp_path: Path) -> None:
    target = [] if "--out" in words else ["--out", tmp_path / "new.safetensors"]
    result = vpgcnn("convert", plain, *(word.replace("{tmp}", str(tmp_path)) for word in words), *target)
    assert sentence in assert_one_sentence(result, 1)
    assert not list(tmp_path.iterdir())


def test_only_ordinary_networks_are_converted_and_only_once(plain: Path, tmp_path: Path) -> None:
    net = save_network(tmp_path / "color.safetensors", model=COLOR, channels=3)
    assert "only ordinary networks (plain) can be converted" in assert_one_sentence(
        vpgcnn("convert", net, "--hues", 3), 1
    )
    assert vpgcnn("convert", plain, "--hues", 3, "--out", tmp_path / "one.safetensors").returncode == 0
    again = vpgcnn("convert", tmp_path / "one.safetensors", "--rotations", 4)
    assert "is already converted to Hue(" in assert_one_sentence(again, 1)


# ------------------------------------------------------------ recipes, demo, experiments


def test_every_recipe_can_be_read_back() -> None:
    from vpgcnn.lab.config_io import from_json, to_json
    from vpgcnn.lab.training.config import TrainConfig

    papers = {"mnist67-180": 300, "cifar10-se2": 300, "cifar100-se2": 300, "cifar10-color": 300}
    papers |= {"colormnist-lt": 1500, "flowers102": 400}
    papers |= {
        "mnist-ranges": 6,
        "mnist-ranges-eighth": 6,
        "mnist-turn-hue": 20,
        "mnist-multiple": 6,
        "mnist-symmetry-breaking": 6,
    }  # these are not in the paper
    papers |= {"gtsrb-turn": 12, "gtsrb-mirror": 12, "gtsrb": 12, "gtsrb-colors": 6}
    for name, recipe in RECIPES.items():
        for config in (recipe.cpu, recipe.paper):
            assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config
        assert recipe.paper.epochs == papers[name]


def test_the_demo_ends_with_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vpgcnn.lab.training import recipes

    whole = recipes.demo_recipe()
    small = replace(whole, data=replace(whole.data, limit=128))
    monkeypatch.setattr(recipes, "demo_recipe", lambda: small)
    quick = ("--epochs", 1, "--step", 180, "--out", tmp_path / "demo")
    result = vpgcnn("demo", *quick)
    assert result.returncode == 0, result.stderr
    assert "1 epoch\n" in result.stdout
    report = tmp_path / "demo" / "report.html"
    assert result.stdout.strip().splitlines()[-1] == f"report: {report}"
    page = report.read_text(encoding="utf-8")
    for digit in "67":
        drawing = (tmp_path / "demo" / f"curve-{digit}.svg").read_text(encoding="utf-8")
        assert drawing.count("<title>") >= 2  # a tooltip for each of two networks
        assert drawing in page or drawing.count("<svg") == 1
    assert page.count("<title>") >= 1 + 4  # of the page, and two digits by two networks
    assert page.count('class="dial"') == 3  # 6, 7, 9 on the circle
    assert page.count('class="tile"') == 4
    assert page.count("data:image/png") == 4 * 9
    assert "http" not in page.replace("http://www.w3.org/", "").replace("http://purl.org/", "")  # loads nothing
    again = vpgcnn("demo", *quick)
    assert "finished" in again.stdout
    assert "--fresh" in assert_one_sentence(vpgcnn("demo", *quick, "--seed", 3), 1)
    assert vpgcnn("demo", *quick, "--seed", 3, "--fresh").returncode == 0


@pytest.mark.parametrize("command", ["demo", "diagnose"])
def test_a_missing_matplotlib_is_noticed_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("vpgcnn.lab.training.loop.train", lambda *_, **__: pytest.fail("it was trained"))
    monkeypatch.setattr("vpgcnn.lab.diagnosis.study.study", lambda *_, **__: pytest.fail("it was studied"))
    photos = make_photos(tmp_path / "photos", 2)
    net = save_network(tmp_path / "net.safetensors")
    words = {"demo": (), "diagnose": (net, "--data", photos, "--group", "rotation")}[command]
    result = vpgcnn(command, *words, "--out", tmp_path / "out")
    assert "figures need matplotlib: pip install 'vpgcnn[report]'" in assert_one_sentence(result, 1)
    assert not (tmp_path / "out").exists()
