"""How the inspector answers: the median time of one inspection alone, and 32 clients at once for a minute.

python benchmarks/serve.py RUN [RUN …] [--seconds 60] [--clients 32]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx

ROUNDS = 50


def memory(process: int) -> float:
    """Resident memory of a process, in MB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


async def crowd(address: str, clients: int, seconds: float) -> Counter[int]:
    """What status each request got, when so many ask as fast as they can."""
    answers: Counter[int] = Counter()
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            while time.monotonic() < end:
                answer = await client.post("/api/inspect", json={"sample": number, "angle": number, "steps": 36})
                answers[answer.status_code] += 1
                if answer.status_code == 429:
                    await asyncio.sleep(0.05)

    await asyncio.gather(*(one(number) for number in range(clients)))
    return answers


def main() -> None:
    """Start a server, ask it, stop it."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("runs", nargs="+")
    command.add_argument("--seconds", type=float, default=60)
    command.add_argument("--clients", type=int, default=32)
    options = command.parse_args()
    words = [sys.executable, "-m", "vpgcnn", "serve", *options.runs, "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        print(server.stdout.readline().strip())
        address = server.stdout.readline().split()[1]
        names = [model["name"] for model in httpx.get(f"{address}/api/models").json()["models"]]
        with httpx.Client(base_url=address, timeout=60) as client:
            for chosen in ([names[0]], names) if len(names) > 1 else ([names[0]],):
                times = []
                for number in range(ROUNDS):
                    start = time.perf_counter()
                    answer = client.post("/api/inspect", json={"sample": number, "angle": 7 * number, "models": chosen})
                    times.append(time.perf_counter() - start)
                    assert answer.status_code == 200
                print(f"{len(chosen)} network(s), 36 places: median {1000 * statistics.median(times):.0f} ms")
        before = memory(server.pid)
        answers = asyncio.run(crowd(address, options.clients, options.seconds))
        print(f"{options.clients} clients for {options.seconds:g} s: {dict(answers)}")
        print(f"memory {before:.0f} MB before, {memory(server.pid):.0f} MB after")
        server.terminate()


if __name__ == "__main__":
    main()
