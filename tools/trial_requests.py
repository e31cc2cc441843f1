"""Send generated requests to the inspector, half of them malformed images, and look at the server.

    python tools/trial_requests.py         # 20,000 requests; writes results/scripts/trial-requests.json and .md

No answer may be a 5xx, no connection may break, no file may be touched, and memory must stay flat. Among the requests
are decoder bombs: small files that take minutes to decode. Each must end the process that decodes, not the server.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vpgcnn
from vpgcnn.apps import cli
from vpgcnn.lab.config_io import write_bytes, write_json

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
WARM = 1000
"""Requests after which memory is first measured."""
PAGES = ("/", "/page.js", "/api/models", "/api/samples?order=wide&limit=3", "/api/samples?limit=1000", "/healthz", "/x")


def picture(dice: random.Random) -> bytes:
    """A valid image file."""
    mode = dice.choice(("L", "RGB", "RGBA", "P"))
    pixels = Image.effect_noise((dice.randint(1, 200), dice.randint(1, 200)), dice.uniform(1, 90)).convert(mode)
    kind = dice.choice(FORMATS)
    stream = io.BytesIO()
    (pixels.convert("RGB") if kind in ("JPEG", "BMP") else pixels).save(stream, kind)
    return stream.getvalue()


def malformed(dice: random.Random) -> bytes:
    """A file that is damaged, or no image at all. Some decoders read a few of them all the same."""
    data = bytearray(picture(dice))
    how = dice.randrange(6)
    if how == 0:
        return bytes(data[: dice.randrange(len(data))])
    if how == 1:
        for _ in range(dice.randint(1, 40)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    elif how == 2:  # the header, where sizes are
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(min(64, len(data)))] = dice.choice((0, 1, 127, 128, 255))
    elif how == 3:
        place = dice.randrange(len(data))
        data[place:place] = dice.randbytes(dice.randint(1, 500))
    elif how == 4:
        return dice.randbytes(dice.randrange(2000))
    else:
        return bytes(data[:16] + picture(dice)[16:])
    return bytes(data)


def bomb() -> bytes:
    """A progressive JPEG whose last scan comes thousands of times."""
    stream = io.BytesIO()
    Image.new("L", (4000, 4000), 90).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    return data[:-2] + data[data.rfind(b"\xff\xda") : -2] * 5000 + b"\xff\xd9"


def request(dice: random.Random) -> tuple[str, str, bytes, bool]:
    """Method, path and body of a request, and whether it holds a malformed image."""
    if dice.random() < 0.5:
        body = json.dumps({"image": base64.b64encode(malformed(dice)).decode(), "steps": 0}).encode()
        return "POST", "/api/inspect", body, True
    kind = dice.randrange(5)
    if kind == 0:
        return "GET", dice.choice(PAGES), b"", False
    if kind == 1:
        return (
            "POST",
            "/api/inspect",
            json.dumps({"sample": dice.randrange(40), "steps": dice.choice((0, 4))}).encode(),
            False,
        )
    if kind == 2:
        wrong: list[Any] = [{"sample": "x"}, {}, [], {"image": "%%"}, {"sample": 0, "angle": 1e9}, {"image": "é" * 9}]
        return "POST", "/api/inspect", json.dumps(dice.choice(wrong)).encode()[: dice.choice((5, 1000))], False
    upload = {"image": base64.b64encode(picture(dice)).decode(), "steps": 0, "angle": dice.uniform(-9, 999)}
    return "POST", "/api/inspect", json.dumps(upload).encode(), False


class Client(threading.Thread):
    """Sends requests over one connection."""

    def __init__(self, port: int, count: int, seed: int, note: Counter[str], done: list[int]) -> None:
        super().__init__(daemon=True)
        self.port, self.count, self.dice, self.note, self.done = port, count, random.Random(seed), note, done

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        for _ in range(self.count):
            method, path, body, bad = request(self.dice)
            for attempt in (1, 2):  # the server may close a connection that was idle
                try:
                    connection.request(method, path, body or None, {"content-type": "application/json"})
                    answer = connection.getresponse()
                    answer.read()
                    self.note[f"{'malformed ' if bad else ''}{answer.status}"] += 1
                    break
                except (http.client.HTTPException, OSError) as error:
                    connection.close()
                    if attempt == 2:
                        self.note[f"broken {type(error).__name__}"] += 1
            self.done[0] += 1


def memory(process: int) -> int:
    """Resident memory of a process in kB."""
    text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) if found else 0


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()] + [
        int(number)
        for task in Path(f"/proc/{process}/task").iterdir()
        if task.name != str(process)
        for number in (task / "children").read_text().split()
    ]


def state(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all files."""
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


def main() -> None:
    """Run the trial and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the result")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--bombs", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="requests-") as name:
        result = trial(Path(name), options)
    write_json(options.out / "trial-requests.json", result)
    rows = [(key, str(value)) for key, value in result.items()]
    lines = [
        "# Generated requests",
        "",
        "`python tools/trial_requests.py`; half of the requests hold malformed images.",
        "",
    ]
    lines += ["| what | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]
    write_bytes(options.out / "trial-requests.md", ("\n".join(lines) + "\n").encode())
    print("\n".join(lines))
    sys.exit(bool(result["5xx"] or result["broken connections"] or result["files touched"] or not result["alive"]))


def trial(scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start a server in a folder of its own and ask it everything."""
    place = scratch / "place"
    place.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (90, 16, 16)).astype(np.uint8)
    np.savez(place / "images.npz", images=images, labels=np.arange(90) % 3)
    words = "--epochs 1 --batch-size 8 --model.group SO2(4) --model.widths 2 2 2 --model.kernel-sizes 3 3 3"
    words += f" --model.stem-stride 1 --threads 1 --data.name {place / 'images.npz'} --out {place / 'run'}"
    with redirect_stdout(io.StringIO()):
        assert cli.main(["train", "mnist67-180", *words.split()]) == 0
    environment = {**os.environ, "HOME": str(place), "XDG_CACHE_HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(Path(vpgcnn.__file__).parents[1])  # this package, from another folder
    server = subprocess.Popen(
        [sys.executable, "-m", "vpgcnn", "serve", str(place / "run"), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE, stderr=(scratch / "errors").open("w"), text=True, cwd=place, env=environment,
    )  # fmt: skip
    assert server.stdout is not None
    line = next((line for line in server.stdout if line.startswith("open ")), "")
    if not line:
        sys.exit(f"the server did not start: {(scratch / 'errors').read_text(encoding='utf-8')}")
    port = int(line.split(":")[2].split()[0])
    try:
        before, note, done, begin = state(place), Counter[str](), [0], time.monotonic()
        share = -(-options.requests // options.clients)
        clients = [Client(port, share, seed, note, done) for seed in range(options.clients)]
        for client in clients:
            client.start()
        bombs: list[dict[str, Any]] = []
        first: tuple[int, int] | None = None
        while any(client.is_alive() for client in clients):
            time.sleep(0.2)
            if first is None and done[0] >= min(WARM, options.requests // 4):
                first = memory(server.pid), sum(map(memory, children(server.pid)))
            if (
                first is not None
                and len(bombs) < options.bombs * done[0] // (share * options.clients) + 1 <= options.bombs
            ):
                bombs.append(drop(port, server.pid))
            if server.poll() is not None:
                break
        last = memory(server.pid), sum(map(memory, children(server.pid)))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        alive = connection.getresponse().status == 200
        touched = [str(one) for one in set(state(place)) ^ set(before)]
    finally:
        server.terminate()
        server.wait(30)
    said = (scratch / "errors").read_text(encoding="utf-8")
    assert first is not None
    return {
        "requests": sum(note.values()),
        "malformed images": sum(count for key, count in note.items() if key.startswith("malformed")),
        "answers": dict(sorted(note.items())),
        "5xx": sum(count for key, count in note.items() if re.search(r"\b5\d\d$", key)),
        "broken connections": sum(count for key, count in note.items() if key.startswith("broken")),
        "bombs": bombs,
        "server RSS, kB, at first and at the end": [first[0], last[0]],
        "decoder RSS, kB, at first and at the end": [first[1], last[1]],
        "files touched": touched,
        "tracebacks": said.count("Traceback"),
        "alive": alive,
        "seconds": round(time.monotonic() - begin, 1),
    }


def drop(port: int, server: int) -> dict[str, Any]:
    """Send a bomb; say how it was answered, and whether the process that decoded it is gone."""
    decoders, begin = children(server), time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    body = json.dumps({"image": base64.b64encode(bomb()).decode(), "steps": 0})
    while True:
        connection.request("POST", "/api/inspect", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = json.loads(answer.read())
        if answer.status != 429:
            break
        connection.close()
    gone = [process for process in decoders if not Path(f"/proc/{process}").exists()]
    found = {"status": answer.status, "detail": text.get("detail", "")[:100]}
    return found | {"seconds": round(time.monotonic() - begin, 1), "decoder ended": bool(gone)}


if __name__ == "__main__":
    main()
