"""vpgcnn watch."""

from __future__ import annotations

from pathlib import Path

from vpgcnn.apps.commands.common import parser, print_json

ABOUT = """Open a page that shows a run as it trains: loss, accuracy, θ of each class, time left and memory. It reads
the run's folder, so the run may be trained by any process that writes there, or be over."""
EXAMPLES = """examples:
  vpgcnn watch runs/mnist67-180
  vpgcnn watch /shared/runs/cifar10 --port 8080 --no-browser
  vpgcnn watch runs/mnist67-180 --json                           the same as JSON, once

Only this computer can reach the page, unless you change --host. There is no password.
"""


def main(arguments: list[str]) -> int:
    """Serve the page until interrupted."""
    command = parser("watch", ABOUT)
    command.epilog = EXAMPLES
    command.add_argument("run", type=Path, help="folder of a run")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, default=8001, help="port, 0 for any free one (default: 8001)")
    command.add_argument("--no-browser", action="store_true", help="do not open a browser")
    command.add_argument("--json", action="store_true", help="print what the page shows, and end")
    options = command.parse_args(arguments)
    from vpgcnn.apps.serve.watching import Watcher

    watcher = Watcher(options.run)
    found = watcher.look()
    if options.json:
        print_json(found.model_dump())
        return 0
    from vpgcnn.apps.serve.listening import hosts_of, listen, serve
    from vpgcnn.apps.serve.watch import make_watch_app

    print(f"{options.run}: {found.sentence}")  # noqa: T201
    app = make_watch_app(watcher, hosts_of(options.host))
    serve(app, listen(options.host, options.port), options.host, browser=not options.no_browser)
    return 0
