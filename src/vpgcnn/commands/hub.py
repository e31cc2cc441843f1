"""vpgcnn hub."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.hub import Pretrained

ABOUT = """Save a trained network as a folder that the Hugging Face hub understands, or send it there.

  model.safetensors   weights with their card; every command of vpgcnn takes it, or its folder
  config.json         the card: network, classes, size and standardisation of images
  README.md           a page with data, training, metrics, levels and limits, made from the run

Where the run's data are on this machine, the levels are measured on its test images. Paths of this machine are left
out."""
EXAMPLES = """examples:
  vpgcnn hub save runs/mnist67-180 mnist67-net --license mit
  vpgcnn hub push runs/mnist67-180 you/mnist67-net --private --dry-run      says what would be sent
  vpgcnn hub push mnist67-net you/mnist67-net                               a saved folder, your README included

in Python:
  from vpgcnn.hub import Pretrained
  net = Pretrained.from_pretrained("mnist67-net")            a folder, or a repository by its name
  net.classify(images).names

Pushing needs an account: `hf auth login` keeps its token, or the variable HF_TOKEN holds it.
"""
MEASURED = 1024
"""Test images that levels are measured on, at most."""


def main(arguments: list[str]) -> int:
    """Save or push a network."""
    command = parser("hub", ABOUT)
    command.epilog = EXAMPLES
    actions = command.add_subparsers(dest="action", required=True, metavar="save | push")
    about = {
        "save": "Write a network and its page into a folder.",
        "push": "Send a network and its page to a repository on the Hugging Face hub; a new one is made.",
    }
    for name, text in about.items():
        part = actions.add_parser(name, help=text, description=text)
        part.add_argument("run", type=Path, help="a run's folder, a weights file, or a folder that was saved")
        if name == "save":
            part.add_argument("folder", type=Path, help="folder to write")
        else:
            part.add_argument("repo_id", help="owner/name of the repository")
            part.add_argument("--private", action="store_true", help="make a new repository private")
            part.add_argument("--dry-run", action="store_true", help="say what would be sent, and send nothing")
        part.add_argument("--license", default="", help="its licence, say mit or cc-by-4.0 (default: none is stated)")
        data_dir_option(part)
    options = command.parse_args(arguments)
    return _save(options) if options.action == "save" else _push(options)


def _save(options: argparse.Namespace) -> int:
    from vpgcnn.hub import FILES, own_words

    net = _network(options)
    kept = own_words(options.folder / "README.md")
    net.save_pretrained(options.folder)
    for name in FILES:
        if name == "README.md" and kept:
            print(f"kept: {options.folder / name}, which is yours; no page about the network was written")  # noqa: T201
        else:
            print(f"written: {_sized(options.folder / name)}")  # noqa: T201
    return 0


def _push(options: argparse.Namespace) -> int:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils._validators import validate_repo_id

    from vpgcnn.hub import FILES, own_words, plainly

    with plainly(f"{options.repo_id!r} is no name of a repository"):
        validate_repo_id(options.repo_id)
    net = _network(options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / options.repo_id.rsplit("/", 1)[-1]
        net.save_pretrained(folder, model_card_kwargs={"source": options.repo_id})
        if options.run.is_dir() and own_words(options.run / "README.md"):
            (folder / "README.md").write_bytes((options.run / "README.md").read_bytes())
        kind = "private" if options.private else "public, unless the owner's default is private"
        print(f"to: {options.repo_id} on {constants.ENDPOINT} (a new repository will be {kind})")  # noqa: T201
        for name in FILES:
            print(f"sends: {_sized(folder / name, name)}", flush=True)  # noqa: T201
        if options.dry_run:
            print("nothing was sent")  # noqa: T201
            return 0
        with plainly(f"{options.repo_id} cannot be pushed"):
            api = HfApi()
            made = api.create_repo(options.repo_id, private=options.private or None, exist_ok=True)
            commit = api.upload_folder(
                repo_id=made.repo_id, repo_type="model", folder_path=folder, allow_patterns=list(FILES),
                commit_message="A network of vpgcnn",
            )  # fmt: skip
    print(f"pushed: {commit.commit_url}")  # noqa: T201
    return 0


def _network(options: argparse.Namespace) -> Pretrained:
    """The network, with its levels measured where that can be done."""
    from dataclasses import replace

    import torch

    from vpgcnn.data import load
    from vpgcnn.hub import Pretrained

    net = Pretrained.of(options.run, license=options.license)
    if net.record.levels:
        return net
    try:
        from vpgcnn.commands.use import load_run

        data = load(load_run(options.run)[2], options.data_dir)
        if data.fingerprint() != net.record.fingerprint:
            raise UserError("the data that are here are others, or the run is not finished")
        if not len(data.test):
            raise UserError("there are no test images")
    except UserError as error:
        print(f"levels are not measured: {error}")  # noqa: T201
        return net
    net.record = replace(net.record, train_images=len(data.train))
    # Evenly over the whole part: test images may be in the order of their classes.
    chosen = torch.linspace(0, len(data.test) - 1, min(MEASURED, len(data.test))).round().long()
    net.measure(data.test[chosen], "test images")
    return net


def _sized(path: Path, name: str = "") -> str:
    return f"{name or path} ({path.stat().st_size / 1000:,.1f} kB)"
