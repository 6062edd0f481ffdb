"""What deploy/ tells a cluster is what the server understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from retcon.cli.app import app
from retcon.http.server import LAST_SECONDS

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the [train] extra")
DEPLOY = Path(__file__).parents[2] / "deploy"


def pod() -> Any:
    parts = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    (fleet,) = (part for part in parts if part["kind"] == "StatefulSet")
    return fleet["spec"]["template"]["spec"]


def test_the_servers_arguments_are_options_that_it_has() -> None:
    serve = get_command(app).commands["sandbox"].commands["serve"]  # type: ignore[attr-defined]
    args = pod()["containers"][0]["args"]
    parsed = serve.make_parser(serve.make_context("serve", [], resilient_parsing=True)).parse_args(list(args))
    assert parsed[0]["drain"] == "600"
    assert parsed[1] == [], "an argument that is no option's"


def test_a_server_is_given_the_time_to_drain_before_it_is_killed() -> None:
    args = pod()["containers"][0]["args"]
    drain = int(args[args.index("--drain") + 1])
    assert pod()["terminationGracePeriodSeconds"] > drain + LAST_SECONDS
