"""`retcon sandbox`: the sandbox on its own, without any training."""

from __future__ import annotations

import typer

from retcon.cli.sandbox.doctor import sandbox_doctor
from retcon.cli.sandbox.execute import execute
from retcon.cli.sandbox.serve import serve

sandbox = typer.Typer(
    name="sandbox",
    no_args_is_help=True,
    help="Run untrusted Python: as a service, or one file.",
    rich_markup_mode="rich",
)
sandbox.command("serve")(serve)
sandbox.command("exec")(execute)
sandbox.command("doctor")(sandbox_doctor)
