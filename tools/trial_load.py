"""Run the tests that depend on time, those with a browser or several processes, again and again on a busy machine.

    python tools/trial_load.py 20          # writes results/scripts/trial-load.json and .md

As many processes that only compute are started as are missing for a load of 8.
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

from vpgcnn.lab.config_io import write_bytes, write_json

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
    options = parser.parse_args()
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in range(LOAD - round(os.getloadavg()[0]))]
    for process in busy:
        process.start()
    rows = []
    for number in range(options.times):
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, "-k", CHOSEN]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        failed = re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout)
        summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
        rows.append({"run": number + 1, "code": done.returncode, "failed": failed, "summary": summary,
                     "load": round(os.getloadavg()[0], 1), "seconds": round(time.monotonic() - begin)})  # fmt: skip
        print(rows[-1], flush=True)
        if done.returncode:
            print(done.stdout[-5000:], flush=True)
    for process in busy:
        process.kill()
    bad = sum(bool(row["code"]) for row in rows)
    write_json(options.out / "trial-load.json", {"times": len(rows), "failed": bad, "rows": rows})
    lines = ["# Tests on a busy machine", "", f"`python tools/trial_load.py {options.times}`", ""]
    lines += ["| run | load | seconds | result |", "|---|---|---|---|"]
    lines += [f"| {row['run']} | {row['load']} | {row['seconds']} | {row['summary']} |" for row in rows]
    write_bytes(options.out / "trial-load.md", ("\n".join(lines) + "\n").encode())
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
