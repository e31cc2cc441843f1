"""How far the rule's algorithm and the measured one are from the fastest: `python benchmarks/paths.py [SECONDS]`.

For each convolution all algorithms are timed side by side, forward and backward; then the choice that
`measured_paths` makes is looked up. Ratios over the fastest; nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from layers import SEPARABLE, Shape, layer, training_step
from timing import clock
from vpgcnn import SO2, Group, GroupConv2d, Hue
from vpgcnn._ops import choice
from vpgcnn.kernels import KernelSpec
from vpgcnn.nn import measured_paths

COLOUR = [
    *(Shape(batch, 17, 17, size, 3, 0) for batch in (1, 16, 64) for size in (8, 12, 26)),
    *(Shape(16, width, width, size) for width, size in ((8, 28), (32, 16), (64, 8), (110, 4), (110, 8), (221, 4))),
]
TURNING = [
    *(Shape(batch, 16, 16, size, 7, 3) for batch in (1, 16) for size in (12, 20, 32)),
    *(Shape(8, 16, 16, size, 5, 2) for size in (12, 20, 32)),
]
CASES: list[tuple[Group, KernelSpec | None, Shape]] = [
    *((Hue(3), SEPARABLE, shape) for shape in COLOUR),
    *((Hue(6), SEPARABLE, shape) for shape in COLOUR[:3]),
    *((SO2(4), None, shape) for shape in TURNING),
]


class _Forced(choice.Paths):
    """Takes one of the programs, by its place."""

    place = 0
    names: tuple[str, ...] = ()
    ruled: str = ""

    def choose(self, key: str, rule: str, tensors: Any, programs: Any, leaves: Any) -> str:
        if not self.names:  # the first question is that of the layer; the others come from inside its programs
            self.names, self.ruled = tuple(programs), rule
        if tuple(programs) != self.names:
            return rule
        return self.names[self.place]


def times(conv: GroupConv2d, shape: Shape, seconds: float) -> tuple[dict[str, float], str]:
    """The shortest time of each algorithm for a training step of this layer, and the name of the rule's."""
    run, forced = training_step(shape, conv), _Forced()
    token = choice._paths.set(forced)
    try:
        run()
        best = dict.fromkeys(forced.names, float("inf"))
        spent = 0.0
        while spent < seconds:
            for place, name in enumerate(forced.names):
                forced.place = place
                run() if spent == 0 else None
                took = clock(run)
                best[name], spent = min(best[name], took), spent + took
    finally:
        choice._paths.reset(token)
    return best, forced.ruled


def chosen(conv: GroupConv2d, shape: Shape) -> str:
    """The algorithm that `measured_paths` takes."""
    with measured_paths() as paths:
        taken: list[str] = []
        choose = paths.choose

        def noticed(*given: Any) -> str:
            taken.append(choose(*given))
            return taken[-1]

        paths.choose = noticed  # type: ignore[assignment,method-assign]
        training_step(shape, conv)()
    return taken[-1]


def rows(seconds: float) -> Iterator[tuple[str, float, float]]:
    """Each convolution with two ratios over its fastest algorithm: the rule's and the measured one's."""
    for group, kernel, shape in CASES:
        torch.manual_seed(0)
        conv = layer(shape, group, kernel)
        assert isinstance(conv, GroupConv2d)
        measured = chosen(conv, shape)
        found, ruled = times(conv, shape, seconds)
        least = min(found.values())
        yield f"{group} {shape}: {ruled} → {measured}", found[ruled] / least, found[measured] / least


def main() -> None:
    """Print each convolution, then how often each choice is within 5 % of the fastest."""
    torch.set_num_threads(1)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    found = []
    for name, rule, measured in rows(seconds):
        print(f"{name}: rule {rule:.2f}, measured {measured:.2f} of the fastest", flush=True)
        found.append((rule, measured))
    for title, place in (("rule", 0), ("measured", 1)):
        ratios = [pair[place] for pair in found]
        within = sum(ratio <= 1.05 for ratio in ratios)
        print(f"{title}: within 5 % of the fastest in {within} of {len(ratios)}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
