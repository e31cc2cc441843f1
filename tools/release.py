"""Check what a user would install, and cut a release.

    python tools/release.py wheel          # build wheel and sdist, install each in an empty environment, run the README
    python tools/release.py floors         # the same with the lowest versions that pyproject.toml allows
    python tools/release.py cut 0.3.0      # set the version and date in the package, CHANGELOG.md and CITATION.cff

torch is not installed again: the environments use the one of this interpreter, through links to its folders alone, so
everything else must come from the package's own requirements. (Its floor is therefore not tested.)
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SMOKE = ("tests/core/test_package.py", "tests/core/test_features.py", "tests/core/test_trace.py")
"""A few short tests of the core, from all of its layers."""
GO = """
from vpgcnn.apps.cli import main
def go(*words):
    assert main(list(words)) == 0, words
"""
TRAIN = (
    GO
    + """
go('train', 'mnist67-180', '--data.source', 'embedded', '--data.limit', '60', '--batch-size', '16', '--epochs', '1',
   '--out', 'run', '--device', 'cpu')
"""
)
IMAGES = """
from pathlib import Path
from PIL import Image
for number in range(24):
    Path('photos', 'ab'[number % 2]).mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (40, 40), (9 * number, 120, 60)).save(Path('photos', 'ab'[number % 2], f'{number}.png'))
"""
TRY = {
    "": "import vpgcnn, vpgcnn.testing",
    "train": TRAIN + IMAGES + "go('evaluate', 'run'); go('predict', 'run', 'photos/a')",
    "demo": TRAIN + "go('evaluate', 'run')",
    "report": TRAIN + IMAGES + "go('look', 'photos'); go('tune', 'run', '--may-cost', '60%')\n"
    "from vpgcnn.lab.report.tuning import tuning_chart; from vpgcnn.lab.report.interactive import to_html\n"
    "assert 'plotly' in to_html(tuning_chart([-1.0, 0.0], [0.5, 0.6], [0.5, 0.4])).lower()",
    "serve": TRAIN
    + """
import io, base64, torch
from PIL import Image
from fastapi.testclient import TestClient
from vpgcnn.apps.serve.app import make_app
from vpgcnn.apps.serve.inspector import Inspector, load_samples, open_networks
networks, config = open_networks([__import__('pathlib').Path('run')], torch.device('cpu'))
inspector = Inspector(networks)
load_samples(inspector, config, None)
client = TestClient(make_app(inspector, ['testserver']))
stream = io.BytesIO()
Image.new('L', (40, 40), 90).save(stream, 'PNG')
for question in ({'sample': 0}, {'image': base64.b64encode(stream.getvalue()).decode()}):
    answer = client.post('/api/inspect', json=question)
    assert answer.status_code == 200 and answer.json()['networks'][0]['curve'], answer.text
assert 'Plotly' in client.get('/plotly.js').text and client.get('/').status_code == 200
""",
    "export": TRAIN + "go('export', 'run'); go('export', 'run', '--format', 'torch-export')",
    "hub": TRAIN + "go('hub', 'save', 'run', 'saved', '--license', 'mit')\n"
    "from vpgcnn.apps.hub import Pretrained; import torch\n"
    "print(Pretrained.from_pretrained('saved').classify(torch.rand(1, 1, 28, 28)).names)",
    "heic": """
from pathlib import Path
from PIL import Image
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.pixels import suffixes
assert '.heic' in suffixes()
Image.new('RGB', (64, 48), (200, 30, 30)).save('photo.heic')
assert tuple(read_image(Path('photo.heic')).shape) == (3, 48, 64)
""",
    "track": TRAIN.replace("'cpu')", "'cpu', '--track', 'tensorboard')")
    + """
from pathlib import Path
assert list(Path('run').rglob('events.out.tfevents*')), 'no events were written'
""",
}
"""Extra → a program that does its main job."""
NEEDS = {
    "train": ("demo",), "serve": ("train", "demo", "report", "dev-httpx"), "report": ("train", "demo"),
    "export": ("train", "demo"), "hub": ("train", "demo"), "track": ("train", "demo"), "heic": ("train",),
}  # fmt: skip
"""Extras that the program of an extra needs besides its own; a name with "dev-" is a package."""


def main() -> None:
    """Run one command."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = command.add_subparsers(dest="what", required=True)
    parts.add_parser("wheel", help="try wheel and sdist in empty environments")
    floors = parts.add_parser("floors", help="try the lowest versions")
    floors.add_argument("extras", nargs="*", default=list(TRY), help="'' for the core (default: all)")
    floors.add_argument("--out", type=Path, default=ROOT / "results/scripts", help="folder of the table")
    cut = parts.add_parser("cut", help="set version and date")
    cut.add_argument("version")
    options = command.parse_args()
    if options.what == "cut":
        cut_release(ROOT, options.version, dt.date.today())
        return
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        if options.what == "wheel":
            for package in build(Path(scratch)):
                try_package(package, Path(scratch) / package.suffix.strip("."))
        else:
            wheel = next(path for path in build(Path(scratch)) if path.suffix == ".whl")
            tried = earlier_floors(options.out)
            for extra in options.extras:
                row = try_floors(wheel, extra, Path(scratch) / f"floors-{extra or 'core'}")
                tried[row["extra"]] = row
                write_floors(options.out, list(tried.values()))
            sys.exit(any(row["problem"] for row in tried.values()))


def build(scratch: Path) -> list[Path]:
    """Build wheel and sdist as a user's pip would, and say what they hold."""
    python = environment(scratch / "build", torch=False)
    run(python, "-m", "pip", "install", "--quiet", "hatchling>=1.26")
    run(python, "-m", "hatchling", "build", "-d", str(scratch / "dist"), where=ROOT)
    found = sorted((scratch / "dist").iterdir())
    for path in found:
        print(f"built {path.name}, {path.stat().st_size >> 10} kB")
    assert sorted(path.suffix for path in found) == [".gz", ".whl"], found
    return found


def environment(folder: Path, *, torch: bool = True) -> Path:
    """Make an empty environment, with links to torch if that is wanted, and return its python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if torch:
        home = Path((find_spec("torch") or sys.exit("there is no torch here")).origin or "").parents[1]
        links = folder / "torch-alone"
        links.mkdir()
        for path in home.glob("*"):
            if re.fullmatch(r"(torch|torchgen|functorch)|torch-[^/]*\.dist-info", path.name):
                (links / path.name).symlink_to(path)
        site = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        (Path(site) / "torch-alone.pth").write_text(f"{links}\n", encoding="utf-8")
        # pip does not install what a linked package needs: say it again.
        text = next(links.glob("torch-*.dist-info")).joinpath("METADATA").read_text(encoding="utf-8")
        needs = re.findall(r"(?m)^Requires-Dist: ([^;\n]+)$", text)
        run(python, "-m", "pip", "install", "--quiet", *needs)
    return python


def try_package(package: Path, folder: Path) -> None:
    """Install a wheel or sdist in an empty environment and run the README there."""
    python = environment(folder)
    run(python, "-m", "pip", "install", "--quiet", str(package))
    installed = subprocess.run([python, "-m", "pip", "list", "--format", "freeze"], capture_output=True, text=True)
    print(f"{package.name} in an empty environment: {len(installed.stdout.split())} packages")
    run_readme(python, folder)
    missing = subprocess.run([python, "-m", "vpgcnn", "train", "mnist67-180"], capture_output=True, text=True)
    assert missing.returncode == 1, missing
    assert missing.stderr.count("\n") == 1, missing.stderr
    assert "pip install" in missing.stderr, missing.stderr
    print(f"  the command line without its extra: {missing.stderr.strip()}")


def run_readme(python: Path, folder: Path) -> None:
    """Run the README's program; it must print what the README says."""
    code, expected = re.findall(
        r"```python\n(.*?)```\n```text\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )[0]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=folder, env=clean)
    if done.returncode or done.stdout != expected:
        sys.exit(f"the README's program failed or printed something else:\n{done.stdout}{done.stderr}")
    print("  the README's program prints what the README says")


def floors_of(extra: str) -> list[str]:
    """The lowest versions of the core and of an extra, as pip writes them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"]

    def all_of(requirements: list[str]) -> list[str]:
        found = []
        for requirement in requirements:
            nested = re.fullmatch(r"vpgcnn\[(.*)\]", requirement)
            found += (
                [each for name in nested[1].split(",") for each in all_of(groups[name])] if nested else [requirement]
            )
        return found

    wanted = list(project["dependencies"])
    for name in (extra, *NEEDS.get(extra, ())):
        own = [each for each in groups["dev"] if each.startswith(name.removeprefix("dev-") + ">=")]
        wanted += own if name.startswith("dev-") else all_of(groups[name]) if name else []
    lowest: dict[str, str] = {}
    for requirement in wanted:
        name, version = re.match(r"([\w.\[\]-]+)>=([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        key = [int(part) for part in version.split(".")]
        if name not in lowest or key > [int(part) for part in lowest[name].split(".")]:  # extras may ask for more
            lowest[name] = version
    return [f"{name}=={version}" for name, version in lowest.items() if name != "torch"]


def try_floors(wheel: Path, extra: str, folder: Path) -> dict[str, Any]:
    """Install the lowest versions and use them; what goes wrong is part of the answer."""
    lowest = floors_of(extra)
    print(f"floors of {extra or 'the core'}: {' '.join(lowest)}", flush=True)
    problem = ""
    try:
        python = environment(folder)
        run(python, "-m", "pip", "install", "--quiet", str(wheel), *lowest)
        run_readme(python, folder)
        if not extra:
            run(python, "-m", "pip", "install", "--quiet", "pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100")
            run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMOKE, where=ROOT)
        run(python, "-c", TRY[extra], where=folder)
    except SystemExit as error:
        problem = str(error)
    shutil.rmtree(folder, ignore_errors=True)
    print("  " + (problem or f"{extra or 'the core'} works"), flush=True)
    return {"extra": extra or "core", "versions": lowest, "problem": problem}


def earlier_floors(folder: Path) -> dict[str, dict[str, Any]]:
    """What was tried before with this python and this torch, by extra."""
    path = folder / "release-floors.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = (found.get("python"), found.get("torch")) == (platform.python_version(), version("torch"))
    return {row["extra"]: row for row in found["rows"]} if same else {}


def write_floors(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table of the versions that were tried."""
    python, torch = platform.python_version(), version("torch")
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"python": python, "torch": torch, "rows": rows}
    (folder / "release-floors.json").write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    lines = [
        "# The lowest versions",
        "",
        f"`python tools/release.py floors`, with Python {python} and torch {torch}.",
        "",
    ]
    lines += ["| extra | with | versions | its main job |", "|---|---|---|---|"]
    for row in rows:
        needs = ", ".join(name.removeprefix("dev-") for name in NEEDS.get(row["extra"], ())) or "–"
        lines.append(
            f"| {row['extra']} | {needs} | {', '.join(each.replace('==', ' ') for each in row['versions'])} | "
            f"{'fails: ' + row['problem'].strip().splitlines()[-1][:120] if row['problem'] else 'works'} |"
        )
    (folder / "release-floors.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(python: Path, *words: str, where: Path | None = None) -> None:
    """Run python; stop with what it said if it fails."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(python), *words], cwd=where, env=clean, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)[:300]} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def cut_release(root: Path, new: str, day: dt.date) -> None:
    """Set version and date everywhere. Nothing is written unless everything fits.

    Args:
        root: The repository.
        new: The new version, such as 0.3.0; CHANGELOG.md must have its section, marked as unreleased.
        day: The day of the release.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", new):
        sys.exit(f"a version has three numbers, such as 0.3.0, got {new!r}")
    heading = f"## {new} (unreleased)"
    changes = {
        "CHANGELOG.md": [(re.escape(heading), f"## {new} ({day.isoformat()})")],
        "src/vpgcnn/__init__.py": [(r'(?m)^__version__ = ".*"$', f'__version__ = "{new}"')],
        "CITATION.cff": [
            (r"(?m)^version: .*\n(?:date-released: .*\n)?", f"version: {new}\ndate-released: {day.isoformat()}\n"),
        ],
    }
    texts = {}
    for name, edits in changes.items():
        text = (root / name).read_text(encoding="utf-8")
        for pattern, instead in edits:
            text, count = re.subn(pattern, instead, text)
            if count != 1:
                sys.exit(f"{name} does not have exactly one {pattern!r}: nothing was changed")
        texts[name] = text
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")
        print(f"wrote {name}")
    print(f"next: git commit -am 'Release {new}' && git tag v{new}; see CONTRIBUTING.md, A release")


if __name__ == "__main__":
    main()
