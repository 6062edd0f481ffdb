"""Prompts of the package rlms by name: `make integration`."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("rlm", reason="the package rlms, which `make integration` installs")

from rlm.utils.prompts import ORCHESTRATOR_ADDENDUM

from playing import call
from retcon.build import build_chat, build_subcalls
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.models.locating import BASE
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.loop import run_rollout
from retcon.sandbox.pool import SandboxPool
from retcon.tasks.types import Task
from retcon.tools.kinds.rlm import Rlm


def test_roots_and_rollouts_below_have_the_prompts_of_rlms() -> None:
    recipe = load_recipe(None, ["rollout.tools=rlm", "subcalls.prompts=rlms", "model.style=markdown"])
    chat = build_chat(recipe, BASE)
    ends = "answer['content'] = context[-4:]\nanswer['ready'] = True"

    def reply(request: str, text: str, n: int) -> str:
        return call("print(rlm_query('find the plum'))\n" * (request == "q") + ends)

    async def main() -> Trajectory:
        async with SandboxPool(1) as pool:
            tool = Rlm(pool)
            context = RolloutContext(
                ScriptedEngine(chat.tokenizer, reply), chat, {tool.name: tool}, RolloutLimits(20_000, 2),
                subcalls=build_subcalls(recipe),
            )  # fmt: skip
            task = Task("q", "Which?", "plum", meta={"context": "a plum"})
            return await run_rollout(task, context, id="q", seed=1)

    root = asyncio.run(main())
    (child,) = root.children
    assert (root.returned, child.returned) == ("plum", "plum")
    for node in root.tree:
        prompt = "".join(segment.text for segment in node.prompt)
        assert ORCHESTRATOR_ADDENDUM.replace("```repl", "```python") in prompt
        assert "code in ```python``` blocks" in prompt
        assert "custom_tools_section" not in prompt
    assert "Your context is a str of 13 total characters" in "".join(segment.text for segment in child.prompt)
