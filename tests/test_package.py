"""What installs and imports: small, typed, in layers."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import vpgcnn

SOURCE = Path(vpgcnn.__file__).parent
ORDER = [
    "precision",
    "resample",
    "groups",
    "features",
    "centring",
    "distributions",
    "encoders",
    "levels",
    "kernels",
    "cyclic",
    "conv",
    "norm",
    "pool",
    "testing",
]


def test_import_brings_nothing_heavy() -> None:
    heavy = ["matplotlib", "plotly", "fastapi", "uvicorn", "accelerate", "tyro", "rich", "scipy", "mlxtend", "kornia"]
    code = f"import sys, vpgcnn; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_imports_point_downwards() -> None:
    """A file imports only from files above it in the list."""
    assert sorted(ORDER) == sorted(path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__")
    for position, name in enumerate(ORDER):
        tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vpgcnn"):
                inner = [node.module.removeprefix("vpgcnn.")] if "." in node.module else [a.name for a in node.names]
                assert all(ORDER.index(other) < position for other in inner), f"{name} imports {inner}"


def test_public_names_are_there_and_documented() -> None:
    assert sorted(vpgcnn.__all__, key=str.lower) == sorted(set(vpgcnn.__all__), key=str.lower)
    for name in vpgcnn.__all__:
        assert (getattr(vpgcnn, name).__doc__ or "").strip(), name


def test_it_is_typed_and_versioned() -> None:
    assert (SOURCE / "py.typed").exists()
    assert metadata.version("vpgcnn") == vpgcnn.__version__


def test_groups_know_nothing_of_layers() -> None:
    assert "torch.nn" not in (SOURCE / "groups.py").read_text(encoding="utf-8")
