"""Training through smolagents: a manager hands a sum to an agent, and both learn.

    pip install 'smolagents[openai]==1.26.0'
    python examples/managed_agents.py runs/managed       # problems, and demonstrations that a script plays
    retcon sft quickstart/cold_start sft.steps=75 --out runs/managed/start \\
        --demonstrations runs/managed/demonstrations.jsonl
    retcon train mini/grpo --from runs/managed/start --out runs/managed/run task.kind=file \\
        task.path=runs/managed/problems.jsonl rollout.harness=examples.managed_agents:solve rollout.max_tokens=900 \\
        credit.kind=inherit rl.steps=5 rl.prompts=1 rl.minibatches=1 rl.lr=5e-5 rl.checkpoint_every=1

The packaged model has a context of 1,024 tokens, which smolagents' own prompts fill: these here are short.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIServerModel

from retcon import ModelEndpoint, Task

PROMPTS = {
    "system_prompt": "",
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"},
    "final_answer": {"pre_messages": "answer", "post_messages": "answer {{task}}"},
}


def agent(endpoint: ModelEndpoint, system: str, **about: object) -> CodeAgent:
    """An agent of one step, whose programs are blocks of Markdown. Its model is at the endpoint."""
    model = OpenAIServerModel(f"{endpoint.name}:chat", api_base=endpoint.url, api_key=endpoint.key)
    prompts = {**PROMPTS, "system_prompt": system}
    return CodeAgent(
        [], model, prompt_templates=prompts, max_steps=1, code_block_tags="markdown", verbosity_level=0, **about
    )


def solve(task: Task, endpoint: ModelEndpoint) -> str:
    """The manager's answer. What the agent says is a child of the turn in which the manager called it."""
    adder = agent(endpoint.agent("adder"), "add", name="adder", description="Adds.")
    manager = agent(endpoint, "ask adder", managed_agents=[adder])
    try:
        return f"\\boxed{{{manager.run(task.question)}}}"
    finally:
        manager.model.client.close()
        adder.model.client.close()


def play(_request: str, text: str, _n: int) -> str:
    """What a model writes that does it right: the manager's program, or the agent's."""
    one, other = re.findall(r"\d+", text.rpartition("New task:")[2])[:2]
    call = f"adder('{one} + {other}')" if "ask adder" in text else f"{one} + {other}"
    return f"```python\nfinal_answer({call})\n```"


async def demonstrate(folder: Path, count: int = 320) -> None:
    """Write problems, and `count` scripted rollouts of others."""
    from retcon.build import build_chat
    from retcon.config.load import load_recipe
    from retcon.engine.kinds.scripted import ScriptedEngine
    from retcon.models.locating import model_folder
    from retcon.rollout.context import RolloutContext, RolloutLimits
    from retcon.rollout.group import rollout_groups
    from retcon.serve.harness_server import open_harness
    from retcon.store import jsonl

    drawn = random.Random(1)
    pairs = [(drawn.randint(2, 99), drawn.randint(2, 99)) for _ in range(64 + count)]
    tasks = [Task(f"sum/{n}", f"{a} and {b}", str(a + b)) for n, (a, b) in enumerate(pairs)]
    folder.mkdir(parents=True, exist_ok=True)
    problems = (json.dumps({"question": t.question, "answer": t.answer}) + "\n" for t in tasks[count:])
    (folder / "problems.jsonl").write_text("".join(problems))
    chat = build_chat(load_recipe("mini/grpo"), model_folder("base"))
    async with open_harness(solve, 60.0) as harness:
        engine = ScriptedEngine(chat.tokenizer, play)
        context = RolloutContext(engine, chat, {}, RolloutLimits(900, 5), harness=harness)
        groups = await rollout_groups(tasks[:count], context, count=1, seed=0, step=0, grade=lambda _, made: made)
    jsonl.write(folder / "demonstrations.jsonl", [made for group in groups for made in group])


if __name__ == "__main__":
    asyncio.run(demonstrate(Path(sys.argv[1])))
