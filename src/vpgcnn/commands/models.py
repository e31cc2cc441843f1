"""vpgcnn models."""

from __future__ import annotations

from dataclasses import replace

from vpgcnn.commands.common import parser, print_json, table


def main(arguments: list[str]) -> int:
    """List networks with their numbers of parameters."""
    command = parser("models", "Networks, with the number of parameters that each level gives them.")
    command.add_argument("--json", action="store_true", help="as JSON")
    options = command.parse_args(arguments)
    from vpgcnn.models import MODELS, build, count_parameters, elements_of, ordinary

    counts: dict[str, dict[str, object]] = {}
    for name, entry in MODELS.items():
        turns, hues = elements_of(entry.config)
        row: dict[str, object] = {"about": entry.about, "elements": turns * hues}
        row["t2"] = count_parameters(build(ordinary(entry.config), entry.in_channels, entry.classes))
        for level in ("full", "learned", "variational"):
            chosen = replace(entry.config, level=level)
            row[level] = count_parameters(build(chosen, entry.in_channels, entry.classes))
        counts[name] = row
    if options.json:
        print_json(counts)
        return 0
    rows: list[tuple[str, ...]] = [("network", "T(2)", "full", "learned", "variational", "elements", "what it is")]
    for name, row in counts.items():
        numbers = [f"{row[key]:,}" for key in ("t2", "full", "learned", "variational")]
        rows.append((name, *numbers, str(row["elements"]), str(row["about"])))
    table(rows)
    return 0
