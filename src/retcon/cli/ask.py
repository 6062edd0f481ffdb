"""`retcon ask`."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import ModelOrURL, ModelOverrides, command_line, load_conversation, ready
from retcon.core.errors import EngineError

if TYPE_CHECKING:
    from rich.console import Console

    from retcon.config.schema import Recipe
    from retcon.core.types import Trajectory, Turn


QUESTION = "question"
"""Id of the task, of its rollout, and of the first trajectory in a file."""


def ask(
    model: ModelOrURL,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.", show_default=False)],
    overrides: ModelOverrides = None,
    *,
    repair: Annotated[
        bool, typer.Option("--repair/--no-repair", help="Repair failed calls as they happen, by SAAR.")
    ] = True,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "--tool",
            metavar="NAME",
            help="A tool that the model can call: [bold]python[/], or an import path; may be repeated.",
            show_default="python",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling, if rollout.temperature is not 0.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Add the trajectory to this file, for `retcon show`.")
    ] = None,
) -> None:
    """Ask a model that may run programs, and watch its turns as they come, repairs included."""
    from rich.console import Console

    from retcon.core.texts import is_url
    from retcon.core.types import REPLACED
    from retcon.models.locating import BASE
    from retcon.store.jsonl import adding

    given = ["rollout.temperature=0", f"repair.kind={'saar' if repair else 'none'}"]
    recipe, folder = load_conversation(model, tool or ["python"], [*given, *(overrides or ())])
    console = Console(highlight=False)
    if folder == BASE and not is_url(model):
        known = "base is a model of 0.68 M parameters for the quickstart's tasks: it knows no others, and no English"
        console.print(known, style="dim", soft_wrap=True)
    with adding(out, "--out", QUESTION) if out is not None else nullcontext() as add:
        trajectory = asyncio.run(_answered(recipe, folder, question, system, seed, console))
        calls = f"{trajectory.raw_calls} call{'s' * (trajectory.raw_calls != 1)}, {trajectory.raw_failures} failed"
        repaired = sum(t.repair is not None and t.repair.decision in REPLACED for t in trajectory.turns)
        console.print(f"stop: {trajectory.stop} · {calls}, {repaired} repaired", style="dim")
        if add is not None:
            shown = command_line("retcon", "show", out, add(trajectory))
            console.print(f"try: {shown}", style="dim", soft_wrap=True, markup=False)
    if trajectory.stop == "infrastructure":
        raise EngineError("the model or a tool was lost before there was an answer")


async def _answered(
    recipe: Recipe, folder: Path, question: str, system: str | None, seed: int, console: Console
) -> Trajectory:
    from retcon.build import build_engine_chat, build_policy, build_repair, open_context
    from retcon.core.types import Provenance
    from retcon.engine.types import SpeaksText
    from retcon.report.transcript import show_turn
    from retcon.rollout.loop import run_rollout
    from retcon.tasks.types import Task

    chat = build_engine_chat(recipe, folder)
    ready(recipe)()
    engine = build_policy(recipe, folder, chat)
    shown = 0

    def show(turn: Turn) -> None:
        nonlocal shown
        shown += 1
        console.print(show_turn(shown, turn))

    encoded_by = engine.encoded_by if isinstance(engine, SpeaksText) else None
    async with open_context(recipe, engine, chat) as opened:
        context = replace(opened, repair=build_repair(recipe))
        task = Task(QUESTION, question, "", system=system)
        about = Provenance(model=recipe.engine.subject(folder), encoded_by=encoded_by)
        with console.status("thinking"):
            return await run_rollout(task, context, id=QUESTION, seed=seed, provenance=about, on_turn=show)
