"""Retcon's tasks as an environment of verifiers, run by its own package: `make integration`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers, which `make integration` installs")

import verifiers as vf

if not hasattr(vf, "load_environment"):
    pytest.skip("verifiers below 0.4, which `make integration` installs", allow_module_level=True)

from retcon.build import build_tasks
from retcon.config.load import load_recipe
from retcon.core.errors import SandboxUnavailable
from retcon.plugins import verifiers as plugin
from retcon.plugins.verifiers import _turn
from retcon.tasks.registry import training_prompts

pytestmark = pytest.mark.filterwarnings("default")  # the packages' own


class Scripted(vf.Client):  # type: ignore[misc]
    """A client that plays messages; prompts: what it was given, one a call."""

    def __init__(self, *replies: tuple[str, str | None]) -> None:
        self.replies, self.prompts = list(replies), []

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
        self.prompts.append(list(prompt))
        said, code = self.replies[len(self.prompts) - 1]
        arguments = json.dumps({"code": code})
        calls = [vf.ToolCall(id=f"c{len(self.prompts)}", name="python", arguments=arguments)] if code else None
        message = vf.ResponseMessage(
            content=said, tool_calls=calls, finish_reason="stop", is_truncated=False, tokens=None,
            reasoning_content=None,
        )  # fmt: skip
        return vf.Response(id="r", created=0, model=model, usage=None, message=message)

    def setup_client(self, config: Any) -> Any: ...
    async def to_native_tool(self, tool: Any) -> Any: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *given: Any, **named: Any) -> Any: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...


def ours(client: Any, *overrides: str) -> Any:
    """The state of one rollout of Retcon's own environment, scored."""
    env = vf.load_environment("retcon.plugins.verifiers", overrides=[
        "sandbox.workers=1", "sandbox.output_chars=500", "rollout.max_turns=4", *overrides,
    ], train=4, evaluation=2)  # fmt: skip
    answer = env.get_dataset()[0]["answer"]
    client.replies = [(said.replace("ANSWER", answer), code) for said, code in client.replies]

    async def rolled() -> Any:
        try:
            row = env.get_dataset()[0]
            state = await env.rollout(row, client, "model", {})
            if state["error"] is None:
                await env.rubric.score_rollout(state)
            return state
        finally:
            await env._teardown()

    return asyncio.run(rolled())


def test_its_tasks_are_those_that_a_run_draws_and_not_those_of_demonstrations() -> None:
    recipe = load_recipe(None, ["run.seed=3"])
    env = vf.load_environment("retcon.plugins.verifiers", overrides=["run.seed=3"], train=4, evaluation=2)
    drawn = list(islice(training_prompts(build_tasks(recipe), 3), 4))
    assert [row["info"]["retcon"] for row in env.get_dataset()] == [task.id for task in drawn]


RIGHT = "It is \\boxed{ANSWER}."


def test_retcons_tasks_run_in_verifiers_with_its_sandbox_and_its_graders() -> None:
    client = Scripted(("Let me see.", "print(6 * 7)"), ("No.", "1 / 0"), (RIGHT, None))
    state = ours(client)
    assert (state["error"], state["reward"]) == (None, 1.0)
    assert next(m.content for m in state["completion"] if m.role == "tool") == "42"
    assert "ZeroDivisionError" in [m.content for m in state["completion"] if m.role == "tool"][1]
    assert ours(Scripted(("It is \\boxed{none}.", None)))["reward"] == -1.0


def test_in_verifiers_a_failed_call_is_repaired_where_the_recipe_says_so() -> None:
    client = Scripted(("Divide.", "print(1 / 0)"), ("Sorry.", "print(1 / 1)"), (RIGHT, None))
    state = ours(client, "repair.kind=saar")
    assert [(m.role, m.content) for m in state["completion"][:2]] == [("assistant", "Divide."), ("tool", "1.0")]
    assert json.loads(state["completion"][0].tool_calls[0].arguments) == {"code": "print(1 / 1)"}
    assert state["trajectory"][0]["extras"]["retcon"] == {"decision": "shallow", "attempts": 1}
    assert "ZeroDivisionError" in client.prompts[1][-1].content  # which the lookahead alone was shown
    assert not any("ZeroDivisionError" in str(m.content) for m in client.prompts[2])
    assert state["reward"] == 1.0


def test_in_verifiers_the_state_of_a_session_goes_back_and_an_unrepaired_failure_stays() -> None:
    client = Scripted(
        ("Count.", "n = 1; print(n)"), ("On.", "n += 1; print(n); m"), ("Again.", "n += 1; print(n)"), (RIGHT, None)
    )
    state = ours(client, "repair.kind=saar", "sandbox.sessions=true")
    assert [m.content for m in state["completion"] if m.role == "tool"] == ["1", "2"]
    bad = [("Bad.", "m")] * 4
    state = ours(Scripted(*bad, (RIGHT, None)), "repair.kind=saar")
    assert [m.role for m in state["completion"]] == ["assistant", "tool", "assistant"]
    assert "NameError" in state["completion"][1].content


def test_a_sandbox_is_ended_where_what_is_opened_after_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rollout tries it again."""
    opened: list[str] = []

    @asynccontextmanager
    async def sandbox(_: Any) -> AsyncIterator[None]:
        opened.append("a sandbox")
        try:
            yield
        finally:
            opened.pop()

    def unavailable(*_: Any) -> None:
        raise SandboxUnavailable(f"with {len(opened)} open")

    monkeypatch.setattr(plugin, "open_sandbox", sandbox)
    monkeypatch.setattr(plugin, "build_tools", unavailable)
    env = vf.load_environment("retcon.plugins.verifiers", train=4, evaluation=2)

    async def begun() -> None:
        for _ in range(2):
            with pytest.raises(vf.InfraError, match="with 1 open"):
                await env.setup_state({"info": {"retcon": "t"}, "trajectory_id": "t"})

    asyncio.run(begun())
    assert opened == []


def test_in_verifiers_other_repairs_are_refused() -> None:
    with pytest.raises(RuntimeError, match="does not work on messages"):
        vf.load_environment("retcon.plugins.verifiers", overrides=["repair.kind=describe"])
    with pytest.raises(RuntimeError, match=r"rollout\.harness: in verifiers"):
        vf.load_environment("retcon.plugins.verifiers", overrides=["rollout.harness=my_agent:solve"])


DEEP, SURROGATE = "[" * 100_000, '{"code": "\\ud800"}'


@pytest.mark.parametrize("given", [DEEP, SURROGATE, '{"code": NaN}'], ids=["deep", "surrogate", "nan"])
def test_in_verifiers_arguments_that_cannot_be_read_are_a_failed_call(given: str) -> None:
    called = vf.ToolCall(id="a", name="python", arguments=given)
    (call,) = _turn(vf.AssistantMessage(content="", tool_calls=[called])).calls
    assert call.arguments == given
