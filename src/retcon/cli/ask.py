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
from retcon.core.texts import counted
from retcon.tasks.types import Task

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
    rlm: Annotated[
        list[Path] | None,
        typer.Option(
            "--rlm",
            metavar="FILE",
            help="A long text, as a variable of programs that call the model on its parts; may be repeated.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="The system prompt.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of sampling, if rollout.temperature is not 0.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Add the trajectory to this file, for `retcon show`.")
    ] = None,
) -> None:
    """Ask a model that runs programs, and watch its turns and repairs."""
    task = Task(QUESTION, question, "", system=system)
    if rlm:
        if tool:
            raise typer.BadParameter("--rlm has a tool of its own: leave --tool out", param_hint="--tool")
        tool, texts = ["rlm"], [_read(path) for path in rlm]
    from rich.console import Console

    from retcon.core.texts import is_url
    from retcon.core.types import REPLACED
    from retcon.models.locating import BASE
    from retcon.store.jsonl import open_appender

    given = ["rollout.temperature=0", f"repair.kind={'saar' if repair else 'none'}"]
    recipe, folder = load_conversation(model, tool or ["python"], [*given, *(overrides or ())])
    if rlm:
        task = _about(task, texts, recipe.subcalls.prompts)
    console = Console(highlight=False)
    if folder == BASE and not is_url(model):
        known = "base is a model of 0.68 M parameters for the quickstart's tasks: it knows no others, and no English"
        console.print(known, style="dim", soft_wrap=True)
    with open_appender(out, "--out", QUESTION) if out is not None else nullcontext() as add:
        trajectory = asyncio.run(_answered(recipe, folder, task, seed, console))
        *children, _ = trajectory.tree
        calls = f"{trajectory.raw_calls} call{'s' * (trajectory.raw_calls != 1)}, {trajectory.raw_failures} failed"
        repaired = sum(t.repair is not None and t.repair.decision in REPLACED for t in trajectory.turns)
        console.print(f"stop: {trajectory.stop} · {calls}, {repaired} repaired", style="dim")
        if children:
            tokens = sum(child.sampled_tokens for child in children)
            console.print(f"below it: {counted(len(children), 'call')} of the model, {tokens:,} tokens", style="dim")
        if isinstance(trajectory.returned, str):
            console.print(trajectory.returned, markup=False)
        if add is not None:
            shown = command_line("retcon", "show", out, add(trajectory))
            console.print(f"try: {shown}", style="dim", soft_wrap=True, markup=False)
    if trajectory.stop == "infrastructure":
        raise EngineError("the model or a tool was lost before there was an answer")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--rlm") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path} is not text in UTF-8: {error.reason}", param_hint="--rlm") from error


def _about(task: Task, texts: list[str], prompts: str) -> Task:
    """Make a task of the texts: one is a str, several a list. prompts: as `subcalls.prompts`."""
    from retcon.tools.kinds.rlm import find_prompts

    context, written = texts[0] if len(texts) == 1 else texts, find_prompts(prompts)
    question = written.question(task.question, context)
    return replace(task, question=question, system=task.system or written.system, meta={"context": context})


async def _answered(recipe: Recipe, folder: Path, task: Task, seed: int, console: Console) -> Trajectory:
    from retcon.build import build_engine_chat, build_policy, build_repair, open_context
    from retcon.core.types import Provenance
    from retcon.engine.types import TextEngine
    from retcon.report.transcript import show_turn
    from retcon.rollout.loop import run_rollout
    from retcon.rollout.subcalls import SubcallBudget, TreePlace

    chat = build_engine_chat(recipe, folder)
    ready(recipe)()
    engine = build_policy(recipe, folder, chat)
    shown = 0

    def show(turn: Turn) -> None:
        nonlocal shown
        shown += 1
        console.print(show_turn(shown, turn))

    def show_child(child: Trajectory, prompt: str) -> None:
        console.print(_child_line(child, prompt), style="dim", markup=False, soft_wrap=True)

    encoded_by = engine.encoded_by if isinstance(engine, TextEngine) else None
    async with open_context(recipe, engine, chat) as opened:
        context = replace(opened, repair=build_repair(recipe))
        place = TreePlace(SubcallBudget(context.subcalls), on_child=show_child)
        about = Provenance(model=recipe.engine.subject(folder), encoded_by=encoded_by)
        with console.status("thinking"):
            return await run_rollout(task, context, id=QUESTION, seed=seed, provenance=about, on_turn=show, place=place)


def _child_line(child: Trajectory, prompt: str) -> str:
    """Show a call of the model in one line, indented by its depth."""
    answer = child.returned if isinstance(child.returned, str) else child.turns[-1].text if child.turns else child.stop
    return f"{'  ' * (child.id.count('/') // 2)}└ {_short(prompt)} → {_short(answer)}"


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
