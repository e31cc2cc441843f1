"""The files for clusters are run, with stand-ins for the programs of a cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from vpgcnn.apps import cli
from vpgcnn.lab.training.checkpoint import read_tensors

FILES = Path(__file__).parents[2] / "examples" / "cluster"
STAND_INS = {
    "srun": 'echo $$ > "$PLACE/step"; exec "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> "$PLACE/scontrol"; fi',
    "scancel": 'echo "$@" >> "$PLACE/scancel"; kill -TERM "$(cat "$PLACE/step")"',
}


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """An environment in which the programs of SLURM are stand-ins that note what they are asked."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_PER_TASK": "1"}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **job, "PATH": path, "PLACE": str(tmp_path), "PORT": port}


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A small run, as words of the command line."""
    noise = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", images=noise.integers(0, 256, (60, 16, 16), np.uint8), labels=np.arange(60) % 2)
    model = ["--model.widths", "2", "2", "2", "--model.kernel-sizes", "3", "3", "3", "--model.stem-stride", "1"]
    data = ["--data.name", str(tmp_path / "a.npz"), "--epochs", "20", "--batch-size", "8", "--model.group", "SO2(4)"]
    return ["mnist67-180", *data, *model, "--device", "cpu", "--threads", "1", "--log-steps", "1"]


def test_a_job_whose_time_is_over_is_queued_again_and_a_pod_goes_on(
    cluster: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    """SLURM's warning stops the run, which saves; Kubernetes' command ends it, as if nothing had happened."""
    assert cli.main(["train", *words, "--out", str(tmp_path / "whole")]) == 0
    run = tmp_path / "run"
    job = subprocess.Popen(
        ["bash", FILES / "slurm.sh", *words, "--out", str(run)],
        env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 5:
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 0, said
    assert "stopped after step" in said
    assert (tmp_path / "scancel").read_text() == "--signal=TERM 7\n"
    assert (tmp_path / "scontrol").read_text() == "requeue 7\n"
    step = read_tensors(run / "state.safetensors")[1]["step"]
    assert 0 < step < read_tensors(tmp_path / "whole" / "state.safetensors")[1]["step"]

    order, environment = pod({"NODES": "1", "PROCESSES": "1", "FIRST": "127.0.0.1"}, cluster)
    order = [*order[: order.index("train") + 1], *words, "--out", str(run), order[-1]]
    order = [re.sub(r":29500$", f":{cluster['PORT']}", word) for word in order]
    done = subprocess.run(order, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"resuming after step {step} of" in done.stdout
    one, two = (read_tensors(folder / "last.safetensors")[0] for folder in (tmp_path / "whole", run))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def pod(changes: dict[str, str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What Kubernetes would run in the container, and with which variables."""
    job = next(each for each in documents() if each["kind"] == "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]} | changes

    def filled(word: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word)

    return [filled(word) for word in (*container["command"], *container["args"])], {**environment, **variables}


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()))


def test_the_pods_find_each_other() -> None:
    """The names in the file belong together: service, subdomain, the first pod, volumes, number of machines."""
    service, job = documents()
    pods = job["spec"]["template"]["spec"]
    order, variables = pod({}, {})
    name = job["metadata"]["name"]
    assert pods["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert variables["FIRST"] == f"{name}-0.{pods['subdomain']}"
    assert int(variables["NODES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    (container,) = pods["containers"]
    assert variables["PROCESSES"] == container["resources"]["limits"]["nvidia.com/gpu"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pods["volumes"]}
    assert order[-1] == "--resume"


def test_a_run_that_fails_is_not_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/bash\nexit 3\n")
    done = subprocess.run(["bash", FILES / "slurm.sh", "nonsense"], env=cluster, check=False)
    assert done.returncode == 3
    assert not (tmp_path / "scontrol").exists()
