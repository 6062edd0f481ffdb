"""Training a model through a harness: any loop that speaks to OpenAI's API. Here it is the few lines of `harness`;
yours is smolagents, the Agents SDK, OpenHands …, with the endpoint's URL in place of OpenAI's (docs/models/serving.md).

python examples/train_a_harness.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import islice
from statistics import fmean

import httpx

from retcon.build import build_chat, build_repair, build_tasks, build_training_engine, open_context
from retcon.config.load import load_recipe
from retcon.core.types import Trajectory
from retcon.http.server import listen, run_in_loop
from retcon.models.loading import load_model
from retcon.models.locating import locate
from retcon.serve import app
from retcon.serve.agent import Agent
from retcon.serve.errors import ServeSettings
from retcon.serve.recording import Record
from retcon.tasks.registry import training_prompts
from retcon.train.optim import adamw
from retcon.train.update import to_samples, update

STEPS, TASKS, GROUP = 2, 2, 4
RECIPE = ["rl.algorithm=grpo", "rl.minibatches=1", f"rl.steps={STEPS}", "sandbox.workers=2"]


async def harness(url: str, question: str, session: str) -> None:
    """One conversation: the question, and another one after the answer."""
    messages: list[dict[str, object]] = []
    async with httpx.AsyncClient(base_url=url, headers={"X-Retcon-Session": session}, timeout=600) as http:
        for text in (question, "Are you sure?"):
            messages.append({"role": "user", "content": text})
            body = {"model": "learner", "messages": messages, "max_tokens": 40}
            answer = (await http.post("/v1/chat/completions", json=body)).raise_for_status().json()
            messages.append(answer["choices"][0]["message"])


def reward(trajectory: Trajectory) -> float:
    """Whatever you reward: here, brevity."""
    return -trajectory.sampled_tokens / 100


async def main() -> None:
    recipe = load_recipe("quickstart/saar", RECIPE)
    folder = locate("base")
    model, chat = load_model(folder), build_chat(recipe, folder)
    optimizer = adamw(model, lr=recipe.rl.lr, weight_decay=0.0)
    prompts = training_prompts(build_tasks(recipe), recipe.run.seed)
    engine = build_training_engine(recipe, model, chat, max_requests=TASKS * GROUP)
    async with engine, open_context(recipe, engine, chat) as opened:
        context = replace(opened, repair=build_repair(recipe))
        agent = Agent(context, ServeSettings("learner"), Record(None))
        async with app.open_app(agent) as application, run_in_loop(application, listen("127.0.0.1", 0)) as url:
            for step in range(1, STEPS + 1):
                asked = [task.question for task in islice(prompts, TASKS)]
                names = [[f"{step}-{n}-{index}" for index in range(GROUP)] for n in range(TASKS)]
                await asyncio.gather(*(harness(url, asked[n], name) for n, group in enumerate(names) for name in group))
                samples, rewards = [], []
                for group in names:
                    ended = [await agent.end(agent.sessions.get(name)) for name in group]
                    made = [replace(t, reward=reward(t)) for trajectories in ended for t in trajectories]
                    rewards += [t.reward or 0.0 for t in made]
                    samples += to_samples(made, recipe.rl.advantages([t.reward or 0.0 for t in made]), recipe.rl)
                metrics = update(model, optimizer, samples, recipe.rl, seed=0, step=step)
                engine.invalidate()  # its keys and values are of the weights before
                about = f"reward {fmean(rewards):.2f}, gradient {metrics['grad_norm']:.2f}"
                print(f"step {step}: {len(rewards)} conversations, {about}")


if __name__ == "__main__":
    asyncio.run(main())
