"""table-evidence: what datasets reveal about their symmetries, as `vpgcnn look` sees them."""

from __future__ import annotations

import torch

from vpgcnn.errors import UserError
from vpgcnn.lab.data import DataConfig, load
from vpgcnn.lab.diagnosis.look import SURE, ask
from vpgcnn.lab.experiments.base import Count, Row, markdown
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.training.progress import Quiet
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
IMAGES = 1000


def measure_evidence(_: str, progress: Quiet) -> list[Row]:
    """A row for each available dataset and circle, from up to 1,000 test images."""
    rows = []
    for name, kind in PAIRS:
        try:
            dataset = load(DataConfig(name=name, size=64 if name == "flowers102" else None))
        except UserError as reason:
            progress.message(f"{name} is left out: {reason}")
            continue
        order = torch.randperm(len(dataset.test), generator=torch.Generator().manual_seed(0))[:IMAGES]
        some = dataset.test[order]
        progress.begin(f"{name}, {kind}", 2)
        found = ask(kind, to_unit(some.images), some.labels, progress)
        row: Row = {
            "arm": f"{name}, {kind}", "data": dataset.notes[0] if dataset.notes else name, "images": len(some),
            "twins": len(found.twins), "carried": found.carrying,
        }  # fmt: skip
        if found.spread is not None and found.carried is not None:
            (gain, error), known = found.carried.gain, found.carried
            row |= {
                "told": round(found.spread.told, 4), "told_error": round(found.spread.error, 4),
                "with": round(float(known.aware.mean()), 4), "without": round(float(known.averaged.mean()), 4),
                "chance": round(known.chance, 4), "difference": round(gain, 4), "error": round(error, 4),
                "share": round(known.share, 4),
            }  # fmt: skip
        rows.append(row)
    if not rows:
        raise UserError("none of the datasets is available: `vpgcnn datasets` prints where they are expected")
    return rows


def table_evidence(rows: list[Row]) -> str:
    """One line for each dataset and circle."""
    heads = ["data, circle", "images", "originals told", "with the place", "without", "chance", "difference", "twins"]
    lines = []
    for row in rows:
        shown = ["–"] * 5
        if "told" in row:
            shown = [
                f"{row['told']:.0%} ± {SURE * row['told_error']:.0%}", f"{row['with']:.1%}", f"{row['without']:.1%}",
                f"{row['chance']:.1%}",
                f"{100 * row['difference']:+.1f} ± {100 * SURE * row['error']:.1f} points ({row['share']:.0%})",
            ]  # fmt: skip
        said = row["carried"] if row["carried"] in ("yes", "no") else "cannot say"
        lines.append([row["arm"], row["images"], *shown, row["twins"], said])
    return markdown([*heads, "class carried"], lines)


COUNT = Count(
    name="table-evidence",
    about="what the datasets themselves reveal about rotation and hue, without any network (not in the paper)",
    rows=measure_evidence,
    table=table_evidence,
    notes=(
        "The two tests of `vpgcnn look`, with 99 % intervals. Originals told: in how many pairs of an image and a "
        "moved copy the original is picked (50 %: images are spread evenly). With and without the place: how often "
        "simple features predict the class of held-out images.",
        "Difference: in brackets, as a share of what the features know beyond chance. Twins: the number of classes "
        "that a move turns into another class, which turns back into them.",
    ),
)
