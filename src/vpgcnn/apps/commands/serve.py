"""vpgcnn serve."""

from __future__ import annotations

from pathlib import Path

from vpgcnn.apps.commands.common import data_dir_option, parser, plural
from vpgcnn.errors import UserError

ABOUT = """Open a page on this computer on which you rotate an image, or shift its hue, and watch how a network answers
and how much of the symmetry it uses. Several runs are shown side by side."""
EXAMPLES = """examples:
  vpgcnn serve runs/demo/variational runs/demo/full
  vpgcnn serve runs/flowers102 --port 8080 --no-browser

/openapi.json describes the API of the page, which scripts can use too:
  curl -s localhost:8000/api/inspect -H 'content-type: application/json' -d '{"sample": 0, "angle": 90}'
Only this computer can reach the page, unless you change --host. There is no password.
"""


def main(arguments: list[str]) -> int:
    """Serve the page until interrupted."""
    command = parser("serve", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument(
        "runs", type=Path, nargs="+", metavar="run", help="folder of a run, or a weights file; up to 4 of them"
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, default=8000, help="port, 0 for any free one (default: 8000)")
    command.add_argument("--no-browser", action="store_true", help="do not open a browser")
    data_dir_option(command)
    options = command.parse_args(arguments)
    if len(options.runs) > 4:
        raise UserError(f"the page shows at most 4 runs side by side, got {len(options.runs)}")
    import torch

    from vpgcnn.apps.serve.app import make_app
    from vpgcnn.apps.serve.inspector import Inspector, load_samples, open_networks
    from vpgcnn.apps.serve.listening import hosts_of, listen, serve

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    listening = listen(options.host, options.port)  # first, because loading takes a while
    try:
        networks, config = open_networks(options.runs, device)
    except UserError:
        listening.close()
        raise
    inspector = Inspector(networks)
    load_samples(inspector, config, options.data_dir)
    print(f"{plural(len(inspector.samples), 'test image')}. {inspector.note}".strip())  # noqa: T201
    serve(make_app(inspector, hosts_of(options.host)), listening, options.host, browser=not options.no_browser)
    return 0
