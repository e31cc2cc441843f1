"""Memory that is freed stays with processes that train, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from vpgcnn.lab import malloc

PROGRAM = """
import resource, sys, torch
from vpgcnn.lab.malloc import keep_memory

kept = keep_memory() if sys.argv[1] == "keep" else None
layers = torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(2)))
for step in range(10):
    if step == 7:  # by then it has found what is free
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    layers(torch.ones(10_000_000, requires_grad=True)).sum().backward()  # features of 40 MB, all freed
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(what: str) -> tuple[str, int]:
    others = ("MALLOC_", "GLIBC_", "LD_PRELOAD")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the C library is asked for; it says yes to all of it."""
    calls: list[tuple[int, int]] = []

    def mallopt(name: int, value: int) -> int:
        calls.append((name, value))
        return 1

    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(malloc.sys, "platform", "linux")
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    return calls


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have other allocators")
def test_freed_memory_is_not_fetched_again_from_the_system() -> None:
    kept, faults = run("keep")
    if kept == "False":
        pytest.skip("the C library here has no mallopt that does it")
    _, before = run("leave")
    assert before > 100  # pages; large ones where the system has them
    assert faults < before / 2  # how many depends on the size of pages and on what else the machine does


def test_it_is_asked_for_where_nothing_speaks_against_it(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")  # of other things
    assert malloc.keep_memory() is True
    assert len(asked) == 2


@pytest.mark.parametrize(
    "variable", ["MALLOC_MMAP_THRESHOLD_=65536", "GLIBC_TUNABLES=glibc.malloc.trim_threshold=65536"]
)
def test_an_environment_that_says_how_is_left_alone(
    variable: str, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable.split("=", 1))
    assert malloc.keep_memory() is False
    assert not asked


def test_other_systems_and_libraries_are_left_alone(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(malloc.sys, "platform", "darwin")
    assert malloc.keep_memory() is False
    assert not asked
    monkeypatch.setattr(malloc.sys, "platform", "linux")
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: object())
    assert malloc.keep_memory() is False


def test_a_setting_that_is_refused_is_the_last_one_tried(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: int, value: int) -> int:
        asked.append((name, value))
        return 0

    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=refuse))
    assert malloc.keep_memory() is False
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train", ["mnist67-180", "--data.source", "embedded", "--out"]),
        ("demo", ["--out"]),
        ("reproduce", ["fig-mnist67-180", "--runs"]),
    ],
)
def test_commands_that_train_keep_memory(
    command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    class ReachedError(Exception):
        """The command got there; it need not train."""

    def reached() -> bool:
        raise ReachedError

    module = import_module(f"vpgcnn.apps.commands.{command}")
    monkeypatch.setattr(module, "keep_memory", reached)
    with pytest.raises(ReachedError):
        module.main([*arguments, str(tmp_path)])
