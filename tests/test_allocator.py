"""Memory that is freed stays with processes that train, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import vpgcnn.allocator

PROGRAM = """
import resource, sys, torch
from vpgcnn.allocator import keep_memory

kept = keep_memory() if sys.argv[1] == "keep" else None
layers = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(4)))
for step in range(20):
    if step == 10:  # by then it has found what is free
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    layers(torch.ones(12_000_000, requires_grad=True)).sum().backward()  # features of 48 MB, all freed
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(what: str) -> tuple[str, int]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other allocators")
def test_freed_memory_is_not_fetched_again_from_the_system() -> None:
    kept, faults = run("keep")
    if kept == "False":
        pytest.skip("the C library here is not glibc")
    _, before = run("leave")
    assert before > 100  # pages; large ones where the system has them
    assert faults < before / 50


@pytest.mark.parametrize("said", ["MALLOC_MMAP_THRESHOLD_=65536", "GLIBC_TUNABLES=glibc.malloc.trim_threshold=65536"])
def test_an_environment_that_says_how_is_left_alone(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*said.split("=", 1))
    monkeypatch.setattr(vpgcnn.allocator.ctypes, "CDLL", lambda _: pytest.fail("the C library was asked"))
    assert vpgcnn.allocator.keep_memory() is False


def test_c_libraries_without_the_setting_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vpgcnn.allocator.ctypes, "CDLL", lambda _: object())
    assert vpgcnn.allocator.keep_memory() is False
    monkeypatch.setattr(vpgcnn.allocator.sys, "platform", "darwin")
    assert vpgcnn.allocator.keep_memory() is False
