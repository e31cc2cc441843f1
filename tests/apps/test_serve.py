"""The inspector's API: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
import torch
from app_support import COLOR, DIGIT, PATIENCE, digits, save_network, served, wait_until
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from PIL import Image

from vpgcnn import Dihedral
from vpgcnn.apps import cli
from vpgcnn.apps.serve.app import IMAGE_BYTES, make_app
from vpgcnn.apps.serve.decoder import Decoder
from vpgcnn.apps.serve.inspector import Inspector, open_networks
from vpgcnn.apps.serve.limits import TimedProtocol
from vpgcnn.kernels import Table
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.levels import Full, Shared
from vpgcnn.measure import read_levels


@pytest.fixture(scope="module")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> Inspector:
    root = tmp_path_factory.mktemp("networks")
    paths = [
        save_network(root / "mine.safetensors"),
        save_network(root / "full.safetensors", model=replace(DIGIT, level=Full())),
    ]
    found = Inspector(open_networks(paths, torch.device("cpu"))[0])
    found.add_samples(digits())
    return found


@pytest.fixture(scope="module")
def client(inspector: Inspector) -> Iterator[TestClient]:
    with TestClient(make_app(inspector, ["testserver"]), raise_server_exceptions=False) as opened:
        yield opened


def png(width: int = 40, height: int = 30, color: int | tuple[int, int, int] = 200, mode: str = "L") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (width, height), color).save(stream, "PNG")
    return stream.getvalue()


def upload(client: TestClient, data: bytes, **more: Any) -> httpx.Response:
    return client.post("/api/inspect", json={"image": base64.b64encode(data).decode(), **more})


# ------------------------------------------------------------ answers


def test_models_and_health(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    found = client.get("/api/models").json()
    assert found["api"] == "1"
    assert [model["name"] for model in found["models"]] == ["mine", "full"]
    assert found["models"][0]["layers"] == ["last"]
    assert found["models"][1]["layers"] == []
    assert {model["moves"] for model in found["models"]} == {"rotation"}


def test_an_inspection_is_what_the_network_says_of_the_turned_image(client: TestClient, inspector: Inspector) -> None:
    answer = client.post("/api/inspect", json={"sample": 4, "angle": 90, "steps": 4, "models": ["mine"]}).json()
    assert answer["places"] == [0, 90, 180, 270]
    assert answer["label"] == inspector.card.classes[inspector.samples[4].label]
    (network,) = answer["networks"]
    assert network["probabilities"] == network["curve"][1]
    mine = inspector.networks[0]
    turned = inspector.samples[4].pixels.rot90(1, (-2, -1))[None]
    reading = read_levels(mine.model, turned)
    expected = reading.logits.softmax(dim=1)[0]
    assert network["probabilities"] == pytest.approx(expected.tolist(), abs=1e-4)
    (level,) = network["levels"]
    assert level["theta"] == pytest.approx(float(reading.theta["last"][0, 0]), abs=1e-4)
    assert sum(level["weights"]) == pytest.approx(1, abs=1e-4)
    shown = Image.open(io.BytesIO(base64.b64decode(answer["image"].split(",")[1])))
    assert np.abs(np.asarray(shown) / 255 - turned[0, 0].numpy()).max() < 0.01


def test_windows_open_and_close_for_one_question_only(client: TestClient, inspector: Inspector) -> None:
    found = client.get("/api/models").json()["models"]
    assert [model["windows"] for model in found] == [0, None]

    def theta(**more: float) -> tuple[float, list[float]]:
        mine, full = client.post("/api/inspect", json={"sample": 4, "steps": 0, **more}).json()["networks"]
        assert full["levels"] == []
        return mine["levels"][0]["theta"], mine["probabilities"]

    learned, closed, opened = theta(), theta(windows=-1), theta(windows=1)
    assert closed[0] == pytest.approx(0.03)
    assert closed[0] < learned[0] < 1 == opened[0]
    assert closed[1] != opened[1]
    assert theta(windows=0) == theta() == learned
    assert theta(windows=0.5)[0] == pytest.approx((1 + learned[0]) / 2)
    for wrong in (-1.1, 2, "open"):
        assert client.post("/api/inspect", json={"sample": 4, "windows": wrong}).status_code == 422
    assert all(float(value) == 0 for key, value in inspector.networks[0].model.state_dict().items() if "dial" in key)


def test_an_angle_may_be_any_and_the_circle_closes(client: TestClient) -> None:
    one, two = (client.post("/api/inspect", json={"sample": 0, "angle": a, "steps": 0}).json() for a in (-90, 270.0))
    assert one["networks"] == two["networks"]
    assert one["angle"] == two["angle"] == 270
    assert one["networks"][0]["curve"] == []


def test_the_gallery_is_sorted_and_filtered(client: TestClient) -> None:
    narrow = client.get("/api/samples", params={"order": "narrow", "limit": 100}).json()
    assert narrow["total"] == 30
    theta = [sample["theta"] for sample in narrow["samples"]]
    assert theta == sorted(theta)
    wide = client.get("/api/samples", params={"order": "wide", "limit": 5}).json()["samples"]
    assert [sample["theta"] for sample in wide] == theta[::-1][:5]
    sevens = client.get("/api/samples", params={"label": "7", "offset": 8}).json()
    assert sevens["total"] == 10
    assert {sample["label"] for sample in sevens["samples"]} == {"7"}
    assert len(sevens["samples"]) == 2
    assert client.get("/api/samples", params={"label": "../x"}).status_code == 404
    assert client.get("/api/samples", params={"order": "sideways"}).status_code == 422


def test_uploads_of_every_allowed_format(client: TestClient) -> None:
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        stream = io.BytesIO()
        Image.new("RGB", (50, 40), (200, 30, 90)).save(stream, kind)
        answer = upload(client, stream.getvalue(), steps=0)
        assert answer.status_code == 200, kind
        assert answer.json()["label"] is None
    text = "data:image/png;base64," + base64.b64encode(png()).decode()
    assert client.post("/api/inspect", json={"image": text}).status_code == 200


def test_the_orientation_of_a_photograph_is_honoured_and_light_may_be_exchanged(client: TestClient) -> None:
    pixels = np.zeros((28, 28), np.uint8)
    pixels[:14] = 255  # light above
    stream = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 3  # held upside down
    Image.fromarray(pixels).save(stream, "JPEG", exif=exif)
    answer = upload(client, stream.getvalue(), steps=0).json()
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["image"].split(",")[1]))))
    assert shown[:10].mean() < 30 < 220 < shown[-10:].mean()
    answer = upload(client, stream.getvalue(), steps=0, invert=True).json()
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["image"].split(",")[1]))))
    assert shown[:10].mean() > 220 > 30 > shown[-10:].mean()


def test_damaged_metadata_harm_nobody(client: TestClient) -> None:
    entries = struct.pack("<HHI4s", 257, 2, 3, b"ab\0\0") + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entries + b"\0" * 4  # text where a number is expected
    for kind in ("JPEG", "PNG", "WEBP"):
        stream = io.BytesIO()
        Image.new("L", (30, 20), 90).convert("RGB").save(stream, kind, exif=exif)
        assert upload(client, stream.getvalue(), steps=0).status_code == 200, kind


def test_a_transparent_image_is_read_as_in_training(client: TestClient, tmp_path: Path) -> None:
    drawn = Image.new("RGBA", (28, 28), (0, 0, 0, 0))
    drawn.paste((90, 90, 90, 120), (10, 10, 18, 18))
    drawn.save(tmp_path / "drawn.png")
    answer = upload(client, (tmp_path / "drawn.png").read_bytes(), steps=0).json()
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["image"].split(",")[1]))))
    assert np.array_equal(shown, read_image(tmp_path / "drawn.png", 28, 1)[0].numpy())


def test_hue(tmp_path: Path) -> None:
    path = save_network(tmp_path / "color.safetensors", model=COLOR, channels=3)
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits(channels=3))
    client = TestClient(make_app(inspector, ["testserver"]))
    assert client.get("/api/models").json()["models"][0]["moves"] == "hue"
    answer = upload(client, png(color=(255, 0, 0), mode="RGB"), angle=120, steps=3).json()
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(answer["image"].split(",")[1]))).convert("RGB"))
    assert shown.reshape(-1, 3).mean(0) == pytest.approx([0, 255, 0], abs=8)  # red by a third of the circle is green
    assert len(answer["networks"][0]["levels"][0]["weights"]) == 3


def test_mirrors_are_offered_where_the_group_has_them(tmp_path: Path, client: TestClient) -> None:
    path = save_network(tmp_path / "sides.safetensors", model=replace(DIGIT, group=Dihedral(1), kernel=Table()))
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits())
    sides = TestClient(make_app(inspector, ["testserver"]))
    (model,) = sides.get("/api/models").json()["models"]
    assert model["mirrors"]
    assert model["moves"] is None  # a group of mirrors has no rotations
    assert not client.get("/api/models").json()["models"][0]["mirrors"]
    one, two = (
        sides.post("/api/inspect", json={"sample": 3, "mirror": mirror, "steps": 0, "windows": 1}).json()
        for mirror in (False, True)
    )
    pictures = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(each["image"].split(",")[1])))) for each in (one, two)
    ]
    assert np.array_equal(pictures[0][:, ::-1], pictures[1])
    chances = [each["networks"][0]["probabilities"] for each in (one, two)]
    assert chances[0] == pytest.approx(chances[1], abs=1e-4)  # what the page says open windows promise


def test_a_mirror_that_no_network_knows_of_is_refused(client: TestClient) -> None:
    answer = client.post("/api/inspect", json={"sample": 3, "mirror": True, "steps": 0})
    assert (answer.status_code, answer.json()["detail"]) == (404, "no network on this page has mirrors in its group")


def test_the_gallery_and_the_dial_have_the_same_theta(tmp_path: Path) -> None:
    path = save_network(tmp_path / "mixed.safetensors", model=replace(DIGIT, elsewhere=Shared()))
    inspector = Inspector(open_networks([path], torch.device("cpu"))[0])
    inspector.add_samples(digits())
    mixed = TestClient(make_app(inspector, ["testserver"]))
    levels = mixed.post("/api/inspect", json={"sample": 4, "steps": 0}).json()["networks"][0]["levels"]
    own = [level["theta"] for level in levels if level["per_image"]]
    assert 0 < len(own) < len(levels)
    (sample,) = mixed.get("/api/samples?offset=4&limit=1").json()["samples"]
    assert sample["theta"] == pytest.approx(sum(own) / len(own), abs=1e-4)


def test_one_forward_pass_answers_an_inspection(inspector: Inspector) -> None:
    calls = []
    mine = inspector.networks[0]
    hook = mine.model.register_forward_hook(lambda *_: calls.append(1))
    _, (seen,) = inspector.inspect(inspector.samples[0].pixels, 30.0, ["mine"], 12)
    hook.remove()
    assert len(calls) == 1
    assert seen.curve.shape == (12, 3)
    assert list(seen.theta) == list(seen.weights) == ["last"]


def test_one_forward_pass_reads_logits_and_levels() -> None:
    torch.manual_seed(0)
    card = Card(COLOR, ("a", "b"), 3, 28, (0.5,), (0.3,))
    model, images = card.build().eval(), torch.rand(3, 3, 28, 28)
    seen = read_levels(model, images)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    again = read_levels(model, images)
    assert len(calls) == 1
    with torch.no_grad():
        expected = model(images)
    assert torch.equal(seen.logits, again.logits)
    assert torch.equal(seen.logits, expected.logits)
    assert list(seen.theta) == list(seen.weights) == ["conv6", "conv7"]
    for layer, theta in expected.theta.items():
        assert torch.equal(seen.theta[layer], theta)


def test_networks_that_do_not_belong_together_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        save_network(tmp_path / "one.safetensors"),
        save_network(tmp_path / "two.safetensors", classes=("a", "b", "c")),
    )
    assert cli.main(["serve", str(one), str(two), "--no-browser"]) == 1
    assert "cannot compare one and two: they differ in classes" in capsys.readouterr().err
    assert cli.main(["serve", str(one), "--port", "99999"]) == 1
    assert "--port must be a number from 0 to 65535, got 99999" in capsys.readouterr().err
    assert cli.main(["serve", *[str(one)] * 5]) == 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert cli.main(["serve", str(one), "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
    assert cli.main(["serve", str(tmp_path / "none")]) == 1


# ------------------------------------------------------------ what it refuses


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is large, in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"\0" * (width + 1) * height, 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def scans(count: int, side: int = 4000) -> bytes:
    """A progressive JPEG whose last scan comes again and again: each takes time."""
    stream = io.BytesIO()
    Image.new("L", (side, side), 90).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    return data[:-2] + data[data.rfind(b"\xff\xda") : -2] * count + b"\xff\xd9"


HOSTILE = {
    "100 megapixels": bomb(10_000, 10_000),
    "truncated JPEG": b"",
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
    "text": b"this is not a picture",
    "nothing": b"",
    "half a PNG": png()[:40],
    "a TIFF": b"II*\0" + b"\0" * 100,
    "an EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_image_is_refused_in_a_sentence(name: str, client: TestClient) -> None:
    data = HOSTILE[name]
    if name == "truncated JPEG":
        stream = io.BytesIO()
        Image.effect_noise((64, 64), 50).save(stream, "JPEG")
        data = stream.getvalue()[: len(stream.getvalue()) // 2]
    answer = upload(client, data)
    assert answer.status_code == 400, answer.text
    assert isinstance(answer.json()["detail"], str)
    assert "Traceback" not in answer.text


class Limited(Decoder):
    """Tells which processes it started."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.processes: list[int] = []

    def decode(self, *order: Any) -> np.ndarray:
        try:
            return super().decode(*order)
        finally:
            self.processes.append(self.process_id or 0)


@pytest.mark.parametrize(
    ("limits", "data"),
    [({"seconds": 1.0}, scans(5000)), ({"memory": 350 << 20}, png(4800, 4800, 90, "RGBA"))],
    ids=["time", "memory"],
)
def test_a_bomb_ends_the_process_that_decodes_it_and_nothing_else(
    inspector: Inspector, limits: dict[str, Any], data: bytes
) -> None:
    assert len(data) < IMAGE_BYTES
    decoder = Limited(**limits)
    client = TestClient(make_app(inspector, ["testserver"], decoder=decoder))
    assert upload(client, png(), steps=0).status_code == 200
    assert upload(client, HOSTILE["text"], steps=0).status_code == 400
    begin = time.monotonic()
    answer = upload(client, data, steps=0)
    assert time.monotonic() - begin < PATIENCE / 2
    assert answer.status_code == 400, answer.text
    assert answer.json()["detail"] == "the file takes too much time or memory to decode"
    assert upload(client, png(), steps=0).status_code == 200
    first, second, third, fourth = decoder.processes
    assert first == second, "the process is kept"
    assert third == fourth != first, "the next one is started at once"
    assert not alive(first), "the one with the bomb is gone"
    decoder.close()
    assert not alive(fourth)


def test_requests_do_not_wait_for_a_bomb(inspector: Inspector) -> None:
    """A sample is inspected while an uploaded file is being decoded."""
    decoder = Decoder(seconds=PATIENCE)
    with served(make_app(inspector, ["127.0.0.1"], decoder=decoder)) as (host, port):
        body = {"image": base64.b64encode(scans(20_000)).decode(), "steps": 0}
        answers: list[httpx.Response] = []
        slow = threading.Thread(
            target=lambda: answers.append(
                httpx.post(f"http://{host}:{port}/api/inspect", json=body, timeout=2 * PATIENCE)
            )
        )
        slow.start()
        wait_until(lambda: decoder.process_id is not None and busy(decoder.process_id), "the bomb is decoded")
        meanwhile = httpx.post(f"http://{host}:{port}/api/inspect", json={"sample": 0, "steps": 0}, timeout=PATIENCE)
        assert meanwhile.status_code == 200
        assert not answers, "the bomb is still being decoded"
        os.kill(decoder.process_id or 0, signal.SIGKILL)
        slow.join(PATIENCE)
        assert answers[0].status_code == 400
    decoder.close()


def test_a_decoder_cannot_write_files_and_does_not_outlive_the_server(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from vpgcnn.apps.serve.decoder import _limit; _limit(1 << 30); "
        "print(resource.getrlimit(resource.RLIMIT_FSIZE)[1], flush=True)\n"
        f"try: open({str(tmp_path / 'a')!r}, 'wb', 0).write(b'x')\n"
        "except OSError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["0", "refused"] or done.returncode == -signal.SIGXFSZ, done
    assert not (tmp_path / "a").exists() or (tmp_path / "a").stat().st_size == 0
    code = (
        "import io, os; from PIL import Image; from vpgcnn.apps.serve.decoder import Decoder; s = io.BytesIO(); "
        "Image.new('L', (9, 9)).save(s, 'PNG'); d = Decoder(); print(d.decode(s.getvalue(), 4, 1).shape); "
        "print(d.process_id, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    shape, number = done.stdout.splitlines()
    assert shape == "(1, 4, 4)"
    wait_until(lambda: not alive(int(number)), "the decoder ends")
    (tmp_path / "bomb").write_bytes(scans(50_000))
    code = (
        "import os, sys, threading, time; from vpgcnn.apps.serve.decoder import Decoder; d = Decoder(seconds=2.0); "
        "data = open(sys.argv[1], 'rb').read(); threading.Thread(target=d.decode, args=(data, 4, 1)).start()\n"
        "while d.process_id is None or not d._ready: time.sleep(0.01)\n"
        "time.sleep(0.5); print(d.process_id, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "bomb"], capture_output=True, text=True, check=False)
    begin = time.monotonic()
    wait_until(lambda: not alive(int(done.stdout)), "the decoder ends in the middle of a bomb")
    assert time.monotonic() - begin < PATIENCE / 2


def alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def busy(number: int) -> bool:
    """Whether a process has worked for a second since its start."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK") > 1.0


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"3", b'{"sample": "zero"}', b'{"sample": 0, "angle": NaN}',
        b'{"sample": 0, "angle": Infinity}', b'{"sample": 0, "angle": 1e999}', b'{"sample": 0, "angle": "east"}',
        b'{"sample": -1}', b'{"sample": 0, "steps": 100000}', b'{"sample": 0, "image": ""}', b"{}",
        b'{"sample": 0, "models": "mine"}', b'{"sample": 0, "path": "/etc/passwd"}', b'{"sample": true}',
        b'{"sample": 0, "models": ["\\ud800"]}', b'{"image": "\\ud800"}', b"\xff\xfe", b'{"sample": 1e400}',
    ],
    ids=repr,
)  # fmt: skip
def test_bad_requests_are_not_the_servers_fault(body: bytes, client: TestClient) -> None:
    answer = client.post("/api/inspect", content=body, headers={"content-type": "application/json"})
    assert 400 <= answer.status_code < 500, answer.text
    assert "detail" in answer.json()


def test_no_text_becomes_a_path(client: TestClient) -> None:
    for text in ("../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "..%2f..%2fetc%2fpasswd", "\0"):
        assert client.post("/api/inspect", json={"sample": 0, "models": [text]}).status_code == 404
        assert client.post("/api/inspect", json={"image": text}).status_code == 400
        assert client.get("/api/samples", params={"label": text}).status_code == 404
        assert text == "\0" or client.get(f"/{text}").status_code == 404
    assert client.get("/page.js/../../app.py").status_code == 404


def test_other_hosts_and_large_bodies_are_refused(client: TestClient) -> None:
    assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 400
    large = b'{"image": "' + b"A" * (IMAGE_BYTES * 2) + b'"}'
    kind = {"content-type": "application/json"}
    assert client.post("/api/inspect", content=large, headers=kind).status_code == 413
    parts = iter([large[:100], large[100:]])  # without saying how long it is
    assert client.post("/api/inspect", content=parts, headers=kind).status_code == 413
    assert client.post("/api/inspect", json={"sample": 0, "steps": 0}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({}, 415),
        ({"content-type": "application/json", "origin": "https://evil.example"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
        ({"content-type": "application/json", "sec-fetch-site": "cross-site"}, 403),
        ({"content-type": "application/json; charset=utf-8", "origin": "http://testserver"}, 200),
    ],
)
def test_pages_of_other_sites_cannot_ask(headers: dict[str, str], status: int, client: TestClient) -> None:
    assert client.post("/api/inspect", content=b'{"sample": 0, "steps": 0}', headers=headers).status_code == status


def test_all_bodies_together_have_a_limit(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpgcnn.apps.serve.app.HELD", 50_000)
    client = TestClient(make_app(inspector, ["testserver"]))
    body = {"image": "A" * 60_000}
    assert client.post("/api/inspect", json=body).status_code == 429
    for _ in range(3):  # what was turned away no longer counts
        assert client.post("/api/inspect", json={"image": "A" * 40_000}).status_code == 400


def test_pages_load_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
    assert client.get("/plotly.js").status_code == 200
    assert client.get("/docs").status_code == 404


def test_more_work_than_can_be_done_is_answered_429(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    """One inspection runs, two wait, and the others are turned away at once; later ones are served again."""
    whole = Inspector.inspect
    go, running, most = threading.Event(), 0, 0

    def slow(self: Inspector, *rest: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert go.wait(PATIENCE)
        found = whole(self, *rest)
        running -= 1
        return found

    monkeypatch.setattr(Inspector, "inspect", slow)

    async def crowd() -> tuple[list[httpx.Response], int]:
        transport = httpx.ASGITransport(make_app(inspector, ["testserver"], waiting=2))
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:

            async def ask() -> httpx.Response:
                answer = await client.post("/api/inspect", json={"sample": 0, "steps": 0})
                refused.append(answer.status_code == 429)
                if refused.count(True) == 5:  # all that can be refused are: let the others through
                    go.set()
                return answer

            refused: list[bool] = []
            answers = await asyncio.gather(*(ask() for _ in range(8)))
            return answers, (await ask()).status_code

    answers, later = asyncio.run(crowd())
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    assert {answer.headers.get("retry-after") for answer in answers} == {None, "1"}
    assert later == 200
    assert most == 1


@pytest.fixture(scope="module")
def address(inspector: Inspector) -> Iterator[tuple[str, int]]:
    """A real server, which waits two seconds for a request to arrive."""
    with served(make_app(inspector, ["127.0.0.1"], seconds=2.0)) as found:
        yield found


def test_a_slow_client_blocks_nobody_and_is_sent_away(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=PATIENCE) as slow:
        slow.sendall(
            b"POST /api/inspect HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n{"
        )
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=PATIENCE) as client:
            for _ in range(3):
                assert client.post("/api/inspect", json={"sample": 0, "steps": 0}).status_code == 200
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_a_head_that_never_ends_is_closed(inspector: Inspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedProtocol, "seconds", 2.0)
    options = {"http": TimedProtocol, "timeout_keep_alive": PATIENCE}
    with served(make_app(inspector, ["127.0.0.1"]), **options) as address:
        used = http.client.HTTPConnection(*address, timeout=PATIENCE)
        used.request("GET", "/healthz")
        assert used.getresponse().read().startswith(b'{"status":"ok"')
        before = used.sock
        with (
            socket.create_connection(address, timeout=PATIENCE) as silent,
            socket.create_connection(address, timeout=PATIENCE) as slow,
        ):
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
            assert silent.recv(100) == b""  # closed
            assert slow.recv(100) == b""
        # A connection that has been used stays open, although the time for its head is over.
        used.request("GET", "/healthz")
        assert used.getresponse().status == 200
        assert used.sock is before
        used.close()


def test_a_stopped_server_says_so(tmp_path: Path) -> None:
    path = save_network(tmp_path / "net.safetensors")
    words = [sys.executable, "-m", "vpgcnn", "serve", str(path), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert "drop an image" in child.stdout.readline()
        line = child.stdout.readline()
        address = line.split()[1]
        assert httpx.get(f"{address}/healthz", timeout=PATIENCE).json()["status"] == "ok"
        assert httpx.get(f"{address}/api/samples", timeout=PATIENCE).json() == {"total": 0, "samples": []}
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=PATIENCE)
    assert rest.strip() == "stopped"
    assert "Traceback" not in errors
    assert child.returncode in (0, 130, -signal.SIGINT)


REQUESTS = int(os.environ.get("VPGCNN_REQUESTS", "100"))
"""For each operation of the API. The documentation of the inspector says how many were tried in all."""
schema = schemathesis.openapi.from_dict(make_app(Inspector([]), ["testserver"]).openapi())


@schema.parametrize()
@settings(max_examples=REQUESTS, suppress_health_check=list(HealthCheck))
def test_any_request_gets_an_answer(case: schemathesis.Case, client: TestClient) -> None:
    """Requests generated from the API's own description, sound and unsound ones."""
    sent = case.as_transport_kwargs(base_url="http://testserver")
    answer = client.request(
        sent["method"], sent["url"], headers=dict(sent["headers"]), params=sent.get("params"), json=sent.get("json"),
        content=sent.get("data"),
    )  # fmt: skip
    assert answer.status_code < 500, answer.text


def test_nothing_is_written(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and len(arguments) > 2 and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE:
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    upload(client, png())
    upload(client, b"nothing")
    client.post("/api/inspect", json={"sample": 0})
    client.get("/api/samples")
    assert [path for path in opened if "/dev/" not in path] == []
