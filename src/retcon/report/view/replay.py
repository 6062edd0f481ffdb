"""Reruns of a stored call, and counterfactual rollouts from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retcon.build import build_tools, open_sandbox
from retcon.config.schema import Recipe
from retcon.core.errors import RecordError
from retcon.core.types import REPLACED, Observation, Trajectory, Turn
from retcon.report.runs import recipe_sections
from retcon.tools.types import StatefulTool, TaskTool

PROBLEMS = 20_000
"""Most problems of a task set to search for a rollout's own."""


def recipe_of(root: Path) -> Recipe:
    """Return the recipe of a run folder; defaults for other files. Raises RecordError for one that cannot be read."""
    file = root / "run.json"
    if not file.is_file():
        return Recipe()
    try:
        return Recipe.model_validate(recipe_sections(json.loads(file.read_bytes()).get("recipe", {})))
    except (ValueError, ValidationError) as error:
        raise RecordError(f"{file}: its recipe does not fit this version: {error}") from error


async def run_again(root: Path, made: Trajectory, turn: int, attempt: int, call: int, code: str | None) -> Observation:
    """Run one call's program again in the sandbox of the run's recipe.

    Where the tool keeps a state, the calls of the earlier turns are repeated before it.

    Args:
        turn, attempt, call: indices; attempt -1 is the turn itself, others are of its abandoned ones.
        code: to run in place of the program.

    Raises RecordError for a missing call or a tool that needs a model, SandboxUnavailable.
    """
    try:
        at = made.turns[turn] if attempt < 0 else made.turns[turn].abandoned[attempt]
        wanted = at.calls[call]
    except IndexError:
        raise RecordError(f"rollout {made.id} has no call {call} in attempt {attempt} of turn {turn}") from None
    if code is not None:
        arguments = wanted.arguments if isinstance(wanted.arguments, dict) else {}
        wanted = replace(wanted, arguments={**arguments, "code": code})
    recipe = recipe_of(root)
    section = recipe.sandbox if recipe.sandbox.url else recipe.sandbox.model_copy(update={"workers": 1})
    async with open_sandbox(section) as sandbox:
        tool = build_tools(recipe, sandbox).get(wanted.name)
        if tool is None or isinstance(tool, TaskTool):
            raise RecordError(f"tool {wanted.name!r} cannot be run by itself: only tools of rollout.tools can")
        if not isinstance(tool, StatefulTool):
            return await tool(wanted)
        opened = await tool.open(made.id)
        try:
            for earlier in made.turns[:turn]:
                for one in earlier.calls:
                    if one.name == wanted.name:
                        await opened(one)
            return await opened(wanted)
        finally:
            await opened.close()


def checkpoint_of(root: Path, step: int | None) -> Path | None:
    """Return the checkpoint nearest to a step's sampling weights, or None."""
    found = {int(path.name[5:]): path for path in (root / "checkpoints").glob("step-*") if path.name[5:].isdecimal()}
    before = [at for at in found if step is None or at < step]
    if before:
        return found[max(before)]
    return root / "final" if (root / "final").is_dir() else found[min(found)] if found else None


def run_counterfactuals(root: Path, made: Trajectory, turn: int, times: int) -> dict[str, Any]:
    """Roll out a failed turn's counterfactuals in a new process.

    Returns for each way (fresh, raw, fixed) how many rollouts were made, how many passed, and how they ended. Raises
    RecordError where there is no checkpoint or problem, and what a rollout raises.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_counterfactuals, root, made, turn, times).result()


def _counterfactuals(root: Path, made: Trajectory, turn: int, times: int) -> dict[str, Any]:
    import asyncio

    from retcon.build import build_engine_chat, build_policy, build_tasks, open_context, open_graders, resolve_lengths
    from retcon.evaluate.audit import FailedCall, replay
    from retcon.tasks.registry import evaluation_tasks, training_prompts

    checkpoint = checkpoint_of(root, made.provenance.step)
    if checkpoint is None:
        raise RecordError(f"{root} has no checkpoint to continue from")
    failed = made.turns[turn]
    replaced = failed.repair is not None and failed.repair.decision in REPLACED
    failure: Turn = failed.abandoned[0] if replaced else replace(failed, abandoned=(), repair=None)
    raw = replace(made, turns=(*made.turns[:turn], failure))
    recipe = recipe_of(root)
    family = build_tasks(recipe, checkpoint)
    recipe, _ = resolve_lengths(recipe, checkpoint, family)
    trained = islice(training_prompts(family, recipe.run.seed), PROBLEMS)
    task = next((one for one in trained if one.id == made.task), None)
    if task is None:
        held_out = evaluation_tasks(family, recipe.evaluate.problems, recipe.evaluate.seed)
        task = next((one for one in held_out if one.id == made.task), None)
    if task is None:
        raise RecordError(f"problem {made.task} is not among the tasks of {root / 'run.json'}")
    chat = build_engine_chat(recipe, checkpoint, family)
    engine = build_policy(recipe, checkpoint, chat)

    async def rolled() -> Sequence[Trajectory]:
        async with open_context(recipe, engine, chat) as context, open_graders(family) as graders:
            call = FailedCall(raw, turn, 0.0, failed if replaced else None)
            seed = recipe.evaluate.seed
            return (await replay(call, task, context, times=times, seed=seed, grade=graders.judged.grade)).made

    found: dict[str, Any] = {}
    for one in asyncio.run(rolled()):
        about = found.setdefault(one.id.split("/")[-2], {"made": 0, "passed": 0, "ends": []})
        about["made"] += one.reward is not None
        about["passed"] += (one.reward or 0) > 0
        with suppress(IndexError):
            about["ends"].append({"reward": one.reward, "text": "".join(t.text for t in one.turns[turn:])[:4000]})
    return {"checkpoint": str(checkpoint.relative_to(root)), "ways": found}
