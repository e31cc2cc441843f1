"""table-evidence: what datasets reveal about their symmetries, by comparing images as they are and moved to fit."""

from __future__ import annotations

import torch

from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.experiments.base import Count, Row, markdown
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.measure import circle_picture, evidence
from vpgcnn.measure.motion import Kind

__all__ = ["COUNT", "measure_evidence", "table_evidence"]

PAIRS: tuple[tuple[str, Kind], ...] = (
    ("mnist67-180", "rotation"),
    ("mnist", "rotation"),
    ("colormnist", "hue"),
    ("flowers102", "hue"),
    ("flowers102", "rotation"),
    ("cifar10", "hue"),
    ("cifar10", "rotation"),
)
IMAGES = 2000


def measure_evidence(_: str, progress: Quiet) -> list[Row]:
    """A row for each available dataset and circle, from up to 2,000 test images."""
    rows = []
    progress.begin("evidence", len(PAIRS))
    for name, kind in PAIRS:
        try:
            dataset = load(DataConfig(name=name, size=64 if name == "flowers102" else None))
        except UserError as reason:
            progress.message(f"{name} is left out: {reason}")
            continue
        order = torch.randperm(len(dataset.test), generator=torch.Generator().manual_seed(0))[:IMAGES]
        some = dataset.test[order]
        found = evidence(
            torch.cat([circle_picture(to_unit(part), kind) for part in some.images.split(128)]), some.labels
        )
        mean, error = found.gain()
        rows.append({
            "arm": f"{name}, {kind}", "data": dataset.notes[0] if dataset.notes else name, "images": len(some),
            "as_is": round(float(found.as_is.mean()), 4), "free": round(float(found.free.mean()), 4),
            "chance": round(found.chance, 4), "difference": round(mean, 4), "error": round(error, 4),
            "share": round(found.share, 4), "matters": found.matters(),
        })  # fmt: skip
        progress.advance(1)
    if not rows:
        raise UserError("none of the datasets is available: `vpgcnn datasets` prints where they are expected")
    return rows


def table_evidence(rows: list[Row]) -> str:
    """One line for each dataset and circle."""
    heads = ["data, circle", "images", "neighbours as they are", "moved to fit", "chance", "lost", "position matters"]
    words = {True: "yes", False: "no", None: "cannot say"}
    lines = [
        [
            row["arm"], row["images"], f"{row['as_is']:.1%}", f"{row['free']:.1%}", f"{row['chance']:.1%}",
            f"{100 * row['difference']:.1f} ± {100 * row['error']:.1f} points ({row['share']:.0%})",
            words[row["matters"]],
        ]
        for row in rows
    ]  # fmt: skip
    return markdown(heads, lines)


COUNT = Count(
    name="table-evidence",
    about="what the datasets themselves reveal about rotation and hue, without any network (not in the paper)",
    rows=measure_evidence,
    table=table_evidence,
    notes=(
        "The class of each test image is guessed from its five nearest neighbours among the others, by its histogram "
        "of hues or by its coarse shape in polar coordinates: once as they are, once with each neighbour moved along "
        "the circle to where it fits best.",
        "Lost: the information in the position on the circle (in brackets: as a share of what neighbours know beyond "
        "chance).",
    ),
)
