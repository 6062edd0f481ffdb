"""`retcon view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def view(
    roots: Annotated[
        list[Path], typer.Argument(metavar="RUN|FILE|FOLDER…", help="Runs, folders of them, or trajectory files.")
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 7320,
    token: Annotated[
        str, typer.Option("--token", help="In the page's address; random by default.", show_default=False)
    ] = "",
) -> None:
    """Look at rollouts and curves in a browser: search, compare, and see what was repaired, kept and dropped."""
    import socket

    from aiohttp import web

    from retcon.core.errors import RecordError
    from retcon.report.view.server import Viewer, make_app, new_token

    for root in roots:
        if not root.exists():
            raise RecordError(f"{root} does not exist")
    viewer = Viewer(roots)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
    except OSError:
        opened.bind(("127.0.0.1", 0))
    port, token = opened.getsockname()[1], token or new_token()
    typer.echo(f"http://127.0.0.1:{port}/{token}/")
    typer.echo(f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}   then open that address")
    typer.echo("Ctrl-C ends it")
    viewer.follow()
    try:
        web.run_app(make_app(viewer, token), sock=opened, print=lambda *_: None, access_log=None)
    finally:
        viewer.close()
