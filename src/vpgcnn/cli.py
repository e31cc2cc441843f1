"""The command `vpgcnn`. Nothing heavy is imported before it is known which command is wanted."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vpgcnn import __version__
from vpgcnn.errors import UserError

__all__ = ["main"]

COMMANDS = {
    "train": "train a network: vpgcnn train mnist67-180",
    "evaluate": "test a trained network: vpgcnn evaluate runs/mnist67-180",
    "predict": "classify image files, and say how much of the symmetry was used for each",
    "diagnose": "is a classifier, yours or ours, sensitive to rotation or hue, and is that right?",
    "serve": "a page to turn an image and watch what a network says of it",
    "convert": "make an ordinary network equivariant, beginning with the answers it has",
    "export": "make of a trained network an ONNX file or an exported program",
    "hub": "save a trained network as a folder with a model card, or push it to the Hugging Face hub",
    "reproduce": "run an experiment with all its arms and seeds, and write its result",
    "demo": "train on embedded digits for a few minutes and write a report with pictures",
    "datasets": "list, fetch and verify datasets",
    "models": "list networks with their numbers of parameters",
    "info": "versions, devices and folders",
}
HELP = f"""vpgcnn {__version__}: networks that learn, for each image, how much of a symmetry to use.

usage: vpgcnn COMMAND [arguments]        vpgcnn COMMAND --help explains one

{chr(10).join(f"  {name:<10} {about}" for name, about in COMMANDS.items())}

Begin with:
  vpgcnn demo                            a few minutes on two cores, nothing is downloaded
  vpgcnn train mnist67-180               the same experiment on all of MNIST, if it is there
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 could not be done, 2 not understood, 130 stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")  # noqa: T201
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"vpgcnn {__version__}")  # noqa: T201
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        return _complain(f"unknown command {name!r}: choose from {', '.join(COMMANDS)}", 2)
    try:
        command = import_module(f"vpgcnn.commands.{name}")
        code: int = command.main(rest)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _complain(str(error), 1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("vpgcnn"):
            raise
        return _complain(f"`vpgcnn {name}` needs the package {error.name}: pip install 'vpgcnn[all]'", 1)
    except KeyboardInterrupt:
        return _complain("stopped", 130)
    except BrokenPipeError:  # say, `vpgcnn models | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(text: str, code: int) -> int:
    print(f"vpgcnn: {text}", file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
