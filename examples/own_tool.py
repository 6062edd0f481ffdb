"""A tool of your own beside Python, in one rollout. Here a scripted engine plays the model; any engine does the same.

python examples/own_tool.py
In a recipe, from this folder: rollout.tools = ["python", "own_tool:Weather"]
"""

from __future__ import annotations

import asyncio

from retcon import (
    ByteTokenizer,
    Chat,
    PythonTool,
    RolloutContext,
    RolloutLimits,
    SandboxPool,
    ScriptedEngine,
    Task,
    run_rollout,
)
from retcon.chat.families.hermes import render_call
from retcon.core.types import Observation, ToolCall, ToolSpec

KNOWN = {"Oslo": "-4", "Cairo": "24"}


class Weather:
    """A call in, an observation out; its arguments are checked against the schema before it is called."""

    name = "weather"
    spec = ToolSpec(
        "weather",
        "The temperature of a city, in degrees Celsius.",
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    )

    async def __call__(self, call: ToolCall) -> Observation:
        assert isinstance(call.arguments, dict)
        city = call.arguments["city"]
        if city not in KNOWN:
            return Observation(call.id, f"no such city: {city}", "error", "KeyError")
        return Observation(call.id, KNOWN[city], "ok")


async def main() -> None:
    tokenizer = ByteTokenizer()
    replies = [
        render_call("weather", {"town": "Oslo"}),  # not what the schema says
        render_call("weather", {"city": "Oslo"}) + "\n" + render_call("weather", {"city": "Cairo"}),
        render_call("python", {"code": "print(24 - -4)"}),
        "It is 28 degrees warmer in Cairo.",
    ]
    async with SandboxPool(workers=1) as sandbox:
        context = RolloutContext(
            engine=ScriptedEngine(tokenizer, replies),
            chat=Chat(tokenizer, style="qwen"),
            tools={"weather": Weather(), "python": PythonTool(sandbox)},
            limits=RolloutLimits(max_tokens=4000, max_turns=6),
        )
        task = Task("cities", "How much warmer is it in Cairo than in Oslo?", "28")
        trajectory = await run_rollout(task, context, id="cities/0", seed=0)
    for turn in trajectory.turns:
        print(turn.text.strip().removesuffix("<|im_end|>"))
        for observation in turn.observations:
            print("   ", observation.status, observation.text.strip())


if __name__ == "__main__":
    asyncio.run(main())
