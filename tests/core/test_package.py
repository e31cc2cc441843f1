"""What installs and imports: small, typed, in layers."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import vpgcnn

SOURCE = Path(vpgcnn.__file__).parent


def test_import_brings_nothing_heavy() -> None:
    heavy = ["matplotlib", "plotly", "fastapi", "uvicorn", "accelerate", "tyro", "rich", "scipy", "mlxtend", "kornia"]
    heavy += ["huggingface_hub"]
    code = f"import sys, vpgcnn; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_core_imports_no_lab_and_no_apps() -> None:
    """All of it, in a process of its own; import-linter holds the finer order (`make lint`)."""
    core = [path for path in SOURCE.rglob("*.py") if not {"lab", "apps"} & set(path.relative_to(SOURCE).parts)]
    names = [".".join(("vpgcnn", *path.relative_to(SOURCE).with_suffix("").parts)) for path in core]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    assert "vpgcnn.nn.conv" in names
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]; " + (
        "print([name for name in sys.modules if name.startswith(('vpgcnn.lab', 'vpgcnn.apps'))])"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_waits_for_nothing() -> None:
    code = "import sys, vpgcnn.apps.cli; vpgcnn.apps.cli.main(['--help']); "
    code += "print('torch' in sys.modules, 'numpy' in sys.modules)"
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
