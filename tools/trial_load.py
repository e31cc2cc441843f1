"""Run the tests that depend on time, those with a browser or several processes, again and again on a busy machine.

    python tools/trial_load.py 20          # writes results/scripts/trial-load.json and .md after every run

    python tools/trial_load.py 20 --load-is-there      # starts no load: what else runs here, trainings say, is the load

A trial that was stopped goes on from the runs that it has written. As many processes that only compute are started as
are missing for a load of 8. With --load-is-there none is: each run waits until the load average of a minute is 8, and
the load before and after it is recorded.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vpgcnn.lab.config_io import read_json, write_bytes, write_json

LOAD = 8
TESTS = [
    "tests/apps/test_page.py", "tests/apps/test_watch.py", "tests/lab/test_distributed.py", "tests/lab/test_cluster.py",
    "tests/lab/test_training.py",
]  # fmt: skip
CHOSEN = "page or watch or distributed or cluster or two_processes or killed or starts_again or control_c"


def compute() -> None:
    """Keep a core busy, at a lower priority than other people's work."""
    os.nice(5)
    while os.getppid() != 1:
        sum(range(100_000))


def main() -> None:
    """Run the tests and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int, nargs="?", default=20, help="how often (default: 20)")
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the result")
    parser.add_argument("--load-is-there", action="store_true", help="start no load; wait for the one that is there")
    parser.add_argument("--patience", type=float, default=600, help="seconds to wait for that load (default: 600)")
    options = parser.parse_args()
    missing = 0 if options.load_is_there else LOAD - round(os.getloadavg()[0])
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in range(missing)]
    for process in busy:
        process.start()
    rows = earlier(options.out / "trial-load.json")
    for number in range(len(rows), options.times):
        before = loaded(options.patience) if options.load_is_there else os.getloadavg()[0]
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "-k", CHOSEN]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        failed = re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout)
        summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
        rows.append({
            "run": number + 1, "commit": commit(), "code": done.returncode, "failed": failed, "summary": summary,
            "load_before": round(before, 1), "load": round(os.getloadavg()[0], 1),
            "made": "there" if options.load_is_there else f"{len(busy)} burners",
            "seconds": round(time.monotonic() - begin),
        })  # fmt: skip
        print(rows[-1], flush=True)
        if done.returncode:
            print(done.stdout[-5000:], flush=True)
        write(options.out, rows, options.times)
    for process in busy:
        process.kill()
    sys.exit(any(row["code"] for row in rows))


def loaded(patience: float) -> float:
    """Wait until the load average of the last minute, rounded, is `LOAD`, and return it; stop if it never is."""
    end = time.monotonic() + patience
    while (load := os.getloadavg()[0]) < LOAD - 0.5:
        if time.monotonic() > end:
            sys.exit(f"the load is {load:.1f} after {patience:.0f} seconds, not {LOAD}: leave out --load-is-there")
        time.sleep(5)
    return load


def commit() -> str:
    """The commit that is tried."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()


def earlier(path: Path) -> list[dict[str, Any]]:
    """The runs that a trial before this one has written."""
    return read_json(path)["rows"] if path.exists() else []


def write(folder: Path, rows: list[dict[str, Any]], times: int) -> None:
    """Write the table of all runs so far."""
    bad = sum(bool(row["code"]) for row in rows)
    write_json(folder / "trial-load.json", {"times": len(rows), "failed": bad, "rows": rows})
    lines = [
        "# Tests on a busy machine",
        "",
        f"`python tools/trial_load.py {times}`: {len(rows)} of {times} runs so far.",
        "",
    ]
    lines += ["| run | commit | load before | after | from | seconds | result |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {r['run']} | {r['commit']} | {r.get('load_before', '–')} | {r['load']} | {r.get('made', 'burners')} | "
        f"{r['seconds']} | {r['summary']} |"
        for r in rows
    ]
    write_bytes(folder / "trial-load.md", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
