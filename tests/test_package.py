"""What installs and imports: small, typed, in layers."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import vpgcnn

SOURCE = Path(vpgcnn.__file__).parent
ORDER = [
    "errors",
    "allocator",
    "serial",
    "function",
    "processes",
    "precision",
    "drop",
    "layout",
    "resample",
    "groups",
    "hsv",
    "features",
    "centring",
    "distributions",
    "encoders",
    "levels",
    "kernels",
    "cyclic",
    "spectral",
    "own",
    "conv",
    "norm",
    "pool",
    "testing",
    "convert",
    "models.config",
    "models.base",
    "models.se2",
    "models.color",
    "models.plain",
    "models.augmented",
    "models.policy",
    "models.registry",
    "models",
    "objective",
    "deploy",
    "data.config",
    "data.files",
    "data.base",
    "data.augment",
    "data.mnist",
    "data.ranges",
    "data.cifar",
    "data.colormnist",
    "data.turn_hue",
    "data.own",
    "data.stream",
    "data.flowers",
    "data.registry",
    "data",
    "report.chart",
    "report.svg",
    "report.png",
    "report.interactive",
    "report.picture",
    "analysis.awareness",
    "analysis.reading",
    "analysis.curves",
    "analysis.scores",
    "analysis.moves",
    "analysis.motion",
    "analysis.layers",
    "analysis.orbits",
    "analysis.local",
    "analysis.evidence",
    "analysis.table",
    "analysis",
    "training.config",
    "training.recipes",
    "training.optimisers",
    "training.seeds",
    "training.checkpoint",
    "training.checks",
    "training.run",
    "training.record",
    "training.progress",
    "training.batches",
    "training.search",
    "training.suggest",
    "training.loop",
    "training",
    "modelcard",
    "hub",
    "report.page",
    "report.digits",
    "report.colors",
    "report.diagnosis",
    "report",
    "diagnosis.classifiers",
    "diagnosis.study",
    "diagnosis.words",
    "diagnosis",
    "serve.inspector",
    "serve.schema",
    "serve.limits",
    "serve.app",
    "serve",
    "experiments.base",
    "experiments.arms",
    "experiments.notes",
    "experiments.digits",
    "experiments.photographs",
    "experiments.colors",
    "experiments.principle",
    "experiments.turn_hue",
    "experiments.ranges",
    "experiments.stability",
    "experiments.cost",
    "experiments.witness",
    "experiments.claims",
    "experiments.views",
    "experiments.pages",
    "experiments.registry",
    "experiments.runner",
    "experiments",
    "commands.common",
    "commands.use",
    "commands.train",
    "commands.evaluate",
    "commands.predict",
    "commands.models",
    "commands.datasets",
    "commands.info",
    "commands.diagnose",
    "commands.serve",
    "commands.convert",
    "commands.export",
    "commands.hub",
    "commands.reproduce",
    "commands.demo",
    "commands",
    "cli",
    "__main__",
]


def test_import_brings_nothing_heavy() -> None:
    heavy = ["matplotlib", "plotly", "fastapi", "uvicorn", "accelerate", "tyro", "rich", "scipy", "mlxtend", "kornia"]
    heavy += ["huggingface_hub"]
    code = f"import sys, vpgcnn; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return {name: path for name, path in found.items() if name}


def test_imports_point_downwards() -> None:
    """A file imports only from files above it in the list."""
    files = modules()
    assert sorted(ORDER) == sorted(files)
    for position, name in enumerate(ORDER):
        for node in ast.walk(ast.parse(files[name].read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("vpgcnn"):
                continue
            home = (node.module or "").removeprefix("vpgcnn").removeprefix(".")
            for alias in node.names:
                inner = f"{home}.{alias.name}".removeprefix(".")
                other = inner if inner in files else home
                if other:
                    assert ORDER.index(other) < position, f"{name} imports {other}"


def test_help_waits_for_nothing() -> None:
    code = "import sys, vpgcnn.cli; vpgcnn.cli.main(['--help']); print('torch' in sys.modules, 'numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False False"


def test_public_names_are_there_and_documented() -> None:
    assert sorted(vpgcnn.__all__, key=str.lower) == sorted(set(vpgcnn.__all__), key=str.lower)
    for name in vpgcnn.__all__:
        assert (getattr(vpgcnn, name).__doc__ or "").strip(), name


def test_it_is_typed_and_versioned() -> None:
    assert (SOURCE / "py.typed").exists()
    assert metadata.version("vpgcnn") == vpgcnn.__version__


def test_groups_know_nothing_of_layers() -> None:
    assert "torch.nn" not in (SOURCE / "groups.py").read_text(encoding="utf-8")
