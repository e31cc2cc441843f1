"""The command line, as a person or a script would use it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vpgcnn.cli import COMMANDS, main
from vpgcnn.models.config import COLOR_CNN
from vpgcnn.training.checkpoint import Card, save_model
from vpgcnn.training.recipes import RECIPES


def vpgcnn(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "vpgcnn", *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 60 small pictures in a folder: dark and bright ones."""
    root = tmp_path_factory.mktemp("cli")
    noise = np.random.default_rng(0)
    for name, level in (("bright", 150), ("dark", 0)):
        (root / "photos" / name).mkdir(parents=True)
        for number in range(30):
            pixels = (level + noise.integers(0, 100, (16, 16))).astype(np.uint8)
            Image.fromarray(pixels).save(root / "photos" / name / f"{number}.png")
    words = ["train", "mnist67-180", "--data.name", root / "photos", "--out", root / "run", "--epochs", "4"]
    words += [
        "--batch-size",
        "8",
        "--model.widths",
        "3",
        "3",
        "4",
        "--model.stem-stride",
        "1",
        "--model.kernel-sizes",
        "3",
        "3",
        "3",
        "--threads",
        "1",
    ]
    result = vpgcnn(*words, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["test"]["images"] == 9
    return root


def test_help_teaches_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name}" in said for name in COMMANDS)
    assert main([]) == 2
    assert main(["--version"]) == 0
    for name in COMMANDS:
        result = vpgcnn(name, "--help")
        assert result.returncode == 0, result.stderr
        assert f"vpgcnn {name}" in result.stdout
        assert len(result.stdout.splitlines()) > 4


def test_every_setting_is_listed_with_its_value() -> None:
    result = vpgcnn("train", "cifar10-se2", "--preset", "paper", "--help")
    assert result.returncode == 0
    for words in ("--model.level", "--objective.tolerance", "(default: 300)", "--levels.kind", "--resume"):
        assert words in result.stdout


def test_evaluate_says_accuracy_and_levels(trained: Path, tmp_path: Path) -> None:
    result = vpgcnn("evaluate", trained / "run")
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "bright" in result.stdout
    data = json.loads(vpgcnn("evaluate", trained / "run", "--split", "validation", "--json").stdout)
    assert data["split"] == "validation"
    assert set(data["theta"]["last"]) <= {"bright", "dark"}
    weights = trained / "run" / "best.safetensors"
    again = vpgcnn("evaluate", weights, "--data", trained / "photos", "--json")
    assert json.loads(again.stdout)["images"] == 9  # those that it was not trained on
    shutil.copytree(trained / "photos", tmp_path / "others")
    others = vpgcnn("evaluate", weights, "--data", tmp_path / "others", "--json")
    assert json.loads(others.stdout)["images"] == 60  # all of another folder


def test_evaluate_refuses_other_data_than_those_of_the_run(trained: Path, tmp_path: Path) -> None:
    """What is a test image of other data may have been a training image."""
    shutil.copytree(trained / "run", tmp_path / "run")
    said = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps({**said, "fingerprint": "of others"}))
    result = vpgcnn("evaluate", tmp_path / "run")
    assert result.returncode != 0
    assert "was trained with other data than are there now" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert vpgcnn("evaluate", tmp_path / "run", "--data", trained / "photos").returncode == 0  # on purpose


def test_levels_of_all_images_are_shown(trained: Path, tmp_path: Path) -> None:
    words = ["--data.name", trained / "photos", "--data.size", "16", "--epochs", "1", "--batch-size", "16"]
    words += [
        "--model.elements",
        "1",
        "--model.level",
        "full",
        "--model.width",
        "2",
        "--model.depths",
        "1",
        "1",
        "1",
        "1",
    ]
    words += ["--augmenter.kind", "shared", "--augmenter.initial", "0.4", "--augmenter.transform", "rotation"]
    words += ["--threads", "1", "--out", tmp_path / "run"]
    result = vpgcnn("train", "flowers102", *words)
    assert result.returncode == 0, result.stderr
    shown = vpgcnn("evaluate", tmp_path / "run")
    assert "θ, the same for all images: ranges 0.4" in shown.stdout, shown.stderr


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


def test_predict_says_class_confidence_and_level(trained: Path, tmp_path: Path) -> None:
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


def test_lists_for_people_and_scripts() -> None:
    models = json.loads(vpgcnn("models", "--json").stdout)
    assert models["se2-resnet"]["variational"] > models["se2-resnet"]["full"] > 400_000
    assert "se2-resnet" in vpgcnn("models").stdout
    assert json.loads(vpgcnn("info", "--json").stdout)["torch"]
    assert "mnist67-180" in vpgcnn("datasets").stdout
    assert "fig-mnist67-180" in vpgcnn("reproduce", "--list").stdout


def test_verify_tells_damaged_from_missing(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    assert vpgcnn("datasets", "verify", "cifar10", "--data-dir", tmp_path).returncode == 1  # nothing is there
    (folder / "test_batch").write_bytes(b"short")
    result = vpgcnn("datasets", "verify", "cifar10", "--data-dir", tmp_path, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["cifar-10-batches-py/test_batch"] == "damaged"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["fly"], 2, "unknown command 'fly'"),
        (["train", "imagenet"], 1, "unknown recipe 'imagenet'"),
        (["train", "mnist67-180", "--preset", "gpu"], 2, "gpu"),
        (["train", "mnist67-180", "--epoch", "3"], 2, "--epoch"),
        (["train", "mnist67-180", "--epochs", "three"], 2, "three"),
        (["train", "mnist67-180", "--model.level", "half"], 2, "half"),
        (["train", "mnist67-180", "--data.name", "nowhere", "--out", "{tmp}/r"], 1, "unknown dataset 'nowhere'"),
        (["train", "mnist67-180", "--out", "/dev/null/run"], 1, "/dev/null/run"),
        (["train", "cifar10-se2", "--data-dir", "{tmp}", "--out", "{tmp}/r"], 1, "datasets fetch cifar10"),
        (["train", "colormnist-lt", "--data-dir", "{tmp}/no", "--out", "{tmp}/r"], 1, "no data directory"),
        (["evaluate", "{tmp}/none"], 1, "{tmp}/none"),
        (["evaluate", "{tmp}"], 1, "holds no weights"),
        (["predict", "{tmp}/none", "a.png"], 1, "{tmp}/none"),
        (["datasets", "fetch"], 1, "which dataset?"),
        (["datasets", "fetch", "imagenet"], 1, "unknown dataset 'imagenet'"),
        (["datasets", "burn"], 2, "burn"),
        (["reproduce", "everything"], 1, "unknown experiment 'everything'"),
        (["reproduce", "table-cifar10", "--arms", "left"], 1, "unknown arm 'left'"),
        (["demo", "--epochs", "0", "--out", "{tmp}/d"], 1, "epochs must be at least 1, got 0"),
        (["demo", "--step", "7", "--out", "{tmp}/d"], 1, "step must divide 180, got 7"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    result = vpgcnn(*(word.replace("{tmp}", str(tmp_path)) for word in words))
    assert result.returncode == code, result.stderr
    assert said.replace("{tmp}", str(tmp_path)) in result.stderr
    assert "Traceback" not in result.stderr
    if code == 1:
        assert len(result.stderr.strip().splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was written"


def test_a_variable_that_names_no_directory_is_not_passed_over(tmp_path: Path) -> None:
    nowhere = {**os.environ, "VPGCNN_DATA": str(tmp_path / "no")}
    result = vpgcnn("train", "colormnist-lt", "--epochs", "1", "--out", tmp_path / "r", env=nowhere)
    assert result.returncode == 1
    assert f"there is no data directory {tmp_path / 'no'} (from VPGCNN_DATA)" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_wrong_setting_names_the_help_that_lists_it() -> None:
    result = vpgcnn("train", "colormnist-lt", "--model.level", "half")
    assert "vpgcnn train colormnist-lt --help" in " ".join(result.stderr.split())


def test_predict_says_which_images_have_no_hue(tmp_path: Path) -> None:
    card = Card(replace(COLOR_CNN, width=2), ("a", "b"), 3, 28, 0.5, 0.5)
    save_model(tmp_path / "net.safetensors", card.build(), card, {})
    Image.new("L", (28, 28), 200).save(tmp_path / "grey.png")
    Image.new("RGB", (28, 28), "red").save(tmp_path / "red.png")
    result = vpgcnn("predict", tmp_path / "net.safetensors", tmp_path / "grey.png", tmp_path / "red.png")
    assert result.returncode == 0, result.stderr
    assert "grey.png" in result.stderr
    assert "red.png" not in result.stderr


def test_wrong_images_and_foreign_data_are_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not a picture")
    for words, said in (
        (["predict", trained / "run", tmp_path / "a.png"], "a.png is not an image"),
        (["predict", trained / "run", tmp_path / "b.png"], "b.png"),
        (["evaluate", trained / "run", "--data", "mnist"], "the network knows 2 classes (bright, dark)"),
        (["train", "mnist67-180", "--out", trained / "run"], "holds a run already"),
    ):
        result = vpgcnn(*words)
        assert result.returncode == 1
        assert said in result.stderr
        assert "Traceback" not in result.stderr


def test_a_closed_pipe_is_no_error() -> None:
    line = f"{sys.executable} -m vpgcnn models --json | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_every_recipe_can_be_read_back() -> None:
    from vpgcnn.serial import from_json, to_json
    from vpgcnn.training.config import TrainConfig

    papers = {"mnist67-180": 300, "cifar10-se2": 300, "cifar100-se2": 300, "cifar10-color": 300}
    papers |= {
        "colormnist-lt": 1500,
        "flowers102": 400,
        "mnist-ranges": 6,
        "mnist-turn-hue": 20,
    }  # the last two are not in it
    for name, recipe in RECIPES.items():
        for config in (recipe.cpu, recipe.paper):
            assert from_json(TrainConfig, json.loads(json.dumps(to_json(config)))) == config
        assert recipe.paper.epochs == papers[name]


QUICK = ("--epochs", "1", "--step", "90")


def test_the_demo_ends_with_its_report(tmp_path: Path) -> None:
    result = vpgcnn("demo", *QUICK, "--out", tmp_path / "demo")
    assert result.returncode == 0, result.stderr
    report = tmp_path / "demo" / "report.html"
    assert result.stdout.strip().splitlines()[-1] == f"report: {report}"
    page = report.read_text(encoding="utf-8")
    assert page.count("<polyline") == 4  # two digits, two networks
    assert page.count("<polygon") == 4  # each with a band
    assert page.count('class="window"') == 3  # 6, 7, 9 on the circle
    assert page.count('class="tile"') == 4
    assert page.count("data:image/png") == 4 * 9
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded from elsewhere
    again = vpgcnn("demo", *QUICK, "--out", tmp_path / "demo")
    assert "is finished" in again.stdout
    other = vpgcnn("demo", *QUICK, "--seed", "3", "--out", tmp_path / "demo")
    assert other.returncode == 1
    assert "--fresh" in other.stderr
    assert vpgcnn("demo", *QUICK, "--seed", "3", "--fresh", "--out", tmp_path / "demo").returncode == 0


def test_an_experiment_is_written_arm_by_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from vpgcnn.experiments import registry, runner
    from vpgcnn.training.progress import Quiet

    chosen = registry.EXPERIMENTS["fig-mnist67-180"]

    def small(config: object) -> object:
        data = replace(config.data, source="embedded", limit=128)  # type: ignore[attr-defined]
        return replace(config, epochs=1, data=data)  # type: ignore[type-var]

    arms = {name: lambda config, arm=arm: small(arm(config)) for name, arm in chosen.arms.items()}
    quick = replace(chosen, arms=arms)
    monkeypatch.setattr("vpgcnn.experiments.digits.ANGLES", (-180, -90, -60, 0, 60, 90, 180))
    places = runner.Places(tmp_path / "runs", tmp_path / "results", {}, Quiet())

    def go(arms: list[str]) -> dict[str, object]:
        target = runner.run(quick, "fig-mnist67-180", places, preset="cpu", arms=arms, seeds=[4])
        data: dict[str, object] = json.loads(target.read_text())
        return data

    first = go(["full"])
    assert [row["arm"] for row in first["rows"]] == ["full"]  # type: ignore[attr-defined]
    second = go(["variational", "full"])
    rows = second["rows"]
    assert [row["arm"] for row in rows] == ["variational", "full"]  # type: ignore[attr-defined]
    assert rows[1] == first["rows"][0]  # type: ignore[index]
    wanted = {"test", "curves", "flip_angles", "theta", "theta_auroc", "figures", "commit", "config", "seconds"}
    assert wanted <= set(rows[0])  # type: ignore[index]
    page = (tmp_path / "results" / "mnist67-180.md").read_text()
    assert page.count("\n| variational | 4 |") == 1
    # Without the runs' folders, the result alone says that they are done.
    monkeypatch.setattr(runner, "train", lambda *_, **__: pytest.fail("it was run again"))
    places = replace(places, runs=tmp_path / "elsewhere")
    assert go(["variational", "full"]) == second
    # Nor does a row from before a setting existed have to be made again, as long as it has its default.
    for row in second["rows"]:  # type: ignore[attr-defined]
        del row["config"]["model"]["antialias"]
    (tmp_path / "results" / "mnist67-180.json").write_text(json.dumps(second))
    assert go(["variational", "full"]) == second
    # A row of a setting that is no more is of another experiment.
    second["rows"][1]["config"]["model"]["colour"] = "red"  # type: ignore[index]
    (tmp_path / "results" / "mnist67-180.json").write_text(json.dumps(second))
    assert [row["arm"] for row in go(["variational"])["rows"]] == ["variational"]  # type: ignore[attr-defined]
