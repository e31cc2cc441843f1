"""Algorithms chosen by measurement: only where asked, with the same numbers, and without harm by any file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vpgcnn import SO2, GroupConv2d, GroupFeature, Hue, ReparametrizedWindow, Shared, Siren
from vpgcnn._ops import choice
from vpgcnn.nn import fixed_paths, measured_paths


def hues(width: int = 17, size: int = 9) -> tuple[GroupConv2d, GroupFeature]:
    torch.manual_seed(0)
    group = Hue(3)
    values = torch.randn(2, width, 3, size, size, requires_grad=True)
    return GroupConv2d(width, width, 3, group), GroupFeature(values, group.grid(), None, group)


def rotations() -> tuple[GroupConv2d, GroupFeature]:
    torch.manual_seed(0)
    group = SO2(4)
    values = torch.randn(1, 3, 4, 12, 12, requires_grad=True)
    return GroupConv2d(3, 4, 5, group, padding="same"), GroupFeature(values, group.grid(), None, group)


def moving() -> tuple[GroupConv2d, GroupFeature]:
    torch.manual_seed(0)
    group = SO2(4)
    values = torch.randn(2, 3, 4, 7, 7, requires_grad=True)
    level = Shared(ReparametrizedWindow(initial=0.6))
    conv = GroupConv2d(3, 4, 3, group, level=level, kernel=Siren(hidden=4)).eval()
    return conv, GroupFeature(values, group.grid(), None, group)


CASES: list[Callable[[], tuple[GroupConv2d, GroupFeature]]] = [hues, rotations, moving]


def step(conv: GroupConv2d, feature: GroupFeature) -> list[Tensor]:
    out = conv(feature).values
    return [out, *torch.autograd.grad(out.square().sum(), [feature.values, *conv.parameters()], allow_unused=True)]


def forced(monkeypatch: pytest.MonkeyPatch, quickest: str) -> None:
    """Measurements in which the program of this name wins."""

    def times(_: object, programs: dict[str, object], leaves: object) -> dict[str, float]:
        return {name: 1.0 if name == quickest else 2.0 for name in programs}

    monkeypatch.setattr(choice, "_times", times)


@pytest.mark.parametrize("case", CASES)
def test_whatever_wins_computes_the_same(
    case: Callable[[], tuple[GroupConv2d, GroupFeature]], monkeypatch: pytest.MonkeyPatch
) -> None:
    conv, feature = case()
    plain = step(conv, feature)
    with measured_paths() as paths:
        step(conv, feature)
    assert len(paths.found) >= 1
    made = []
    for name in {name for times in paths.found.values() for name in times}:
        forced(monkeypatch, name)
        with measured_paths():
            made.append(step(conv, feature))
    for parts in made:
        for one, two in zip(parts, plain, strict=True):
            assert (one is None and two is None) or torch.allclose(one, two, rtol=1e-3, atol=1e-4)
    # The programs are different ones: their answers are not the same bits.
    assert len({tuple(parts[0].flatten().tolist()) for parts in made}) > 1


def test_the_fastest_is_taken_unless_it_is_hardly_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = choice.Paths()
    seconds = {"a": 1.0, "b": 0.97}
    monkeypatch.setattr(choice, "_times", lambda *_: dict(seconds))
    programs = dict.fromkeys(seconds, torch.relu)
    assert paths.choose("one", "a", (), programs, ()) == "a"
    seconds["b"] = 0.5
    assert paths.choose("one", "a", (), programs, ()) == "a"  # as it was found
    assert paths.choose("two", "a", (), programs, ()) == "b"
    assert paths.choose("two", "b", (), programs, ()) == "b"


def test_nothing_is_measured_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with deterministic algorithms, in exported programs and inside `fixed_paths`."""
    conv, feature = hues()
    seen: list[str] = []
    monkeypatch.setattr(choice, "_times", lambda _, programs, __: seen.append("") or dict.fromkeys(programs, 1.0))
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    conv(feature)
    monkeypatch.setenv(choice.VARIABLE, "measure")
    with fixed_paths():
        conv(feature)
    torch.use_deterministic_algorithms(True)
    try:
        conv(feature)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        torch.vmap(lambda values: conv(feature.with_values(values[None])).values)(feature.values)
        torch.export.export(conv, (feature,), strict=False)
    assert not seen
    conv(feature)
    conv(feature)
    assert len(seen) == 1


def test_gradients_of_earlier_layers_are_left_alone() -> None:
    """A measurement inside a network must not use up the graph of the layers before, nor draw random numbers."""
    first, feature = hues()
    second = GroupConv2d(17, 17, 3, Hue(3))
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with measured_paths():
        second(first(feature)).values.sum().backward()
    assert first.kernel.weight.grad is not None
    assert second.kernel.weight.grad is not None
    assert torch.equal(torch.rand(2), expected)


def test_a_file_keeps_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conv, feature = hues()
    file = tmp_path / "paths.json"
    with measured_paths(file):
        conv(feature)
    forced(monkeypatch, "nothing, as all is known")
    with measured_paths(file) as paths:
        monkeypatch.setattr(choice, "_times", lambda *_: pytest.fail("measured again"))
        conv(feature)
    assert json.loads(file.read_text())["seconds"] == paths.found
    assert [path.name for path in tmp_path.iterdir()] == ["paths.json"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1, 2]", '{"format": "another"}', '{"format": "FORMAT", "seconds": {"a": {"b": -1}}}',
     '{"format": "FORMAT", "torch": "0.1", "seconds": {}}', '{"format": "FORMAT", "seconds": {"a": {"b": NaN}}}'],
)  # fmt: skip
def test_damaged_and_foreign_files_are_left_alone(tmp_path: Path, content: str) -> None:
    conv, feature = hues()
    file = tmp_path / "paths.json"
    file.write_text(content.replace("FORMAT", choice.FORMAT))
    before = file.read_bytes()
    with pytest.warns(UserWarning, match=r"paths.json .*: it is left alone"), measured_paths(file) as paths:
        conv(feature)
    assert file.read_bytes() == before
    assert len(paths.found) == 1


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    conv, feature = hues()
    with pytest.warns(UserWarning, match="cannot be written"), measured_paths(tmp_path / "none" / "paths.json"):
        assert conv(feature).values.isfinite().all()


def test_a_setting_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, feature = hues()
    monkeypatch.setenv(choice.VARIABLE, "fastest")
    with pytest.warns(UserWarning, match="VPGCNN_PATHS must be fixed, measure or a file"):
        conv(feature)
