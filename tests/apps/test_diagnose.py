"""vpgcnn diagnose: classifiers of every form, folders good and bad, the verdict, and the page in a browser."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vpgcnn import Hue, Variational, Window, convert
from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.lab.data.stream import ImageFolder
from vpgcnn.lab.diagnosis import look_words
from vpgcnn.lab.diagnosis.classifiers import Classifier, Standardised, open_classifier
from vpgcnn.lab.diagnosis.look import look
from vpgcnn.lab.diagnosis.study import Study, study
from vpgcnn.lab.diagnosis.words import verdict
from vpgcnn.measure import moves_of

SIZE = 16
HUE = ("--group", "hue")
COLORS = {"blue": (40, 60, 220), "green": (40, 200, 60), "red": (220, 50, 40)}


class ByColor(nn.Module):
    """Tells blue, green and red by the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 3)
        self.head.weight.data = 20 * torch.eye(3).flip(0)
        self.head.bias.data = torch.zeros(3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(images).flatten(1))


class BySaturation(ByColor):
    """Knows the classes of `dull` by what no rotation of RGB changes: the distance from grey."""

    def forward(self, images: Tensor) -> Tensor:
        apart = (images - images.mean(dim=1, keepdim=True)).square().sum(dim=1).mean(dim=(-2, -1)).sqrt()
        return -400 * (apart[:, None] - torch.tensor([0.05, 0.2, 0.4])).square()


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(3, 3)
        self.head.weight.data = 20 * torch.eye(3).flip(0)
        self.head.bias.data = torch.zeros(3)

    def forward(self, images):
        return self.head(self.pool(images).flatten(1))

def build():
    return Net()

def fails():
    raise RuntimeError("no weights here")

def number():
    return 3

class Some(Net):
    def forward(self, images):
        logits = super().forward(images)
        return torch.where(images[:, :1].mean((-2, -1)) > 0.6, torch.nan, logits)

def some():
    return Some()

fixed = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patches of three colours on grey, 12 of each."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name, color in COLORS.items():
        (root / name).mkdir()
        for number in range(12):
            pixels = np.full((20, 20, 3), 128, np.uint8)
            top, left = random.integers(0, 8, 2)
            pixels[top : top + 12, left : left + 12] = np.clip(np.array(color) + random.integers(-20, 20, 3), 0, 255)
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "net_of_a_user.py"
    path.write_text(NET, encoding="utf-8")
    return path


def classifier(model: nn.Module, classes: tuple[str, ...] | None = None) -> Classifier:
    return Classifier("net", model.eval(), SIZE, 3, classes, model)


@pytest.fixture(scope="module")
def found(photos: Path) -> Study:
    return study(classifier(ByColor()), ImageFolder.open(photos), moves_of("hue", 6), batch=8)


def test_a_network_that_goes_by_color_is_sensitive_and_rightly_so(found: Study) -> None:
    said = verdict(found)
    assert said["headline"] == "Sensitive to hue in 3 of 3 classes."
    assert said["advice"] == "hurt"
    assert "The classifier is probably right to be sensitive" in " ".join([*said["sentences"], said["text"]])
    plain = json.loads(json.dumps(found.as_json()))
    assert plain["accuracy"]["as it is"] == 1
    # A sixth either way it stays what it is or not, further off it never does.
    assert plain["accuracy"]["at"][2:5] == [0, 0, 0]
    assert plain["look"]["class_carried"] == "yes"
    assert plain["look"]["accuracy"]["with"] == 1
    assert plain["look"]["accuracy"]["without"] < 0.7
    assert {row["class"] for row in plain["classes"]} == set(COLORS)
    assert len(plain["images_each"]) == 36
    assert plain["images_each"][0]["file"].endswith("blue/00.png")
    assert plain["local"]["layers"]["pool"] > 0.1


@pytest.fixture(scope="module")
def dull(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes by saturation, of any hue: 60 of each."""
    root = tmp_path_factory.mktemp("dull")
    generator = torch.Generator().manual_seed(0)
    for name, apart in (("dull", 0.05), ("middle", 0.2), ("vivid", 0.4)):
        (root / name).mkdir()
        for number in range(60):
            angle = 2 * torch.pi * torch.rand((), generator=generator)
            first, second = torch.tensor([1.0, -1.0, 0.0]) / 2**0.5, torch.tensor([1.0, 1.0, -2.0]) / 6**0.5
            color = 0.5 + apart * (torch.cos(angle) * first + torch.sin(angle) * second)
            pixels = (255 * color.expand(20, 20, 3)).round().to(torch.uint8).numpy()
            Image.fromarray(pixels).save(root / name / f"{number:02d}.png")
    return root


def test_a_network_that_sees_no_hue_has_nothing_to_mend(dull: Path) -> None:
    found = study(classifier(BySaturation()), ImageFolder.open(dull), moves_of("linear-hue", 4))
    said = verdict(found)
    assert found.orbit.right.mean() == 1
    assert said["headline"] == "Accuracy is not sensitive to hue (the linear rotation of RGB)."
    assert said["advice"] == "keep"
    assert found.finding.carrying == "no"
    assert found.local is not None
    assert float(found.local.absolute.max()) < 1e-3 * 400


def test_hue_does_not_help_there_so_that_equivariance_could(dull: Path) -> None:
    """A network that is right about warm images only."""

    class Warm(BySaturation):
        def forward(self, images: Tensor) -> Tensor:
            cold = images[:, 2].mean(dim=(-2, -1)) > images[:, 0].mean(dim=(-2, -1))
            logits = super().forward(images)
            return torch.where(cold[:, None], logits.roll(1, 1), logits)

    found = study(classifier(Warm()), ImageFolder.open(dull), moves_of("linear-hue", 6))
    lost = float((found.orbit.right[0] - found.orbit.right.mean(dim=0)).mean())
    assert abs(lost) < 0.05  # hues are even: moving them loses as many as it gains
    warm = [place for place in range(180) if bool(found.orbit.right[0, place])]
    folder = ImageFolder.open(dull)
    kept = [found.places[place] for place in warm]
    folder.paths, folder.labels = [folder.paths[p] for p in kept], [folder.labels[p] for p in kept]
    said = verdict(study(classifier(Warm()), folder, moves_of("linear-hue", 6)))
    assert said["headline"] == "Sensitive to hue (the linear rotation of RGB) in 3 of 3 classes."
    assert said["advice"] == "help"
    assert "could help" in said["text"]


def test_chance_and_few_images_are_said(photos: Path, dull: Path) -> None:
    class Wrong(ByColor):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).roll(1, 1)

    said = verdict(study(classifier(Wrong()), ImageFolder.open(photos), moves_of("hue", 4)))
    assert said["advice"] == "chance"
    assert "--mean" in said["text"]
    few = study(classifier(BySaturation()), ImageFolder.open(dull, limit=12), moves_of("hue", 4))
    said = verdict(few)
    assert said["headline"] == "Too few images to tell whether it is sensitive to hue."
    assert said["advice"] in ("few", "chance")


class Thousand(ByColor):
    """Has many classes, and answers with one that the folder does not hold for more than half of the images."""

    def forward(self, images: Tensor) -> Tensor:
        other = torch.where((images.mean(dim=(1, 2, 3)) * 9973) % 1 > 0.35, 100.0, -100.0)
        return torch.cat([super().forward(images), other[:, None], torch.full((len(images), 6), -100.0)], dim=1)


def test_chance_counts_the_classes_of_the_model(photos: Path) -> None:
    """Right about less than half, but no guess among three classes: most answers are others of its ten classes."""
    names = ("blue", "green", "red", *"abcdefg")
    found = study(classifier(Thousand(), names), ImageFolder.open(photos), moves_of("hue", 4))
    assert 0.3 < float(found.orbit.right[0].mean()) < 0.5
    assert verdict(found)["advice"] != "chance"


def test_levels_of_converted_networks_are_read(photos: Path, tmp_path: Path) -> None:
    """A function may return a converted network: its θ is reported for the images as it takes them."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    net = convert(plain, Hue(3), level=Variational(Window(initial=0.7)), example=torch.rand(2, 3, SIZE, SIZE)).eval()
    nn.init.normal_(net.network[0].level.encoder.linear.weight, std=2.0)  # so that images differ
    module = Standardised(net, [0.5], [2.0])
    given = Classifier("net", module, SIZE, 3, ("blue", "green", "red"), module)
    found = study(given, ImageFolder.open(photos), moves_of("hue", 3))
    assert list(found.theta) == ["0"]
    assert found.theta["0"].shape == (36, 1)
    images = torch.stack([found.folder.image(place, SIZE, 3) for place in found.places])
    with torch.no_grad():
        assert torch.allclose(found.theta["0"], net((images - 0.5) / 2).theta["0"].cpu(), atol=1e-6)
    assert ["all windows of layer 0 are closed" in note for note in found.notes] == [
        bool((found.theta["0"] < 0.38).all())
    ]
    nn.init.zeros_(net.network[0].level.encoder.linear.weight)  # the same window for every image
    (note,) = study(given, ImageFolder.open(photos), moves_of("hue", 3)).notes
    assert "for every image: nothing in the images tells it" in note


def test_images_are_ranked_by_how_far_the_answer_moves(found: Study) -> None:
    most, least = found.ranked(4)
    moved = found.orbit.distance[1:].mean(dim=0)
    assert len(most) == len(least) == 4
    assert float(moved[most].min()) >= float(moved[least].max())
    assert float(moved[most[0]]) == pytest.approx(float(moved.max()))
    assert float(moved[least[0]]) == pytest.approx(float(moved.min()))


def test_layers_are_measured_on_a_few_images(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpgcnn.lab.diagnosis.study.LOCAL", 6)
    for batch in (5, 64):
        few = study(classifier(ByColor()), ImageFolder.open(photos), moves_of("hue", 4), batch=batch)
        assert few.local is not None
        assert few.local.absolute.shape == (6,)


# ------------------------------------------------------------ one evidence with `vpgcnn look`

AGREES = {
    "full": {"help", "keep"},
    "variational": {"help", "open", "partial", "twins", "hurt", "blind", "keep"},
    "leave": {"open", "partial", "twins", "hurt", "blind", "keep"},
    "unknown": {"open", "keep"},
}
"""What look advises, and what diagnose may then advise on the same images (few and chance are about the classifier)."""


def pictures(root: Path, kind: str, each: int, size: int = 20) -> Path:
    """Three classes: by hue, by the corner of a spot, by its size, or by nothing."""
    random = np.random.default_rng(1)
    y, x = np.mgrid[:size, :size] / (size - 1)
    for label, name in enumerate(COLORS):
        (root / name).mkdir(parents=True)
        for number in range(each):
            place = label if kind == "corner" else int(random.integers(4))
            wide = 0.02 + 0.04 * label if kind == "size" else 0.04
            spot = np.exp(-((x - 0.2 - 0.6 * (place % 2)) ** 2 + (y - 0.2 - 0.6 * (place // 2)) ** 2) / wide)
            color = np.array(COLORS[name] if kind == "hue" else random.permutation([40, 60, 220])) / 255
            noise = 0.03 * random.standard_normal((size, size, 3))
            pixels = random.random((size, size, 3)) if kind == "noise" else 0.2 + 0.7 * spot[..., None] * color + noise
            Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(root / name / f"{number:03d}.png")
    return root


class Knows(nn.Module):
    """Right about the images of a folder as they are; about others by chance, or always the same."""

    def __init__(self, folder: Path, sensitive: bool) -> None:
        super().__init__()
        listed = ImageFolder.open(folder)
        (batch,) = listed.batches(SIZE, 3, len(listed))
        self.register_buffer("known", batch.images.flatten(1))
        self.labels, self.reach = batch.labels, 1e-2 if sensitive else 1e9
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        distance, nearest = torch.cdist(images.flatten(1), self.known).min(dim=1)
        label = torch.where(distance < self.reach, self.labels[nearest], (self.labels[nearest] + 1) % 3)
        return 9 * nn.functional.one_hot(label, 3).float() + 0 * self.unused


@pytest.mark.parametrize("group", ["rotation", "hue"])
@pytest.mark.parametrize(
    ("kind", "each"), [("hue", 30), ("corner", 30), ("size", 45), ("size", 9), ("noise", 10), ("hue", 4)]
)
def test_it_never_contradicts_look(tmp_path: Path, kind: str, each: int, group: str) -> None:
    folder = pictures(tmp_path / "photos", kind, each)
    whole = look(folder)
    seen = look_words.verdict(whole)
    for sensitive in (True, False):
        model = Classifier("net", Knows(folder, sensitive), SIZE, 3)
        found = study(model, ImageFolder.open(folder, limit=30), moves_of(group, 4))
        said = verdict(found)
        assert f"without the classifier: {seen.headlines[group][0].lower()}{seen.headlines[group][1:]}." in str(said)
        missing = {*seen.sentences[group]} - {*said["sentences"], seen.follows[group]}
        assert not missing
        assert said["advice"] in {*AGREES[seen.advice[group]], "few", "chance"}
        assert found.as_json()["look"] == whole.as_json()["changes"][group]
        of_classes = {row["matters"] for row in found.classes()}
        assert not (found.finding.carrying == "no" and True in of_classes)
        assert not (found.finding.carrying == "yes" and of_classes == {False})


def test_look_and_diagnose_print_the_same_of_a_folder_in_parts(
    code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Look takes the training images; diagnose asks the classifier about test images, and look about the same ones."""
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "photos" / "train", "size", 40)
    pictures(tmp_path / "photos" / "test", "hue", 10)
    assert cli.main(["look", "photos", "--out", "seen"]) == 0
    sentence = next(line.strip() for line in capsys.readouterr().out.splitlines() if "carried by colour" in line)
    status, said, _ = run(capsys, f"{code}:build", "--data", "photos", *HUE, "--size", SIZE, "--out", "found")
    assert status == 0
    assert sentence in said


def test_batches_change_nothing(photos: Path, found: Study) -> None:
    again = study(classifier(ByColor()), ImageFolder.open(photos), moves_of("hue", 6), batch=5)
    assert torch.allclose(found.orbit.confidence, again.orbit.confidence)
    assert found.places == again.places


# ------------------------------------------------------------ classifiers of every form


def expected(pixels: Tensor) -> Tensor:
    return ByColor()((pixels - 0.5) / 0.25)


def test_a_function_of_a_module_or_file(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.rand(3, 3, SIZE, SIZE)
    monkeypatch.chdir(code.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in (f"{code}:build", "net_of_a_user:build", "net_of_a_user:Net"):
        own = open_classifier(name, size=SIZE, mean=[0.5] * 3, std=[0.25] * 3)
        assert torch.allclose(own.predict(pixels), expected(pixels), atol=1e-5)
        assert own.check() == 3
        assert own.module is not None


def test_an_exported_program(tmp_path: Path) -> None:
    pixels = torch.rand(5, 3, SIZE, SIZE)
    program = torch.export.export(ByColor(), (pixels[:2],))  # for batches of 2 alone
    torch.export.save(program, tmp_path / "net.pt2")
    own = open_classifier(str(tmp_path / "net.pt2"), mean=[0.5], std=[0.25], trust=True)
    assert own.size == SIZE
    assert torch.allclose(own.predict(pixels), expected(pixels), atol=1e-5)
    with pytest.raises(UserError, match=r"expects images of 16×16 pixels, got --size 32"):
        open_classifier(str(tmp_path / "net.pt2"), size=32, trust=True)
    with pytest.raises(UserError, match=r"expects images with 3 channels, got --grey"):
        open_classifier(str(tmp_path / "net.pt2"), channels=1, trust=True)


def test_what_was_exported_for_training_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), ByColor()).train()
    program = torch.export.export(
        model, (torch.rand(4, 3, SIZE, SIZE),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    own = open_classifier(str(tmp_path / "net.pt2"), trust=True)
    with pytest.raises(UserError, match="exported in training mode"):
        own.check()


def test_torchscript(tmp_path: Path) -> None:
    pixels = torch.rand(5, 3, SIZE, SIZE)
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.trace(ByColor(), pixels[:1]).save(tmp_path / "net.pt")
    own = open_classifier(str(tmp_path / "net.pt"), size=SIZE, mean=[0.5], std=[0.25], trust=True)
    assert torch.allclose(own.predict(pixels), expected(pixels), atol=1e-5)


def test_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="there is no onnx")
    pytest.importorskip("onnxruntime", reason="there is no onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array((20 * np.eye(3)[::-1]).astype(np.float32).copy(), "weights")
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["images"], ["means"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        ],
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    own = open_classifier(str(tmp_path / "net.onnx"), mean=[0.5], std=[0.25])
    pixels = torch.rand(5, 3, SIZE, SIZE)
    assert own.size == SIZE
    assert torch.allclose(own.predict(pixels), expected(pixels), atol=1e-4)
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"cannot read .*bad\.onnx as an ONNX model"):
        open_classifier(str(tmp_path / "bad.onnx"))


def test_probabilities_are_taken_for_what_they_are() -> None:
    class Sure(ByColor):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).softmax(dim=1)

    from vpgcnn.lab.diagnosis.classifiers import Standardised

    pixels = torch.rand(4, 3, SIZE, SIZE)
    one, two = (Standardised(model, [0.0], [1.0])(pixels).softmax(dim=1) for model in (ByColor(), Sure()))
    assert torch.allclose(one, two, atol=1e-5)


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (_write, (str(self.path), "w"))


def _write(path: str, _: str) -> None:
    Path(path).write_text("harm")


def test_nothing_that_could_run_is_opened_without_trust(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save(Harm(mark), tmp_path / "net.pt")
    (tmp_path / "net.pth").write_bytes(pickle.dumps(Harm(mark)))
    torch.export.save(torch.export.export(ByColor(), (torch.rand(2, 3, SIZE, SIZE),)), tmp_path / "good.pt2")
    with pytest.raises(UserError, match=r"can run any code when it is opened: add --trust"):
        open_classifier(str(tmp_path / "good.pt2"))
    for name in ("net.pt", "net.pth"):
        for trust in (False, True):  # trusted or not, a pickle is not TorchScript
            with pytest.raises(UserError, match=r"is not TorchScript, and files of torch\.save are never opened"):
                open_classifier(str(tmp_path / name), trust=trust)
    assert not mark.exists()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_precision(dtype: torch.dtype) -> None:
    from vpgcnn.lab.diagnosis.classifiers import Standardised

    pixels = torch.rand(4, 3, SIZE, SIZE)
    found = Standardised(ByColor().to(dtype), [0.0], [1.0])(pixels)
    assert found.dtype == torch.float32
    assert torch.allclose(found, ByColor()(pixels), atol=0.2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", "'nowhere' is not a classifier: give a run's folder"),
        ("no_such_module:build", "cannot import 'no_such_module'"),
        ("{code}:missing", "has no 'missing'"),
        ("{code}:fails", "failed: RuntimeError: no weights here"),
        ("{code}:number", "must return a torch.nn.Module, got int"),
        ("nofile.py:build", "there is no file nofile.py"),
        ("{code.parent}", "no weights"),
    ],
)
def test_what_is_no_classifier_is_said(name: str, words: str, code: Path) -> None:
    with pytest.raises(UserError, match=words):
        open_classifier(name.format(code=code))


# ------------------------------------------------------------ the command


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.main(["diagnose", *map(str, words)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_the_command_writes_a_page_and_json(
    photos: Path, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(photos, data)
    (data / "red" / "zz.png").write_bytes(b"not an image")
    Image.new("RGB", (20, 20), (90, 90, 90)).save(data / "green" / "grey.png")
    out = tmp_path / "out"
    status, said, errors = run(
        capsys, f"{code}:build", "--data", data, "--group", "hue", "--size", SIZE, "--steps", 6, "--out", out
    )
    assert status == 0
    assert "Sensitive to hue in 3 of 3 classes." in said
    assert said.rstrip().endswith(f"report: {out / 'report.html'}")
    assert "zz.png is not an image that can be read" in errors
    written = json.loads((out / "diagnosis.json").read_text())
    assert written["images"] == 36
    assert written["grey"] == [str(data / "green" / "grey.png")]
    assert list(written["skipped"]) == [str(data / "red" / "zz.png")]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "zz.png" in page
    assert "1 grey image, which has no hue" in page
    assert "1 grey image, which has no hue" in errors
    assert "http://" not in page.replace("http://www.w3.org/", "").replace("http://purl.org/", "")
    assert len(page) < 1_000_000
    assert sorted(path.name for path in out.iterdir()) == ["diagnosis.json", "report.html"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{code}:build", "--data", "{photos}", *HUE, "--steps", "1"], "--steps must be at least 2, got 1"),
        (["{code}:fixed", "--data", "{photos}", *HUE, "--size", "16"], "does not accept 2 images of 3×16×16"),
        (["{code}:build", "--data", "{photos}/red", *HUE], "needs a folder of images for each of at least 2"),
        (["{code}:build", "--data", "{photos}/none", *HUE], "there is no folder"),
        (["{code}:build", "--data", "{grey}", *HUE, "--size", "16"], "is all grey, and a grey image has no hue"),
        (["{code}:build", "--data", "{two}", *HUE, "--size", "16"], "has 3 classes, but got names for 2"),
        (["{code}:build", "--data", "{photos}", *HUE, "--std", "0"], "--std must be above 0, got 0"),
        (["{code}:build", "--data", "{photos}", *HUE, "--mean", "1", "2"], "3 channels, got 1, 2"),
        (["{code}:build", "--data", "{photos}", *HUE, "--limit", "0"], "limit must be at least 1, got 0"),
        (["{code}:build", "--data", "{photos}", *HUE, "--device", "toaster"], "there is no device 'toaster'"),
        (["{code}:build", "--data", "{photos}", *HUE, "--classes", "{photos}"], "cannot read class names"),
        (["{code}:build", "--data", "{bad}", *HUE, "--size", "16"], "no usable images in"),
        (["{code}:some", "--data", "{photos}", *HUE, "--size", "16"], "of 36 images with NaN or infinity"),
    ],
)  # fmt: skip
def test_bad_data_is_named_in_a_sentence(
    words: list[str], complaint: str, photos: Path, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {"photos": photos, "code": code}
    for kind, names in (("grey", COLORS), ("two", ["red", "green"]), ("bad", COLORS)):
        folders[kind] = tmp_path / kind
        for name in names:
            (tmp_path / kind / name).mkdir(parents=True)
            target = tmp_path / kind / name / "a.png"
            if kind == "bad":
                target.write_bytes(b"nothing")
            else:
                Image.new("L" if kind == "grey" else "RGB", (20, 20), 90 if kind == "grey" else (9, 90, 0)).save(target)
    out = tmp_path / "out"
    status, _, errors = run(capsys, *(word.format(**folders) for word in words), "--out", out)
    assert status == 1
    assert complaint in errors
    assert not out.exists()


def test_names_of_logits_may_be_given(
    photos: Path, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    words = [f"{code}:build", "--data", photos, "--group", "linear-hue", "--size", SIZE, "--steps", 3, "--json"]
    names.write_text("\ufeffred\ngreen\nblue\n", encoding="utf-8")  # as some editors begin a file
    status, said, _ = run(capsys, *words, "--classes", names, "--out", tmp_path / "out")
    assert status == 0
    assert json.loads(said)["accuracy"]["as it is"] == pytest.approx(1 / 3)  # blue and red are exchanged
    names.write_text("red\ngreen\nviolet\n")
    status, _, errors = run(capsys, *words, "--classes", names, "--out", tmp_path / "out")
    assert status == 1
    assert "blue is not a class of" in errors


def test_memory_does_not_depend_on_how_many_images_there_are(photos: Path) -> None:
    """Batches are read one after another, and none is kept."""
    folder = ImageFolder.open(photos)
    seen = []
    for batch in folder.batches(SIZE, 3, 8):
        seen.append(len(batch.images))
        assert len(batch.images) <= 8
    assert sum(seen) == len(folder) == 36
    assert len(ImageFolder.open(photos, limit=10)) == 10
    assert ImageFolder.open(photos, limit=10).paths == ImageFolder.open(photos, limit=10).paths


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium")
def test_the_page_opens_in_a_browser_and_its_table_sorts(
    photos: Path, code: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"{code}:build", "--data", photos, "--group", "hue", "--size", SIZE, "--out", tmp_path / "out"]
    assert run(capsys, *words)[0] == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    click = "<script>document.querySelector('table.sorted th button').click()</script></body>"
    (tmp_path / "sorted.html").write_text(page.replace("</body>", click), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run([*command, (tmp_path / "sorted.html").as_uri()], capture_output=True, text=True, timeout=240)
    assert "CONSOLE" not in done.stderr
    rows = [part.split('"')[1] for part in done.stdout.split("<tr><td data-value=")[1:]]
    assert rows == ["red", "green", "blue"]  # by name, the last first
    assert 'aria-sort="descending"' in done.stdout
    assert done.stdout.count("<svg") >= 10
    assert done.stdout.count("<img") == 12 * 12
