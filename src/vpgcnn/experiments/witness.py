"""What the datasets themselves say of their symmetries: neighbours as they are, and moved along the circle to fit."""

from __future__ import annotations

import torch

from vpgcnn.analysis import circle_picture, evidence
from vpgcnn.analysis.motion import Kind
from vpgcnn.data import DataConfig, load
from vpgcnn.errors import UserError
from vpgcnn.experiments.base import Row, markdown
from vpgcnn.training.progress import Quiet

__all__ = ["measure_witness", "table_witness"]

ASKED: tuple[tuple[str, Kind], ...] = (
    ("mnist67-180", "rotation"),
    ("mnist", "rotation"),
    ("colormnist", "hue"),
    ("flowers102", "hue"),
    ("flowers102", "rotation"),
    ("cifar10", "hue"),
    ("cifar10", "rotation"),
)
IMAGES = 2000


def measure_witness(_: str, progress: Quiet) -> list[Row]:
    """A row for each dataset that is here and each circle, from up to 2,000 of its test images."""
    rows = []
    progress.begin("what the data say", len(ASKED))
    for name, kind in ASKED:
        try:
            dataset = load(DataConfig(name=name, size=64 if name == "flowers102" else None))
        except UserError as reason:
            progress.say(f"{name} is left out: {reason}")
            continue
        order = torch.randperm(len(dataset.test), generator=torch.Generator().manual_seed(0))[:IMAGES]
        some = dataset.test[order]
        found = evidence(
            torch.cat([circle_picture(part.float() / 255, kind) for part in some.images.split(128)]), some.labels
        )
        mean, error = found.told()
        rows.append({
            "arm": f"{name}, {kind}", "data": dataset.notes[0] if dataset.notes else name, "images": len(some),
            "as_is": round(float(found.as_is.mean()), 4), "free": round(float(found.free.mean()), 4),
            "chance": round(found.chance, 4), "difference": round(mean, 4), "error": round(error, 4),
            "share": round(found.share, 4), "matters": found.matters(),
        })  # fmt: skip
        progress.advance(1)
    if not rows:
        raise UserError("none of the datasets is here: `vpgcnn datasets` says where they are looked for")
    return rows


def table_witness(rows: list[Row]) -> str:
    """One line for each dataset and circle."""
    heads = ["data, circle", "images", "neighbours as they are", "moved to fit", "chance", "lost", "the circle tells"]
    said = {True: "yes", False: "no", None: "cannot say"}
    lines = [
        [
            row["arm"], row["images"], f"{row['as_is']:.1%}", f"{row['free']:.1%}", f"{row['chance']:.1%}",
            f"{100 * row['difference']:.1f} ± {100 * row['error']:.1f} points ({row['share']:.0%})",
            said[row["matters"]],
        ]
        for row in rows
    ]  # fmt: skip
    return markdown(heads, lines)
