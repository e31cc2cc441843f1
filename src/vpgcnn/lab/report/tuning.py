"""The page that `vpgcnn tune` writes: what open windows cost, and what they buy."""

from __future__ import annotations

from collections.abc import Sequence

from vpgcnn.lab.report.chart import Axis, Chart, Curve, Panel, up_to
from vpgcnn.lab.report.page import shell, tiles
from vpgcnn.lab.report.static import to_svg

__all__ = ["tuning_chart", "tuning_page"]

DIAL = Axis("dial: −1 closes all windows, 0 leaves them as learned, 1 opens all", [(x, f"{x:g}") for x in (-1, 0, 1)])


def tuning_chart(dials: Sequence[float], accuracy: Sequence[float], moved: Sequence[float]) -> Chart:
    """Accuracy of images as they are, and of moved images, against the dial.

    Args:
        dials: From −1 to 1.
        accuracy: At each dial, as a share.
        moved: Likewise.
    """
    curves = [Curve("images as they are", accuracy), Curve("images moved to every place", moved)]
    return Chart([Panel("What open windows cost, and what they buy", dials, curves, DIAL, up_to("accuracy"))])


def tuning_page(
    dials: Sequence[float],
    accuracy: Sequence[float],
    moved: Sequence[float],
    *,
    chosen: float,
    promise: str,
    images: int,
) -> str:
    """One HTML page.

    Args:
        dials: The settings that were tried.
        accuracy: Accuracy at each setting, as a share.
        moved: Accuracy of moved images at each setting, as a share.
        chosen: The setting that was taken.
        promise: What is promised about it, one sentence.
        images: The number of images that the promise rests on.
    """
    place = list(dials).index(chosen)
    body = "<h1>How open should the windows be?</h1>"
    body += f'<p class="lead say">{promise}</p>'
    body += tiles(
        [
            (f"{chosen:+.1f}", "dial: −1 closed, 0 as learned, +1 open"),
            (f"{accuracy[place]:.1%}", f"accuracy on {images:,} images, {accuracy[0]:.1%} with closed windows"),
            (f"{moved[place]:.1%}", f"accuracy of moved images, {moved[0]:.1%} with closed windows"),
        ]
    )
    body += f'<div class="row">{to_svg(tuning_chart(dials, accuracy, moved))}</div>'
    body += (
        '<p class="soft">Moved images count as right if they keep the class of the original, whether or not they '
        "should: for images whose class changes when they are moved, this number should not reach 100 %.</p>"
    )
    return shell("How open should the windows be?", body)
