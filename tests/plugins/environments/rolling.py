"""Rollouts in users' environments, of a model that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from playing import LIMITS
from retcon.build import build_repair, build_tasks, build_tools
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_member


def recipe_of(*keys: str, repair: str = "saar") -> Recipe:
    return load_recipe(None, ["rollout.tools=[]", f"repair.kind={repair}", "sandbox.output_chars=2000", *keys])


def tools_of(recipe: Recipe) -> dict[str, Any]:
    return dict(build_tools(recipe, None))  # type: ignore[arg-type]  # none of these tools runs in a sandbox


def played(recipe: Recipe, replies: Sequence[str], *, question: str = "3 + 3") -> Trajectory:
    tasks, tokenizer = build_tasks(recipe), ByteTokenizer()
    task = next(task for task in [*tasks.train(0), *tasks.evaluation(9, 0)] if question in task.question)
    context = RolloutContext(
        ScriptedEngine(tokenizer, replies), Chat(tokenizer, style="qwen"), tools_of(recipe),
        LIMITS, SamplingParams(max_tokens=2000), build_repair(recipe),
    )  # fmt: skip
    return asyncio.run(rollout_member(task, context, 0, seed=0, step=0, grade=tasks.grade))  # type: ignore[arg-type]
