"""vpgcnn serve."""

from __future__ import annotations

import contextlib
import socket
import sys
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
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port must be a number from 0 to 65535, got {options.port}")
    import torch
    import uvicorn

    from vpgcnn.apps.serve.app import make_app
    from vpgcnn.apps.serve.inspector import Inspector, load_samples, open_networks
    from vpgcnn.apps.serve.limits import TimedProtocol

    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    networks, config = open_networks(options.runs, device)
    listening = _listen(options.host, options.port)
    inspector = Inspector(networks)
    load_samples(inspector, config, options.data_dir)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{shown}:{listening.getsockname()[1]}"
    hosts = ["localhost", "127.0.0.1", "[::1]", shown]
    app = make_app(inspector, ["*"] if options.host in ("0.0.0.0", "::") else hosts)
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=TimedProtocol, log_level="warning", access_log=False, limit_concurrency=256, timeout_keep_alive=5,
            timeout_graceful_shutdown=5, server_header=False,
        )
    )  # fmt: skip
    print(f"{plural(len(inspector.samples), 'test image')}. {inspector.note}".strip())  # noqa: T201
    print(f"open {address} (Ctrl-C to stop)", flush=True)  # noqa: T201
    if not options.no_browser and sys.stdout.isatty():
        import webbrowser

        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again once it has stopped
        server.run(sockets=[listening])
    print("stopped")  # noqa: T201
    return 0


def _listen(host: str, port: int) -> socket.socket:
    listening = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except (OSError, UnicodeError) as error:
        if listening is not None:
            listening.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot listen on {host}:{port}: {reason} (see --host and --port)") from error
    return listening
