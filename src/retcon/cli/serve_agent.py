"""The `retcon serve-agent` command: a model with tools and repairs, behind OpenAI's API."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import (
    Host,
    ModelOrURL,
    ModelOverrides,
    Port,
    TokenFile,
    check_number,
    load_conversation,
    need_serving,
    read_token,
    ready,
    token_option,
)
from retcon.core.errors import RecipeError
from retcon.core.texts import is_url

if TYPE_CHECKING:
    from retcon.config.schema import Recipe
    from retcon.http.server import StopSignals
    from retcon.serve.agent import Agent
    from retcon.serve.errors import ServeSettings
    from retcon.serve.recording import Record

LAST_SECONDS = 35
"""Beyond --grace: the sandbox's processes, and a server that the engine started, are ended in it."""


def serve_agent(
    model: ModelOrURL,
    overrides: ModelOverrides = None,
    *,
    repair: Annotated[
        str,
        typer.Option("--repair", metavar="KIND", help="What to do about failed calls: saar, branch, describe, none …"),
    ] = "saar",
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="NAME",
            help="A tool that the server runs for requests without tools: [bold]python[/], or an import path; may be "
            "repeated.",
            show_default="python",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Record conversations here as trajectories.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="The model's name for clients.",
            show_default="the last part of MODEL, or of the server's own name for it",
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    token: Annotated[str | None, token_option("RETCON_SERVE_TOKEN")] = None,
    token_file: TokenFile = None,
    answer_tokens: Annotated[
        int, typer.Option("--answer-tokens", help="Most tokens of one message of the model.")
    ] = 1024,
    session_tokens: Annotated[
        int, typer.Option("--session-tokens", help="Most tokens that the model writes in a session; 0: no bound.")
    ] = 0,
    at_once: Annotated[int, typer.Option("--at-once", help="Most requests at a time; more are refused.")] = 256,
    sessions: Annotated[int, typer.Option("--sessions", help="Most sessions open at a time.")] = 4096,
    idle: Annotated[
        float, typer.Option("--idle", callback=check_number, help="Seconds after which an unused session is ended.")
    ] = 3600,
    grace: Annotated[
        int, typer.Option("--grace", min=1, help="Seconds that running requests get when the server is stopped.")
    ] = 30,
) -> None:
    """Serve a model behind OpenAI's API: it runs programs, repairs failed calls, and records what it says."""
    need_serving()
    from retcon.http.server import StopSignals, is_local, listen
    from retcon.serve.errors import ServeSettings

    given = [f"repair.kind={repair}", *(overrides or ())]
    recipe, folder = load_conversation(model, tool or ["python"], given, answer_tokens=0)  # --answer-tokens says it
    called = name or _last_part(model)
    try:
        secret = read_token(token, token_file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    settings = ServeSettings(
        called, recipe.run.seed, answer_tokens, session_tokens, at_once, sessions, idle, token=secret
    )  # fmt: skip
    opened = listen(host, port)
    if secret is None and not is_local(opened):
        opened.close()
        raise RecipeError(
            f"--host {host}: other machines can reach the server and run programs here: give "
            "--token-file too, or listen on 127.0.0.1"
        )
    signals = StopSignals(last_seconds=grace + LAST_SECONDS)
    name_there = name is None and is_url(model)
    asyncio.run(_serve(opened, recipe, folder, settings, record, signals, grace, name_there=name_there))
    typer.echo("stopped", err=True)


async def _serve(
    opened: socket.socket,
    recipe: Recipe,
    folder: Path,
    settings: ServeSettings,
    record: Path | None,
    signals: StopSignals,
    grace: int,
    *,
    name_there: bool,
) -> None:
    """name_there: whether the model is called as it is where it is."""
    from dataclasses import replace

    from retcon.build import build_engine_chat, build_policy, build_repair, open_context
    from retcon.engine.types import Connectable, NamedEngine, TextEngine
    from retcon.http import server
    from retcon.serve import app
    from retcon.serve.agent import Agent, ThreadedEngine
    from retcon.serve.recording import Record
    from retcon.store.whole import lock_folder

    server.allow_many_connections()
    chat = build_engine_chat(recipe, folder)
    async with AsyncExitStack() as stack:
        stack.enter_context(lock_folder(record) if record is not None else nullcontext())
        kept = Record(record)
        ready(recipe)()
        engine = build_policy(recipe, folder, chat)
        if recipe.engine.in_process and not isinstance(engine, Connectable | TextEngine):
            engine = await stack.enter_async_context(ThreadedEngine(engine))
        made = await stack.enter_async_context(open_context(recipe, engine, chat))
        context = replace(made, repair=build_repair(recipe), model=recipe.engine.subject(folder))
        if name_there and isinstance(engine, NamedEngine):
            settings = replace(settings, name=_last_part(engine.model))
        agent = Agent(context, settings, kept)
        application = await stack.enter_async_context(app.open_app(agent))
        typer.echo(f"listening on {server.url_of(opened)}/v1 · {_about(recipe, settings, agent, kept)}")
        await server.serve(application, opened, signals, grace=grace)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _about(recipe: Recipe, settings: ServeSettings, agent: Agent, record: Record) -> str:
    tools = ", ".join(recipe.rollout.tools)
    text = "" if agent.provenance.encoded_by is None else " (as text: nothing can be learnt from it)"
    where = (
        "nothing is recorded"
        if record.file is None
        else f"recorded to {record.file.parent / 'open'}, ended sessions to {record.file}{text}"
    )
    left = f" ({record.taken_in} of a server before taken in)" if record.taken_in else ""
    asked = "a token is asked for" if settings.token else "no token"
    return f"model {settings.name} · runs {tools} · repair {recipe.repair.kind} · {where}{left} · {asked}"
