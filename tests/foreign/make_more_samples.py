"""Writes `samples/*.jsonl` anew, as `make_samples.py` does, for libraries of more lately.

    python tests/foreign/make_more_samples.py LIBRARY > tests/foreign/samples/LIBRARY.jsonl

LIBRARY is gemini (google-genai 2.34.0), adk (google-adk 2.13.0), pydantic_ai (pydantic-ai-slim 2.68.0), pydantic_ai1
(1.107.10), strands (strands-agents 1.62.0, which keeps Bedrock's messages) or harbor (0.26.0, Python 3.12, which has
ATIF's models). The models of the agents are scripted, so that no key and no network is needed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from typing import Any

from make_samples import BAD, FIRST, GOOD, QUESTION, THEN, TRACEBACK

ROUNDS = ((FIRST, BAD), (THEN, GOOD))


def python(code: str) -> str:
    """Runs a program."""
    if "sqroot" in code:
        raise AttributeError(TRACEBACK)
    return "4.0"


def gemini() -> list[Any]:
    """A request as the API has it and as the SDK dumps it, with the SDK's own answers of a function; a response whose
    programs ran on the server."""
    from google.genai import _extra_utils, types

    def spoken(*parts: types.Part) -> types.Content:
        return types.Content(role="model", parts=list(parts))

    def called(words: str, code: str) -> list[types.Content]:
        thought = types.Part(text=f"thought: {words}", thought=True)
        said = spoken(
            thought, types.Part(text=words), types.Part.from_function_call(name="python", args={"code": code})
        )
        response = types.GenerateContentResponse(candidates=[types.Candidate(content=said)])
        return [
            said,
            types.Content(role="user", parts=_extra_utils.get_function_response_parts(response, {"python": python})),
        ]

    def ran(words: str, code: str, output: str, outcome: types.Outcome) -> list[types.Part]:
        return [
            types.Part(text=words),
            types.Part.from_executable_code(code=code, language=types.Language.PYTHON),
            types.Part.from_code_execution_result(outcome=outcome, output=output),
        ]

    asked = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    contents = [asked, *(one for words, code in ROUNDS for one in called(words, code)), spoken(types.Part(text="4"))]
    parts = [
        *ran(FIRST, BAD, TRACEBACK, types.Outcome.OUTCOME_FAILED), *ran(THEN, GOOD, "4.0", types.Outcome.OUTCOME_OK),
        types.Part(text="4"),
    ]  # fmt: skip
    response = types.GenerateContentResponse(candidates=[types.Candidate(content=spoken(*parts), index=0)])
    system = types.Content(parts=[types.Part(text="solve")]).model_dump(mode="json", exclude_none=True)
    as_api = [content.model_dump(mode="json", exclude_none=True, by_alias=True) for content in contents]
    dumped = [content.model_dump(mode="json") for content in contents]
    return [
        {"systemInstruction": system, "contents": as_api},
        {"config": {"system_instruction": "solve"}, "contents": dumped},
        {"request": {"contents": as_api[:1]}, "response": response.model_dump(mode="json", exclude_none=True)},
    ]


def adk() -> list[Any]:
    """Sessions of an agent with a tool and of one whose programs are run."""
    return asyncio.run(_adk())


async def _adk() -> list[Any]:
    from google.adk.agents import LlmAgent
    from google.adk.code_executors import UnsafeLocalCodeExecutor
    from google.adk.models import BaseLlm, LlmResponse
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    class Scripted(BaseLlm):
        replies: list[Any]

        async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
            yield LlmResponse(content=types.Content(role="model", parts=self.replies.pop(0)))

    def run_python(code: str) -> str:
        """Runs a program."""
        try:
            return python(code)
        except AttributeError as error:
            return str(error)

    async def session(replies: list[Any], **options: Any) -> Any:
        model = Scripted(model="scripted", replies=[*replies, [types.Part(text="4")]])
        runner = InMemoryRunner(LlmAgent(name="solver", model=model, instruction="solve", **options), app_name="roots")
        made = await runner.session_service.create_session(app_name="roots", user_id="u")
        asked = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        async for _ in runner.run_async(user_id="u", session_id=made.id, new_message=asked):
            pass
        found = await runner.session_service.get_session(app_name="roots", user_id="u", session_id=made.id)
        return found.model_dump(mode="json", by_alias=True, exclude_none=True)

    calls = [
        [types.Part(text=words), types.Part.from_function_call(name="run_python", args={"code": code})]
        for words, code in ROUNDS
    ]
    fenced = [[types.Part(text=f"{words}\n```python\n{code}\n```")] for words, code in ROUNDS]
    return [
        await session(calls, tools=[run_python]),
        await session(fenced, code_executor=UnsafeLocalCodeExecutor()),
    ]


def pydantic_ai() -> list[Any]:
    """A tool that asks for another try, one that does not catch what its program raises, and one that says it."""
    from pydantic_ai import Agent, ModelRetry
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelResponse,
        TextPart,
        ThinkingPart,
        ToolCallPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def retried(code: str) -> str:
        try:
            return python(code)
        except AttributeError as error:
            raise ModelRetry(str(error)) from error

    def told(code: str) -> str:
        try:
            return python(code)
        except AttributeError as error:
            return str(error)

    def history(tool: Any, first: Any, then: Any) -> Any:
        rounds = iter(((FIRST, first), (THEN, then)))

        def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            words, args = next(rounds, ("4", None))
            if args is None:
                return ModelResponse(parts=[TextPart(words)])
            called = ToolCallPart("run_python", args)
            return ModelResponse(parts=[ThinkingPart(f"thought: {words}"), TextPart(words), called])

        agent = Agent(FunctionModel(reply), instructions="solve", retries=3)
        agent.tool_plain(tool, name="run_python")
        return json.loads(ModelMessagesTypeAdapter.dump_json(agent.run_sync(QUESTION).all_messages()))

    return [
        {"messages": history(retried, {"code": BAD}, {"code": GOOD})},
        history(told, json.dumps({"code": BAD}), json.dumps({"code": GOOD})),
    ]


pydantic_ai1 = pydantic_ai


def strands() -> list[Any]:
    """An agent's messages, which are those that it sends to Bedrock."""
    from strands import Agent, tool
    from strands.models import Model

    class Scripted(Model):
        def __init__(self) -> None:
            self.rounds = iter(((FIRST, BAD), (THEN, GOOD)))

        def update_config(self, **config: Any) -> None:
            """There is none."""

        def get_config(self) -> Any:
            return {}

        def structured_output(self, *args: Any, **options: Any) -> Any:
            raise NotImplementedError

        async def stream(self, *args: Any, **options: Any) -> Any:
            words, code = next(self.rounds, ("4", ""))
            yield {"messageStart": {"role": "assistant"}}
            if code:
                yield {"contentBlockDelta": {"delta": {"reasoningContent": {"text": f"thought: {words}"}}}}
                yield {"contentBlockStop": {}}
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": words}}}
            yield {"contentBlockStop": {}}
            if code:
                named = {"name": "run_python", "toolUseId": f"t{len(code)}"}
                yield {"contentBlockStart": {"start": {"toolUse": named}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"code": code})}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if code else "end_turn"}}

    agent = Agent(Scripted(), tools=[tool(python, name="run_python")], system_prompt="solve", callback_handler=None)
    agent(QUESTION)
    return [{"system": [{"text": "solve"}], "messages": agent.messages}]


def harbor() -> list[Any]:
    from harbor.models.trajectories import (
        Agent,
        FinalMetrics,
        Metrics,
        Observation,
        ObservationResult,
        Step,
        ToolCall,
        Trajectory,
    )

    def step(number: int, words: str, code: str, output: str) -> Step:
        ids = {"prompt_token_ids": [1] * number, "completion_token_ids": [2, 3], "logprobs": [-0.5, -0.25]}
        return Step(
            step_id=number, source="agent", message=words, reasoning_content=f"thought: {words}", model_name="m",
            tool_calls=[ToolCall(tool_call_id=f"c{number}", function_name="python", arguments={"code": code})],
            observation=Observation(results=[ObservationResult(source_call_id=f"c{number}", content=output)]),
            metrics=Metrics(prompt_tokens=number, completion_tokens=2, **ids), llm_call_count=1,
        )  # fmt: skip

    trajectory = Trajectory(
        schema_version="ATIF-v1.7", session_id="s", agent=Agent(name="solver", version="1"),
        steps=[
            Step(step_id=1, source="system", message="solve"), Step(step_id=2, source="user", message=QUESTION),
            step(3, FIRST, BAD, TRACEBACK), step(4, THEN, GOOD, "4.0"),
            Step(step_id=5, source="agent", message="4", metrics=Metrics(prompt_token_ids=[1, 2, 3])),
        ],
        final_metrics=FinalMetrics(total_steps=5),
    )  # fmt: skip
    return [trajectory.to_json_dict()]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for record in globals()[sys.argv[1]]():
        print(json.dumps(record))
