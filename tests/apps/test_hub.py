"""Networks as folders for the hub: the same answers, a page with the true numbers, nothing lost and nothing leaked."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from app_support import PATIENCE, vpgcnn

from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.groups import O2, SO2, Hue, Product, Rotations
from vpgcnn.kernels import Siren
from vpgcnn.lab.config_io import to_json
from vpgcnn.lab.data import DataConfig, Split, load
from vpgcnn.lab.networks import AugmenterConfig, ModelConfig, PlainConfig, SE2Config, ordinary
from vpgcnn.lab.networks.config import COLOR_CNN, COLOR_RESNET, DIGITS, RESNET_SMALL
from vpgcnn.lab.training.checkpoint import Card, load_model, read_tensors, save_model
from vpgcnn.lab.training.record import Record, read_record
from vpgcnn.lab.training.run import chosen_weights
from vpgcnn.levels import Full, GumbelSoftmax, RankedSoftmax, ReparametrizedWindow, Shared, Variational
from vpgcnn.measure import read_levels

huggingface_hub = pytest.importorskip("huggingface_hub", reason="there is no huggingface_hub")

from vpgcnn.apps.hub import Pretrained  # noqa: E402
from vpgcnn.apps.hub.card import MARK  # noqa: E402
from vpgcnn.apps.hub.folder import FILES  # noqa: E402

PLAIN = replace(DIGITS, widths=(2, 2, 3), kernel=Siren(hidden=6, omega=4.0))
RESIDUAL = replace(RESNET_SMALL, widths=(2, 2, 3, 3), kernel_sizes=(3, 3, 3), kernel=Siren(hidden=6))
CNN, RESNET = replace(COLOR_CNN, width=2), replace(COLOR_RESNET, width=4, depths=(1, 1, 1, 1))
BUILT = {"digits": PLAIN, "se2-resnet": RESIDUAL, "color-cnn": CNN, "color-resnet": RESNET}
NETWORKS: dict[str, tuple[ModelConfig, AugmenterConfig]] = {
    f"{name}-{word}": (model if level is None else replace(model, level=level), AugmenterConfig())
    for name, model in BUILT.items()
    for word, level in (("variational", None), ("shared", Shared()), ("full", Full()))
}
NETWORKS |= {
    "rotations": (replace(PLAIN, group=Rotations(4)), AugmenterConfig()),
    "mirrors": (replace(PLAIN, group=O2(4)), AugmenterConfig()),
    "reparametrized": (replace(PLAIN, level=Variational(ReparametrizedWindow())), AugmenterConfig()),
    "ranked": (replace(CNN, level=Variational(RankedSoftmax())), AugmenterConfig()),
    "gumbel": (replace(CNN, level=Variational(GumbelSoftmax())), AugmenterConfig()),
    "ordinary": (ordinary(PLAIN), AugmenterConfig()),
    "ordinary-color": (ordinary(CNN), AugmenterConfig()),
    "product": (replace(PLAIN, group=Product(SO2(8), Hue(3))), AugmenterConfig()),
    "ordinary-plain": (PlainConfig(width=2), AugmenterConfig()),
    "converted": (PlainConfig(width=2, group=Hue(3), level=Variational()), AugmenterConfig()),
} | {
    f"behind-{kind}": (ordinary(PLAIN), AugmenterConfig(kind, samples=3, width=2))  # type: ignore[arg-type]
    for kind in ("fixed", "shared", "image", "policy", "reweighted", "autoaugment")
}


def network(name: str) -> Pretrained:
    """A network of this kind, whose norms have seen images, with a card and no record."""
    model, augmenter = NETWORKS[name]
    channels = 1 if isinstance(model, SE2Config) and not model.group.acts_on_rgb else 3
    size = 32 if isinstance(model, SE2Config) and model.block == "residual" else 28
    card = Card(model, ("one", "two", "three"), channels, size, (0.2,), (0.3,), "mnist", augmenter)
    built = card.build()
    with torch.no_grad():
        built.train()(torch.rand(4, channels, size, size))
    return Pretrained(built.eval(), card)


def test_both_circles_of_a_product_are_on_the_page(tmp_path: Path) -> None:
    net = network("product")
    net.measure(Split(pixels(net, 6), torch.arange(6) % 3), "images")
    assert [level.layer for level in net.record.levels] == ["last rotation", "last hue"]
    net.save_pretrained(tmp_path / "net")
    text = (tmp_path / "net/README.md").read_text()
    assert "rotations by any angle (of which it computes 8) and hue shifts by multiples of 120°" in text
    assert "| last hue |" in text


def test_the_page_of_a_converted_network_says_to_what(tmp_path: Path) -> None:
    for name, said in (("converted", "It is built on hue shifts by multiples of 120°"), ("ordinary-plain", "ordinary")):
        network(name).save_pretrained(tmp_path / name)
        assert said in (tmp_path / name / "README.md").read_text()


def pixels(net: Pretrained, count: int = 4) -> torch.Tensor:
    return torch.randint(0, 256, (count, net.card.channels, net.card.size, net.card.size), dtype=torch.uint8)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_comes_back_with_the_same_answers(name: str, tmp_path: Path) -> None:
    net = network(name)
    images = pixels(net).float() / 255
    net.save_pretrained(tmp_path / "net")
    assert sorted(path.name for path in (tmp_path / "net").iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]
    again = Pretrained.from_pretrained(tmp_path / "net")
    model, card = load_model(tmp_path / "net" / "model.safetensors")
    assert card == again.card == net.card
    assert not again.training
    with torch.no_grad():
        expected = net(images)
        for answer in (again(images), model(images)):
            assert torch.equal(answer.logits, expected.logits)
            assert torch.equal(answer.kl, expected.kl)
    page = (tmp_path / "net" / "README.md").read_text(encoding="utf-8")
    assert ("an ordinary convolutional network" in page) == name.startswith(("ordinary", "behind"))
    assert "was not tested" in page
    assert "It is not known how the network was trained" in page


# ---------------------------------------------------------------- a run


def test_the_card_gives_the_true_numbers(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "net"
    assert cli.main(["hub", "save", str(trained / "run"), str(target), "--license", "cc-by-4.0"]) == 0
    said = capsys.readouterr().out
    assert [line.split(" (")[0] for line in said.splitlines()] == [f"written: {target / name}" for name in FILES]
    result = json.loads((trained / "run" / "result.json").read_text())
    data = load(DataConfig(str(trained / "my photos")))
    card = huggingface_hub.ModelCard.load(target / "README.md")
    assert (card.data.library_name, card.data.license) == ("vpgcnn", "cc-by-4.0")
    assert card.data.pipeline_tag == "image-classification"
    assert {"vpgcnn", "rotation", "level-variational"} <= set(card.data.tags)
    found = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert found == {key: pytest.approx(result["test"][key], abs=1e-6) for key in ("accuracy", "nll")}
    assert {one.dataset_name for one in card.data.eval_results} == {"my photos"}
    for part in ("validation", "test"):
        score = result[part]
        row = f"| {part} | {score['images']} | {score['accuracy']:.2%} | {score['nll']:.4f} | {score['kl']:.4f} |"
        assert row in card.text
    assert f"{len(data.train)} training images, {len(data.validation)} validation images, 9 test images" in card.text
    assert f"few images ({len(data.train)})" in card.text
    chosen = f"weights of the epoch with the best validation accuracy (epoch {result['epoch']})"
    assert f"2 epochs, batch size 8, seed 5; {chosen}" in card.text
    assert "Optimiser: adamw, learning rate 0.01, weight decay 0.001; for the levels: adamw, 0.0001, 0" in card.text
    assert "Classes: bright, dark" in card.text
    network, own = load_model(chosen_weights(trained / "run"))
    assert f"mean {own.mean[0]:.4f}, standard deviation {own.std[0]:.4f}" in card.text
    theta = read_levels(network, data.test.images).theta["last"][:, 0]
    classes = {name: theta[data.test.labels == label].mean() for label, name in enumerate(own.classes)}
    narrow, wide = sorted(classes, key=classes.__getitem__)
    row = f"| last | {theta.mean():.3f} | {theta.std(correction=0):.3f} | {theta.min():.3f} | {theta.max():.3f} | "
    assert row + f"{narrow} ({classes[narrow]:.3f}) | {wide} ({classes[wide]:.3f}) |" in card.text
    assert "Measured on 9 test images." in card.text
    assert max(len(line) for line in card.text.splitlines() if not line.startswith(("|", "- "))) <= 250
    # The code on the card runs next to the folder.
    monkeypatch.chdir(tmp_path)
    code = card.text.split("```python\n")[1].split("```")[0]
    exec(compile(code, "README", "exec"), {})
    printed = capsys.readouterr().out
    assert "bright" in printed or "dark" in printed


def test_paths_of_this_machine_stay_here(trained: Path, tmp_path: Path) -> None:
    Pretrained.of(trained / "run").save_pretrained(tmp_path / "net")
    for name in FILES:
        assert b"secret-place" not in (tmp_path / "net" / name).read_bytes()
    assert "secret-place" in (trained / "run" / "config.json").read_text()  # so that there was something to leave out
    page = (tmp_path / "net" / "README.md").read_text(encoding="utf-8")
    assert "Source: 60 images of 2 classes at 16×16" in page
    assert "license" not in huggingface_hub.ModelCard(page).data.to_dict()


def test_a_test_of_other_weights_is_not_claimed(trained: Path, tmp_path: Path) -> None:
    run = trained / "run"
    result = json.loads((run / "result.json").read_text())
    other = tmp_path / "run"
    other.mkdir()
    for name in ("config.json", "result.json"):
        (other / name).write_bytes((run / name).read_bytes())
    model, card = load_model(run / "last.safetensors")
    scores = {"images": 5, "accuracy": 0.4, "nll": 1.25, "kl": 0.5}
    save_model(other / "last.safetensors", model, card, {"epoch": result["epoch"] + 7, "validation": scores})
    record = read_record(other / "last.safetensors")
    assert record.test is None
    assert record.validation is not None
    assert record.validation.nll == 1.25
    Pretrained.of(other / "last.safetensors").save_pretrained(tmp_path / "net")
    page = huggingface_hub.ModelCard.load(tmp_path / "net" / "README.md")
    assert page.data.eval_results is None
    assert "There are no test scores for these weights." in page.text
    assert f"{result['test']['nll']:.4f}" not in page.text
    assert read_record(chosen_weights(run)).test is not None


def test_a_network_keeps_its_record(trained: Path, tmp_path: Path) -> None:
    net = Pretrained.of(trained / "run", license="mit")
    net.measure(load(DataConfig(str(trained / "my photos"))).test, "test images")
    net.save_pretrained(tmp_path / "one")
    again = Pretrained.from_pretrained(str(tmp_path / "one"))
    assert again.record == net.record
    again.save_pretrained(tmp_path / "two")
    texts = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("one", "two")]
    assert texts[0].replace("name: one", "name: two").replace("# one", "# two").replace('"one"', '"two"') == texts[1]


def test_commands_take_the_folder(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Pretrained.of(trained / "run").save_pretrained(tmp_path / "net")
    weights, photos = tmp_path / "net" / "model.safetensors", str(trained / "my photos")
    answers = []
    for path in (trained / "run", tmp_path / "net", weights):
        assert cli.main(["evaluate", str(path), "--data", photos, "--split", "all", "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1] == answers[2]
    out = tmp_path / "net.safetensors"
    assert cli.main(["export", str(tmp_path / "net"), "--format", "safetensors", "--out", str(out)]) == 0
    assert out.read_bytes() == weights.read_bytes()
    assert cli.main(["predict", str(weights), f"{photos}/dark/0.png"]) == 0
    from vpgcnn.apps.serve.inspector import open_networks

    capsys.readouterr()
    networks, config = open_networks([tmp_path / "net"], torch.device("cpu"))
    assert networks[0].card.classes == ("bright", "dark")
    assert config is not None
    assert config.seed == 5
    # Other data than those of the run are noticed here too: the fingerprint came along.
    record = read_record(weights)
    assert record.fingerprint == json.loads((trained / "run" / "result.json").read_text())["fingerprint"]


# ---------------------------------------------------------------- answers


def test_bytes_and_numbers_are_classified_alike() -> None:
    net = network("color-cnn-variational")
    images = pixels(net, 5)
    answer = net.classify(images, batch=2)
    with torch.no_grad():
        expected = net(images.float() / 255).logits.softmax(dim=1)
    assert torch.allclose(answer.probabilities, expected, atol=1e-6)
    assert answer.names == tuple(net.card.classes[place] for place in expected.argmax(dim=1))
    theta = read_levels(net.network, images).theta
    assert answer.theta.keys() == theta.keys() == {"conv6", "conv7"}
    assert all(torch.allclose(answer.theta[layer], theta[layer], atol=1e-6) for layer in theta)
    again = net.classify(images.float() / 255)
    assert torch.allclose(again.probabilities, answer.probabilities, atol=1e-6)
    assert net.double().classify(images).probabilities.shape == (5, 3)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 1, 28, 28), "expects images N×3×28×28, got 2×1×28×28"),
        (torch.zeros(3, 28, 28), "got 3×28×28"),
        (torch.zeros(0, 3, 28, 28), "got 0×3×28×28"),
        (torch.full((1, 3, 28, 28), 255.0), r"must be in \[0, 1\], got 255 to 255"),
        (torch.full((1, 3, 28, 28), float("nan")), "got nan to nan"),
        (torch.zeros(1, 3, 28, 28, dtype=torch.int64), "got torch.int64"),
    ],
    ids=["grey", "one", "none", "bytes-as-numbers", "nan", "whole"],
)
def test_other_images_are_refused(images: torch.Tensor, said: str) -> None:
    with pytest.raises(UserError, match=said):
        network("color-cnn-full").classify(images)


@pytest.mark.parametrize("name", ["ranked", "digits-shared", "behind-image"])
def test_levels_are_shares_of_the_group(name: str, tmp_path: Path) -> None:
    net = network(name)
    split = Split(pixels(net, 6), torch.tensor([0, 0, 1, 1, 2, 2]))
    net.measure(split, "images of noise")
    assert net.record.levels
    for one in net.record.levels:
        assert 0 < one.low <= one.mean <= one.high <= 1
        assert (one.std == 0) == (name == "digits-shared") or name == "ranked"
        assert bool(one.narrow) == (one.std > 0)
    net.save_pretrained(tmp_path / "net")
    assert Pretrained.from_pretrained(tmp_path / "net").record == net.record


# ---------------------------------------------------------------- what is wrong


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-20])


def _change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _foreign(folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")


def _record(folder: Path) -> None:
    net = Pretrained.from_pretrained(folder)
    extra = {"record": {**to_json(Record()), "epoch": "three"}}
    save_model(folder / "model.safetensors", net.network, net.card, extra)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "model.safetensors is damaged"),
        (_foreign, "was not written by vpgcnn"),
        (_record, r"the record in .*model.safetensors.epoch must be int, got 'three'"),
        (
            lambda folder: _change(folder, classes=["a", "b", "c"]),
            "config.json and model.safetensors disagree on classes",
        ),
        (lambda folder: _change(folder, mean=[0.4]), r"disagree on mean: \(0.4,\) and \(0.2,\)"),
        (lambda folder: _change(folder, hidden_size=768), "config.json has no field 'hidden_size'"),
        (lambda folder: (folder / "config.json").write_text("[1, 2]"), "config.json must be an object with fields"),
        (lambda folder: (folder / "config.json").write_text('{"model": '), "config.json is not valid JSON"),
        (lambda folder: (folder / "config.json").unlink(), "there is no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "there is no model.safetensors"),
    ],
    ids=["cut", "foreign", "record", "classes", "mean", "field", "list", "json", "no-config", "no-weights"],
)
def test_damaged_folders_are_refused_in_a_sentence(damage: Any, said: str, tmp_path: Path) -> None:
    network("digits-variational").save_pretrained(tmp_path / "net")
    damage(tmp_path / "net")
    with pytest.raises(UserError, match=said) as caught:
        Pretrained.from_pretrained(tmp_path / "net")
    assert "\n" not in str(caught.value)


def test_what_is_no_saved_network_is_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it is the folder of a run, use Pretrained\.of to read it"):
        Pretrained.from_pretrained(trained / "run")
    with pytest.raises(UserError, match=r"is a file: use Pretrained\.of"):
        Pretrained.from_pretrained(trained / "run" / "best.safetensors")
    with pytest.raises(UserError, match=r"there is no folder .*nowhere/at/all, and it cannot be downloaded"):
        Pretrained.from_pretrained(tmp_path / "nowhere/at/all")
    with pytest.raises(UserError, match="there is no folder me/net, and") as caught:
        Pretrained.from_pretrained("me/net", local_files_only=True, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"a licence must be an identifier such as mit or cc-by-4\.0, got 'My own!'"):
        Pretrained.of(trained / "run", license="My own!")


def _held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_peoples_files_are_left_alone(trained: Path, tmp_path: Path) -> None:
    net = network("digits-full")
    before = _held(trained / "run")
    with pytest.raises(UserError, match="not part of a saved network: choose another folder"):
        net.save_pretrained(trained / "run")
    assert _held(trained / "run") == before
    other = tmp_path / "other"
    other.mkdir()
    _foreign(other)
    before = _held(other)
    with pytest.raises(UserError, match="not part of a saved network"):
        net.save_pretrained(other)
    assert _held(other) == before
    (tmp_path / "file").write_text("text")
    with pytest.raises(UserError, match="is a file, not a folder"):
        net.save_pretrained(tmp_path / "file")
    with pytest.raises(UserError, match="cannot write /dev/null/net"):
        net.save_pretrained("/dev/null/net")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]


def test_saving_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = network("digits-full"), network("digits-variational")
    one.save_pretrained(tmp_path / "net")
    before = _held(tmp_path)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(huggingface_hub.ModelCard, "save", full)
        for target in ("net", "new"):
            with pytest.raises(UserError, match=f"cannot write .*{target}: No space left on device"):
                two.save_pretrained(tmp_path / target)
    assert _held(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["net"]
    two.save_pretrained(tmp_path / "net")  # what was saved before is replaced, all of it
    after = _held(tmp_path)
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_a_page_of_your_own_stays(tmp_path: Path) -> None:
    net, page = network("digits-full"), tmp_path / "net" / "README.md"
    net.save_pretrained(tmp_path / "net")
    written = page.read_text(encoding="utf-8")
    assert MARK in written
    page.write_text(written.replace("## Limitations", "## Limitations, as it were"), encoding="utf-8")
    net.save_pretrained(tmp_path / "net")
    assert page.read_text(encoding="utf-8") == written
    page.write_text("my own words", encoding="utf-8")
    net.save_pretrained(tmp_path / "net")
    assert page.read_text(encoding="utf-8") == "my own words"


def test_names_do_not_break_the_page(tmp_path: Path) -> None:
    net = network("digits-variational")
    card = replace(net.card, classes=("a|b", "<b>c\nd", "`e` *f*"), dataset="mine: [x](y)")
    net = Pretrained(net.network, card, Record(test=None))
    net.measure(Split(pixels(net, 6), torch.tensor([0, 0, 1, 1, 2, 2])), "images")
    page = net.generate_model_card(source="me/net").text
    assert r"Classes: a\|b, \<b\>c d, \`e\` \*f\*" in page
    assert r"Dataset: mine: \[x\](y)" in page
    (row,) = (line for line in page.splitlines() if line.startswith("| last "))
    assert row.replace(r"\|", "").count("|") == 8


# ---------------------------------------------------------------- the hub


class FakeHub:
    """What HfApi is asked for; files are kept."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.told = ""

    def __call__(self, **options: Any) -> FakeHub:
        return self

    def create_repo(self, repo_id: str, **options: Any) -> SimpleNamespace:
        self.calls.append(("create_repo", {"repo_id": repo_id, **options}))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, folder_path: Path, **options: Any) -> SimpleNamespace:
        self.calls.append(("upload_folder", options))
        self.files = _held(Path(folder_path))
        return SimpleNamespace(commit_url="https://hub/commit/1")


def test_push_says_what_it_sends_then_sends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", hub)
    create = hub.create_repo

    def told_first(*words: Any, **options: Any) -> SimpleNamespace:
        hub.told = capsys.readouterr().out
        return create(*words, **options)

    monkeypatch.setattr(hub, "create_repo", told_first)
    net = network("digits-variational")
    net.record = replace(net.record, license="mit")
    net.save_pretrained(tmp_path / "net")
    words = ["hub", "push", str(tmp_path / "net"), "me/digits"]
    assert cli.main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("nothing was sent\n")
    assert hub.calls == []
    assert cli.main([*words, "--private"]) == 0
    assert "to: me/digits on https://huggingface.co (a new repository will be private)" in hub.told
    assert all(f"sends: {name} (" in hub.told for name in FILES)
    assert capsys.readouterr().out == "pushed: https://hub/commit/1\n"
    (first, made), (second, sent) = hub.calls
    assert (first, made) == ("create_repo", {"repo_id": "me/digits", "private": True, "exist_ok": True})
    assert (second, sent["repo_id"], sent["repo_type"]) == ("upload_folder", "me/digits", "model")
    assert sent["allow_patterns"] == list(FILES)
    assert hub.files.keys() == set(FILES)
    page = hub.files["README.md"].decode()
    assert 'from_pretrained("me/digits")' in page
    assert huggingface_hub.ModelCard(page).data.license == "mit"  # which the record kept
    (tmp_path / "sent.safetensors").write_bytes(hub.files["model.safetensors"])
    tensors, _ = read_tensors(tmp_path / "sent.safetensors")
    assert all(torch.equal(tensors[key], value) for key, value in net.network.state_dict().items())
    # A page of your own goes with it, and whether the repository is public is left to its owner.
    (tmp_path / "net" / "README.md").write_text("my own words")
    assert cli.main(words) == 0
    assert "public, unless the owner's default is private" in hub.told
    assert hub.files["README.md"] == b"my own words"
    assert hub.calls[2][1]["private"] is None


def test_the_mixin_pushes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub()
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", hub)
    net = network("digits-variational")
    net.push_to_hub("me/digits", private=True)
    assert [name for name, _ in hub.calls] == ["create_repo", "upload_folder"]
    assert hub.calls[0][1]["private"] is True
    assert hub.files.keys() == set(FILES)
    assert 'from_pretrained("me/digits")' in hub.files["README.md"].decode()
    net.save_pretrained(tmp_path / "net", push_to_hub=True, repo_id="me/other")
    assert hub.calls[2][1]["repo_id"] == "me/other"


def test_a_repository_is_fetched_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("digits-full")
    net.save_pretrained(tmp_path / "snapshot")
    asked: dict[str, Any] = {}

    def fetch(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("vpgcnn.apps.hub.folder.snapshot_download", fetch)
    images = torch.rand(2, 1, 28, 28)
    again = Pretrained.from_pretrained("me/digits", revision="v1", token="t", cache_dir=tmp_path)
    assert torch.equal(again(images).logits, net(images).logits)
    assert (asked["name"], asked["revision"], asked["token"], asked["cache_dir"]) == ("me/digits", "v1", "t", tmp_path)
    assert set(asked["allow_patterns"]) == set(FILES)  # nothing else of a repository is taken


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["push", "{net}", "me/digits"], "vpgcnn: cannot push to me/digits: "),
        (["push", "{net}", "a/b/c"], "vpgcnn: 'a/b/c' is not the name of a repository: "),
        (["save", "{tmp}/none", "{tmp}/new"], "vpgcnn: there is no run"),
        (["save", "{net}", "{tmp}/new", "--license", "A B"], "vpgcnn: a licence must be an identifier"),
    ],
    ids=["offline", "name", "no-run", "licence"],
)
def test_commands_complain_in_a_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_token")
    net = network("digits-full")
    net.save_pretrained(tmp_path / "net")
    words = [word.replace("{net}", str(tmp_path / "net")).replace("{tmp}", str(tmp_path)) for word in words]
    result = vpgcnn("hub", *words)
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith(sentence)
    assert len(result.stderr.splitlines()) == 1
    assert "hf_not_a_token" not in result.stdout + result.stderr
    assert not (tmp_path / "new").exists()


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    """In a process of its own, in which the package cannot be imported."""
    network("digits-full").save_pretrained(tmp_path / "net")
    code = "import sys; sys.modules['huggingface_hub'] = None; from vpgcnn.apps.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "hub", "save", str(tmp_path / "net"), str(tmp_path / "other")]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=4 * PATIENCE)
    assert result.returncode == 1
    assert result.stderr == ("vpgcnn: vpgcnn.apps.hub needs the package huggingface_hub: pip install 'vpgcnn[hub]'\n")
