"""The command `vpgcnn`. Heavy packages are imported only once the command is known."""

from __future__ import annotations

import difflib
import errno
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from vpgcnn import __version__
from vpgcnn.apps.commands.common import remember_use
from vpgcnn.errors import UserError

__all__ = ["main"]

COMMANDS = {
    "look": "look at a folder of images without a model: do orientation, colour, left and right matter?",
    "train": "train a network: vpgcnn train mnist67-180",
    "watch": "open a page that shows a run as it trains: vpgcnn watch runs/mnist67-180",
    "evaluate": "test a trained network: vpgcnn evaluate runs/mnist67-180",
    "tune": "open or close the windows of a trained network as far as a stated loss of accuracy allows",
    "predict": "classify image files, and show how much of the symmetry the network uses for each",
    "diagnose": "measure whether a classifier, yours or ours, is sensitive to rotation or hue",
    "serve": "open a page on which you rotate an image and watch how a network answers",
    "convert": "make an ordinary network equivariant; it starts with the answers it had",
    "export": "export a trained network to ONNX or torch.export",
    "hub": "save a trained network as a folder with a model card, or push it to the Hugging Face Hub",
    "reproduce": "run an experiment with all its arms and seeds, and write the result",
    "demo": "train on bundled digits for a few minutes, and write a report with figures",
    "datasets": "list, download and verify datasets",
    "models": "list the networks and their parameter counts",
    "info": "show versions, devices and folders",
}
HELP = f"""vpgcnn {__version__}: networks that learn, for each image, how much of a symmetry to use.

usage: vpgcnn [--use FILE.py] COMMAND [arguments]

{chr(10).join(f"  {name:<10} {about}" for name, about in COMMANDS.items())}

vpgcnn COMMAND --help explains a command. --use FILE.py first runs a Python file of yours that registers groups,
levels, kernels, datasets or arms; load only files that you trust.

Start with:
  vpgcnn demo                            takes a few minutes on two cores and downloads nothing
  vpgcnn train mnist67-180               the same experiment on all of MNIST, once you have the files
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The words after `vpgcnn`. None: those of this process.

    Returns:
        The exit code: 0 for success, 1 if the command failed, 2 if it was not understood, 130 if it was interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(words)
        finally:  # also after --help, which argparse ends with SystemExit
            if sys.stdout is not None:  # None: the caller closed it
                sys.stdout.flush()
    except BrokenPipeError:  # such as `vpgcnn models | head -1`
        _write_nowhere()
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        _write_nowhere()
        return _complain(f"cannot write the output: {error.strerror}", 1)


UNWRITABLE = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EBADF)
"""What goes wrong when standard output leads to a full disk, say."""


def _write_nowhere() -> None:
    """Lead standard output to nowhere, so that what is left of it is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    """Run one command; its answer is the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")  # noqa: T201
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"vpgcnn {__version__}")  # noqa: T201
        return 0
    given = words
    try:
        words = _load_plugins(given)
    except UserError as error:
        return _complain(str(error), 1)
    if not words:
        return _complain("--use FILE.py comes before a command: vpgcnn --use FILE.py train …", 2)
    remember_use(given[: len(given) - len(words)])
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(COMMANDS)}"
        return _complain(f"unknown command {name!r}: {hint}", 2)
    warnings.showwarning = _show_warning
    try:
        command = import_module(f"vpgcnn.apps.commands.{name}")
        code: int = command.main(rest)
        return code
    except UserError as error:
        return _complain(str(error), getattr(error, "exit_code", 1))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("vpgcnn"):
            raise
        return _complain(f"`vpgcnn {name}` needs the package {error.name}: pip install 'vpgcnn[all]'", 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def _load_plugins(words: list[str]) -> list[str]:
    """Load the plug-ins named before the command, and return the remaining words."""
    while words and (words[0] == "--use" or words[0].startswith("--use=")):
        inline = words[0].removeprefix("--use=") if words[0] != "--use" else None
        if inline is None and len(words) < 2:
            raise UserError("--use needs the path of a Python file")
        from vpgcnn.lab.plugins import load_plugin

        load_plugin(Path(words[1] if inline is None else inline))
        words = words[1 if inline is not None else 2 :]
    return words


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning is for the person at the keyboard: without the line of code that gave it."""
    print(f"vpgcnn: warning: {message}", file=sys.stderr)  # noqa: T201


def _complain(text: str, code: int) -> int:
    print(f"vpgcnn: {text}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
