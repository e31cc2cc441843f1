"""vpgcnn hub."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vpgcnn.apps.commands.common import data_dir_option, parser
from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from vpgcnn.apps.hub import Pretrained

ABOUT = """Save a trained network as a folder in the format of the Hugging Face Hub, or push it to the Hub.

  model.safetensors   weights and card; every vpgcnn command takes this file or its folder
  config.json         the card: network, classes, image size, mean and standard deviation
  README.md           the model card: data, training, metrics, levels and limitations

If the data of the run are on this machine, the command measures the levels on the test images. The files contain no
paths of this machine."""
EXAMPLES = """examples:
  vpgcnn hub save runs/mnist67-180 mnist67-net --license mit
  vpgcnn hub push runs/mnist67-180 you/mnist67-net --private --dry-run      shows what would be sent
  vpgcnn hub push mnist67-net you/mnist67-net                               a saved folder, including your README

in Python:
  from vpgcnn.apps.hub import Pretrained
  net = Pretrained.from_pretrained("mnist67-net")            a folder, or the name of a repository
  net.classify(images).names

To push you need an account: log in with `hf auth login`, or set the variable HF_TOKEN.
"""
MEASURED = 1024
"""Levels are measured on at most this many test images."""


def main(arguments: list[str]) -> int:
    """Save or push a network."""
    command = parser("hub", ABOUT)
    command.epilog = EXAMPLES
    actions = command.add_subparsers(dest="action", required=True, metavar="save | push")
    about = {
        "save": "Write a network and its model card to a folder.",
        "push": "Push a network and its model card to a repository on the Hugging Face Hub; creates the repository.",
    }
    for name, text in about.items():
        part = actions.add_parser(name, help=text, description=text)
        part.add_argument("run", type=Path, help="folder of a run, weights file, or saved folder")
        if name == "save":
            part.add_argument("folder", type=Path, help="folder to write")
        else:
            part.add_argument("repo_id", help="repository, as owner/name")
            part.add_argument("--private", action="store_true", help="create the repository as private")
            part.add_argument("--dry-run", action="store_true", help="show what would be sent, without sending it")
        part.add_argument("--license", default="", help="licence, such as mit or cc-by-4.0 (default: none)")
        data_dir_option(part)
    options = command.parse_args(arguments)
    return _save(options) if options.action == "save" else _push(options)


def _save(options: argparse.Namespace) -> int:
    from vpgcnn.apps.hub.folder import FILES, is_edited

    net = _network(options)
    kept = is_edited(options.folder / "README.md")
    net.save_pretrained(options.folder)
    for name in FILES:
        if name == "README.md" and kept:
            print(f"kept: {options.folder / name}, which you edited; no model card was written")  # noqa: T201
        else:
            print(f"written: {_sized(options.folder / name)}")  # noqa: T201
    return 0


def _push(options: argparse.Namespace) -> int:
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils._validators import validate_repo_id

    from vpgcnn.apps.hub.folder import FILES, is_edited, plainly

    with plainly(f"{options.repo_id!r} is not the name of a repository"):
        validate_repo_id(options.repo_id)
    net = _network(options)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / options.repo_id.rsplit("/", 1)[-1]
        net.save_pretrained(folder, model_card_kwargs={"source": options.repo_id})
        if options.run.is_dir() and is_edited(options.run / "README.md"):
            (folder / "README.md").write_bytes((options.run / "README.md").read_bytes())
        kind = "private" if options.private else "public, unless the owner's default is private"
        print(f"to: {options.repo_id} on {constants.ENDPOINT} (a new repository will be {kind})")  # noqa: T201
        for name in FILES:
            print(f"sends: {_sized(folder / name, name)}", flush=True)  # noqa: T201
        if options.dry_run:
            print("nothing was sent")  # noqa: T201
            return 0
        with plainly(f"cannot push to {options.repo_id}"):
            api = HfApi()
            made = api.create_repo(options.repo_id, private=options.private or None, exist_ok=True)
            commit = api.upload_folder(
                repo_id=made.repo_id, repo_type="model", folder_path=folder, allow_patterns=list(FILES),
                commit_message="Upload vpgcnn network",
            )  # fmt: skip
    print(f"pushed: {commit.commit_url}")  # noqa: T201
    return 0


def _network(options: argparse.Namespace) -> Pretrained:
    """Load the network, and measure its levels if the data are available."""
    from dataclasses import replace

    import torch

    from vpgcnn.apps.hub import Pretrained
    from vpgcnn.lab.data import load

    net = Pretrained.of(options.run, license=options.license)
    if net.record.levels:
        return net
    try:
        from vpgcnn.apps.commands.use import load_run

        data = load(load_run(options.run)[2], options.data_dir)
        if data.fingerprint() != net.record.fingerprint:
            raise UserError("the data on this machine differ from those of the run, or the run is not finished")
        if not len(data.test):
            raise UserError("there are no test images")
    except UserError as error:
        print(f"levels were not measured: {error}")  # noqa: T201
        return net
    net.record = replace(net.record, train_images=len(data.train))
    # Spread over all test images, which may be sorted by class.
    chosen = torch.linspace(0, len(data.test) - 1, min(MEASURED, len(data.test))).round().long()
    net.measure(data.test[chosen], "test images")
    return net


def _sized(path: Path, name: str = "") -> str:
    return f"{name or path} ({path.stat().st_size / 1000:,.1f} kB)"
