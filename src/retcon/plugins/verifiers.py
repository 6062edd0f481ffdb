"""Retcon's tasks, tools, graders and SAAR as a `verifiers` environment.

For its classic API, below 0.4. verifiers talks to the model in messages, so repairs are made in messages. A step with a
replaced message loses its `tokens`, so that no one trains on log-probs of another text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

import verifiers as vf
from datasets import Dataset

from retcon.build import build_repair, build_specs, build_tasks, build_tools, open_graded, open_sandbox
from retcon.chat.jsons import read_arguments
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import InfrastructureFault, RecipeError, SandboxUnavailable
from retcon.core.types import REPLACED, Segment, ToolCall, Trajectory, Turn
from retcon.purify.saar import Saar
from retcon.rollout.lengths import DerivedLength, open_keys, with_lengths
from retcon.rollout.state import TurnState, open_tools
from retcon.tasks.registry import TaskSet, training_prompts, try_grade
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool

OWN = "retcon"
"""The key under which a state has its tools, a row its task, and the extras of a step its repair."""
CHARS = DerivedLength("sandbox.output_chars", 2000, "the model, and how much it takes, are verifiers' to know")
"""Of an observation, where the recipe leaves it open."""


def load_environment(
    recipe: str = "",
    overrides: Sequence[str] = (),
    *,
    train: int = 1000,
    evaluation: int = 100,
    system_prompt: str = "",
    **more: Any,
) -> RetconEnvironment:
    """Load a recipe's tasks and tools for `load_environment("retcon.plugins.verifiers")`.

    recipe, overrides: as of `retcon train`, none for the defaults; [task], [rollout] tools and turns, [sandbox] and
    [repair] (none or SAAR) count. train, evaluation: number of tasks of each; to train on, those that
    `retcon train` draws first. system_prompt: of tasks that bring none. more: what else verifiers' ToolEnv takes.
    Raises RecipeError, and what reading the tasks raises.
    """
    read = load_recipe(recipe or None, overrides)
    if CHARS.key in open_keys(read):
        read = with_lengths(read, [CHARS])
    return RetconEnvironment(read, build_tasks(read, None), train, evaluation, system_prompt, **more)


@dataclass(slots=True)
class _Rollout:
    """State of one rollout. closing: closes its tools."""

    tools: Any
    closing: AsyncExitStack


class RetconEnvironment(vf.ToolEnv):  # type: ignore[misc]  # verifiers has no types
    """Tools of a recipe, opened for each rollout, with the grader's reward.

    A tool that fails on its own account, or a grader, is an `InfraError` in `state["error"]`, never the model's fault.
    """

    def __init__(
        self, recipe: Recipe, tasks: TaskSet, train: int, evaluation: int, system_prompt: str, **more: Any
    ) -> None:
        repair = build_repair(recipe)
        if not (repair is None or isinstance(repair, Saar)):
            raise RecipeError(f"repair.kind = '{recipe.repair.kind}' does not work on messages: set it to none or saar")
        if recipe.rollout.harness:
            raise RecipeError("rollout.harness: in verifiers rollouts are made by its environments: leave it out")
        recipe.task.check_rollouts(recipe)
        self._recipe, self._tasks, self._repair = recipe, tasks, repair
        self._known: dict[str, Task] = {}
        data = {
            "dataset": self._rows(list(islice(training_prompts(tasks, recipe.run.seed), train)), system_prompt),
            "eval_dataset": self._rows(tasks.evaluation(evaluation, recipe.evaluate.seed), system_prompt),
        }
        rubric = vf.Rubric([self.graded])
        super().__init__(tools=[], max_turns=recipe.rollout.max_turns, rubric=rubric, **data, **more)
        self.tool_defs = [
            vf.Tool(name=spec.name, description=spec.description, parameters=dict(spec.parameters))
            for spec in build_specs(recipe)
        ]
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._tools: Mapping[str, AnyTool] | None = None

    def _rows(self, tasks: Sequence[Task], system: str) -> Dataset:
        self._known.update((task.id, task) for task in tasks)
        rows = []
        for task in tasks:
            first = task.system or self._tasks.system or system
            messages = [("system", first)] if first else []
            messages += [*task.before, ("user", task.question)]
            prompt = [{"role": role, "content": text} for role, text in messages]
            rows.append({"prompt": prompt, "answer": task.answer, "info": {OWN: task.id}})
        return Dataset.from_list(rows)

    async def setup_state(self, state: Any) -> Any:
        """Open the rollout's tools; the first also starts sandbox and graders. Raises InfraError where that fails."""
        try:
            async with self._opening:
                if self._tools is None:
                    async with AsyncExitStack() as started:
                        sandbox = await started.enter_async_context(open_sandbox(self._recipe.sandbox))
                        self._grading = await started.enter_async_context(open_graded(self._tasks))
                        self._tools = build_tools(self._recipe, sandbox)
                        self._open = started.pop_all()
        except SandboxUnavailable as error:
            raise vf.InfraError(f"no sandbox: {error}") from error
        closing, task = AsyncExitStack(), state["info"][OWN]
        opened = await closing.enter_async_context(open_tools(self._tools, state["trajectory_id"], task=task))
        state[OWN] = _Rollout(opened, closing)
        return state

    async def get_prompt_messages(self, state: Any) -> Any:
        """Return the conversation with answers to the last calls, possibly repaired."""
        if not state["trajectory"]:
            return state["prompt"]
        step = state["trajectory"][-1]
        failure = await self._repaired(state, step)
        history = [*step["prompt"], *step["completion"]]
        return [*history, *_tool_messages(failure)]

    @vf.cleanup  # type: ignore[untyped-decorator]
    async def close_tools(self, state: Any) -> None:
        rollout = state.pop(OWN, None)
        if rollout is not None:
            await rollout.closing.aclose()

    @vf.teardown  # type: ignore[untyped-decorator]
    async def end_sandbox(self) -> None:
        await self._open.aclose()

    async def graded(self, completion: Any, state: Any) -> float:
        """Return the reward of the task set's grader."""
        last = completion[-1] if completion else None
        answered = last is not None and last.role == "assistant" and not last.tool_calls
        turn = Turn((Segment("sampled", _text(last) if answered else ""),))
        task = self._known[state["info"][OWN]]
        made = Trajectory(state["trajectory_id"], task.id, (), (turn,), stop="answer" if answered else "turns")

        def lost(_: str, why: str) -> None:
            state["error"] = vf.InfraError(f"{task.id} could not be graded: {why}")

        return (await try_grade(task, made, self._grading.grade, lost)).reward or 0.0

    async def _repaired(self, state: Any, step: Any) -> Turn:
        """The turn of a step, its calls run; after a repair the step holds the fix's message."""
        turn, own = TurnState(state[OWN].tools), _turn(step["completion"][-1])
        lookahead = _Lookahead(self, state, step["prompt"], turn)
        try:
            ran = _with(own, await turn.run(own.calls))
            _check_no_fault(ran)
            if self._repair is None or not self._repair.failed(ran):
                return ran
            committed = (await self._repair.repair(ran, lookahead))[0]
            if committed.repair is not None and committed.repair.decision in REPLACED:
                step["completion"] = [_message(committed)]
                step["tokens"] = None
                about = committed.repair
                step["extras"][OWN] = {"decision": about.decision, "attempts": about.attempts}
                return committed
            await turn.restore_failure()
            return ran
        except InfrastructureFault as fault:
            raise vf.InfraError(str(fault)) from fault
        finally:
            await turn.discard()


class _Lookahead:
    """Implements `retcon.purify.types.Lookahead` over verifiers' client."""

    def __init__(self, env: RetconEnvironment, state: Any, history: Sequence[Any], tools: TurnState) -> None:
        self._env, self._state, self._history, self._tools = env, state, history, tools

    async def attempt(self, shown: Sequence[Turn]) -> Turn | None:
        prompt = [*self._history]
        for turn in shown:
            prompt += [_message(turn), *_tool_messages(turn)]
        response = await self._env.get_model_response(self._state, prompt)
        made = _turn(response.message)
        if response.message.is_truncated:
            return Turn(made.segments, stop="length")
        if made.calls:
            made = _with(made, await self._tools.run_again(made.calls))
            _check_no_fault(made)
        return made

    async def replays_identically(self, turns: Sequence[Turn]) -> bool:
        return False  # an answer without a call is asked for again, after the failure

    def render_observations(self, written: Any, calls: Any, observations: Any) -> tuple[Segment, ...]:
        return ()

    def fits(self, *turns: Turn) -> bool:
        return True


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, list):
        return "".join(getattr(part, "text", None) or "" for part in content)
    return content or ""


def _turn(message: Any) -> Turn:
    """A message of the model as a turn. Arguments that are no object stay text: such a call is malformed."""
    text, calls = _text(message), []
    for call in message.tool_calls or ():
        given = read_arguments(call.arguments)
        calls.append(ToolCall(call.id, call.name, call.arguments if given is None else given, len(text)))
    return Turn((Segment("sampled", text),), tuple(calls), stop="call" if calls else "answer")


def _with(turn: Turn, observations: Any) -> Turn:
    return Turn(turn.segments, turn.calls, observations, turn.stop)


def _message(turn: Turn) -> Any:
    calls = [
        vf.ToolCall(
            id=call.id,
            name=call.name,
            arguments=call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
        )
        for call in turn.calls
    ]
    return vf.AssistantMessage(content=turn.text, tool_calls=calls or None)


def _tool_messages(turn: Turn) -> list[Any]:
    return [vf.ToolMessage(tool_call_id=o.call_id, content=o.text) for o in turn.observations]


def _check_no_fault(turn: Turn) -> None:
    """Raise InfrastructureFault where a tool failed on its own account."""
    for observation in turn.observations:
        if observation.status == "infrastructure":
            raise InfrastructureFault(observation.text)
