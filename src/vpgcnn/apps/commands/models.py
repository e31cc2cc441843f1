"""vpgcnn models."""

from __future__ import annotations

from dataclasses import replace

from vpgcnn.apps.commands.common import parser, print_json, table

EXAMPLES = """columns:
  T(2)          an ordinary network, equivariant to translations only
  full          every layer uses the whole group
  shared        one level for all images
  variational   a level for each image

use a network with: vpgcnn train RECIPE --network NAME
"""


def main(arguments: list[str]) -> int:
    """List networks with their numbers of parameters."""
    command = parser("models", "List the networks, with their number of parameters for each kind of level.")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.epilog = EXAMPLES
    options = command.parse_args(arguments)
    from vpgcnn.lab.networks import MODELS, build, count_parameters, ordinary
    from vpgcnn.levels import Full, Shared, Variational

    counts: dict[str, dict[str, object]] = {}
    for name, entry in MODELS.items():
        row: dict[str, object] = {"about": entry.about, "elements": entry.config.group.count}
        row["t2"] = count_parameters(build(ordinary(entry.config), entry.in_channels, entry.classes))
        for level in (Full(), Shared(), Variational()):
            chosen = replace(entry.config, level=level)
            row[type(level).__name__.lower()] = count_parameters(build(chosen, entry.in_channels, entry.classes))
        counts[name] = row
    if options.json:
        print_json(counts)
        return 0
    rows: list[tuple[str, ...]] = [("network", "T(2)", "full", "shared", "variational", "elements", "description")]
    for name, row in counts.items():
        numbers = [f"{row[key]:,}" for key in ("t2", "full", "shared", "variational")]
        rows.append((name, *numbers, str(row["elements"]), str(row["about"])))
    table(rows)
    return 0
