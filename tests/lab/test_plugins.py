"""Plug-ins: files that are run once, and whose errors name the line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vpgcnn.apps import cli
from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.lab import specs
from vpgcnn.lab.plugins import load_plugin
from vpgcnn.levels import LevelSpec

LEVEL = '''"""A level that ignores the image."""

from __future__ import annotations

from dataclasses import dataclass

from vpgcnn.groups import Group
from vpgcnn.lab.specs import register
from vpgcnn.levels import Fixed, Level, LevelSpec


@register
@dataclass(frozen=True)
class Half(LevelSpec):
    share: float = 0.5

    def build(self, group: Group, channels: int) -> Level:
        return Fixed(self.share).build(group)
'''


@pytest.fixture(autouse=True)
def _untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers and loads is gone afterwards."""
    monkeypatch.setattr(specs, "_known", dict(specs._known))
    yield
    for name in [name for name in sys.modules if name.startswith("vpgcnn_plugin")]:
        del sys.modules[name]


def written(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_run_once(tmp_path: Path) -> None:
    path = written(tmp_path, f"with open({str(tmp_path / 'runs')!r}, 'a') as stream:\n    stream.write('x')\n")
    load_plugin(path)
    load_plugin(path)
    load_plugin(tmp_path / "." / "mine.py")
    assert (tmp_path / "runs").read_text() == "x"


def test_files_of_one_name_in_two_folders_are_two_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        text = f"with open({str(tmp_path / 'runs')!r}, 'a') as stream:\n    stream.write({folder!r})\n"
        load_plugin(written(tmp_path, text, f"{folder}/mine.py"))
    assert (tmp_path / "runs").read_text() == "onetwo"


def test_a_class_that_a_file_registers_can_be_named(tmp_path: Path) -> None:
    load_plugin(written(tmp_path, LEVEL))
    level = specs.parse("Half(0.25)", LevelSpec)  # type: ignore[type-abstract]
    assert specs.text(level) == "Half(0.25)"
    with pytest.raises(UserError, match="share must be a number, got 'x'"):
        specs.parse("Half('x')", LevelSpec)  # type: ignore[type-abstract]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    load_plugin(written(tmp_path, LEVEL, "one/mine.py"))
    with pytest.raises(UserError, match=r"two/mine\.py, line 12: ValueError: the name Half is taken by"):
        load_plugin(written(tmp_path, LEVEL, "two/mine.py"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", "line 2: ZeroDivisionError"),
        ("x = 1\n\ndef f(:\n", "line 3: SyntaxError"),
        ("import no_such_package_at_all\n", "line 1: ModuleNotFoundError"),
        ("def f():\n    raise KeyError('lost')\n\nf()\n", "line 2: KeyError: 'lost'"),
        ("import json\n\njson.loads('{')\n", "line 3: JSONDecodeError"),
        ("from vpgcnn.lab.specs import register\nregister(int)\n", "line 2: TypeError: expected a dataclass"),
    ],
)
def test_an_error_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    before = set(sys.modules)
    with pytest.raises(UserError) as found:
        load_plugin(path)
    assert str(found.value).startswith(f"{path}, {message}")
    assert not {name for name in set(sys.modules) - before if name.startswith("vpgcnn_plugin")}
    path.write_text("x = 1\n")  # corrected, it can be loaded
    load_plugin(path)


@pytest.mark.parametrize("name", ["missing.py", "notes.txt", "."])
def test_what_is_no_python_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("x = 1\n")
    sentence = "--use: there is no file" if name == "missing.py" else "--use expects a Python file, got"
    with pytest.raises(UserError, match=sentence):
        load_plugin(tmp_path / name)


def test_the_command_line_loads_files_before_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(written(tmp_path, LEVEL))
    train = ["train", "mnist67-180", "--model.level", "Half(0.5)", "--data.name", "no-such-set"]
    train += ["--out", str(tmp_path / "run")]
    assert cli.main(train) == 2  # it is not registered yet
    assert "unknown level 'Half'" in capsys.readouterr().err
    for use in (["--use", path], [f"--use={path}"]):
        assert cli.main([*use, *train]) == 1  # it got as far as the data
        assert "unknown dataset 'no-such-set'" in capsys.readouterr().err
    broken = str(written(tmp_path, "1 / 0\n", "broken.py"))
    assert cli.main(["--use", broken, "models"]) == 1
    assert "broken.py, line 1: ZeroDivisionError" in capsys.readouterr().err


def test_groups_may_be_added_too(tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\nfrom vpgcnn.groups import Rotations\n"
        "from vpgcnn.lab.specs import register\n\n"
        "@register\n@dataclass(frozen=True)\nclass Quarters(Rotations):\n    n: int = 4\n"
    )
    load_plugin(written(tmp_path, text))
    group = specs.parse("Quarters()", Group)  # type: ignore[type-abstract]
    assert group.count == 4
    assert specs.parse(specs.text(group), Group) == group  # type: ignore[type-abstract]
