"""A release is cut in one step, or not at all."""

from __future__ import annotations

import datetime as dt
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILES = ("CHANGELOG.md", "CITATION.cff", "src/vpgcnn/__init__.py")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if "(unreleased)" not in changelog:  # just after a release
        changelog = changelog.replace("## ", "## 9.9.9 (unreleased)\n\n## ", 1)
        (tmp_path / "CHANGELOG.md").write_text(changelog, encoding="utf-8")
    return tmp_path


def test_version_and_date_are_set_everywhere(
    release: ModuleType, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
    version = text.split(" (unreleased)")[0].rpartition("## ")[2]
    for day in (dt.date(2026, 12, 1), dt.date(2026, 12, 2)):  # a second time, after the heading is open again
        release.cut_release(copy, version, day)
        changelog = (copy / "CHANGELOG.md").read_text(encoding="utf-8")
        assert changelog == text.replace(f"## {version} (unreleased)", f"## {version} ({day})")
        citation = (copy / "CITATION.cff").read_text(encoding="utf-8").splitlines()
        assert [line for line in citation if line.startswith(("version", "date-released"))] == [
            f"version: {version}",
            f"date-released: {day}",
        ]
        assert f'\n__version__ = "{version}"\n' in (copy / FILES[2]).read_text(encoding="utf-8")
        assert f"git commit -am 'Release {version}' && git tag v{version};" in capsys.readouterr().out
        (copy / "CHANGELOG.md").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("version", ["1.2.3", "0.3", "0.3.0rc1", "v0.3.0", ""])
def test_a_version_that_has_no_section_changes_nothing(release: ModuleType, copy: Path, version: str) -> None:
    before = {name: (copy / name).read_bytes() for name in FILES}
    with pytest.raises(SystemExit):
        release.cut_release(copy, version, dt.date(2026, 12, 1))
    assert {name: (copy / name).read_bytes() for name in FILES} == before


def test_the_floors_are_those_of_pyproject(release: ModuleType) -> None:
    core = release.floors_of("")
    assert core == ["numpy==1.26", "safetensors==0.4.3"]
    serve = dict(line.split("==") for line in release.floors_of("serve"))
    assert serve["pillow"] == "12", "the highest floor of all extras that are installed together"
    assert "torch" not in serve
    for extra in release.TRY:
        assert all("==" in line for line in release.floors_of(extra)), extra


def test_the_lowest_versions_that_were_tried_are_kept(release: ModuleType, tmp_path: Path) -> None:
    """A trial that was stopped goes on; another torch starts anew."""
    one = {"extra": "core", "versions": ["numpy==1.26"], "problem": ""}
    two = {"extra": "train", "versions": ["tyro==0.9.1"], "problem": "it failed:\nno module named tyro"}
    release.write_floors(tmp_path, [one])
    release.write_floors(tmp_path, [*release.earlier_floors(tmp_path).values(), two])
    assert release.earlier_floors(tmp_path) == {"core": one, "train": two}
    text = (tmp_path / "release-floors.md").read_text(encoding="utf-8")
    assert "| core | – | numpy 1.26 | works |" in text
    assert "fails: no module named tyro" in text
    path = tmp_path / "release-floors.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"torch": "', '"torch": "0.'), encoding="utf-8")
    assert release.earlier_floors(tmp_path) == {}
