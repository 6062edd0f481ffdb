"""Writes `samples/*.jsonl` anew: one failed call and its fix, as the libraries themselves write it.

    python tests/foreign/make_samples.py LIBRARY > tests/foreign/samples/LIBRARY.jsonl

LIBRARY is langchain (langchain-core 1.7.2), autogen (autogen-core and autogen-agentchat 0.7.5), autogen02 (pyautogen
0.2.35, which runs the programs itself), openhands (openhands-sdk 1.58.0, Python 3.12), verifiers (0.4.0) or smolagents
(1.26.0), each in an environment of its own. The words are ours; keys, their order and what is left out are the
library's.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

BAD = "import math\nroot = math.sqroot(16)\nprint(root)"
GOOD = BAD.replace("sqroot", "sqrt")
ERROR = "AttributeError: module 'math' has no attribute 'sqroot'"
TRACEBACK = f'Traceback (most recent call last):\n  File "<string>", line 2, in <module>\n{ERROR}'
QUESTION, FIRST, THEN = "the root of 16?", "let me see", "sqrt it is"


def langchain() -> list[Any]:
    from langchain_core.load import dumpd
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, messages_to_dict

    def history(first: Any, then: Any) -> list[Any]:
        def calls(id: str, code: str) -> list[Any]:
            return [{"name": "python", "args": {"code": code}, "id": id}]

        return [
            SystemMessage("solve"),
            HumanMessage(QUESTION),
            AIMessage(first, tool_calls=calls("c1", BAD)),
            ToolMessage(ERROR, tool_call_id="c1", status="error"),
            AIMessage(then, tool_calls=calls("c2", GOOD)),
            ToolMessage("4.0", tool_call_id="c2"),
            AIMessage("4"),
        ]

    def blocks(words: str, id: str, code: str) -> list[Any]:
        """The content of a reply of Anthropic's models, which langchain-anthropic leaves as it is."""
        return [
            {"type": "text", "text": words},
            {"type": "tool_use", "id": id, "name": "python", "input": {"code": code}},
        ]

    plain, of_blocks = history(FIRST, THEN), history(blocks(FIRST, "c1", BAD), blocks(THEN, "c2", GOOD))
    return [
        {"messages": messages_to_dict(plain)},
        {"messages": [message.model_dump() for message in plain]},
        {"messages": dumpd(plain)},
        {"messages": messages_to_dict(of_blocks)},
    ]


def autogen() -> list[Any]:
    from autogen_agentchat import messages as m
    from autogen_agentchat.base import TaskResult
    from autogen_core import FunctionCall
    from autogen_core.code_executor import CodeBlock, CodeResult
    from autogen_core.models import FunctionExecutionResult

    def tool(words: str, id: str, code: str, output: str, failed: bool) -> list[Any]:
        call = FunctionCall(id=id, arguments=json.dumps({"code": code}), name="python")
        result = FunctionExecutionResult(content=output, name="python", call_id=id, is_error=failed)
        return [
            m.ThoughtEvent(source="solver", content=words),
            m.ToolCallRequestEvent(source="solver", content=[call]),
            m.ToolCallExecutionEvent(source="solver", content=[result]),
            m.ToolCallSummaryMessage(source="solver", content=output, tool_calls=[call], results=[result]),
        ]

    def code(words: str, program: str, output: str, exit_code: int) -> list[Any]:
        text, block = f"{words}\n```python\n{program}\n```", CodeBlock(code=program, language="python")
        result = CodeResult(exit_code=exit_code, output=output)
        return [
            m.CodeGenerationEvent(source="coder", retry_attempt=0, content=text, code_blocks=[block]),
            m.CodeExecutionEvent(source="coder", retry_attempt=0, result=result),
        ]

    asked, answered = m.TextMessage(source="user", content=QUESTION), m.TextMessage(source="solver", content="4")
    by_tool = [*tool(FIRST, "c1", BAD, TRACEBACK, True), *tool(THEN, "c2", GOOD, "4.0", False)]
    by_code = [*code(FIRST, BAD, TRACEBACK, 1), *code(THEN, GOOD, "4.0", 0)]
    results = [TaskResult(messages=[asked, *between, answered]) for between in (by_tool, by_code)]
    return [result.model_dump(mode="json") for result in results]


def autogen02() -> list[Any]:
    """Chats with a scripted model: fenced programs, and calls of a tool; each as the user's proxy and as the coder has
    it."""
    from types import SimpleNamespace

    from autogen import AssistantAgent, UserProxyAgent, register_function
    from autogen.coding import LocalCommandLineCodeExecutor
    from openai.types.chat import ChatCompletionMessage

    logging.disable(logging.INFO)  # which go where the records go

    def reply(words: str, id: str = "", code: str = "") -> ChatCompletionMessage:
        function = {"name": "python", "arguments": json.dumps({"code": code})}
        calls = [{"id": id, "type": "function", "function": function}] if id else None
        return ChatCompletionMessage.model_validate({"role": "assistant", "content": words, "tool_calls": calls})

    class Scripted:
        def __init__(self, config: dict[str, Any], **_: Any) -> None:
            self.replies = iter(config["replies"])

        def create(self, params: dict[str, Any]) -> Any:
            choices = [SimpleNamespace(message=next(self.replies))]
            return SimpleNamespace(choices=choices, model="scripted", cost=0, usage=None)

        def message_retrieval(self, response: Any) -> list[Any]:
            return [c.message if c.message.tool_calls else c.message.content for c in response.choices]

        def cost(self, response: Any) -> float:
            return 0

        @staticmethod
        def get_usage(response: Any) -> dict[str, Any]:
            return {}

    def python(code: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "<string>", "exec"), {})
        return printed.getvalue()

    def chats(replies: list[Any], execution: Any, *, tool: bool) -> list[Any]:
        settings = {"model": "scripted", "model_client_cls": "Scripted", "replies": [*replies, reply("4\nTERMINATE")]}
        coder = AssistantAgent("coder", llm_config={"config_list": [settings], "cache_seed": None})
        proxy = UserProxyAgent(
            "user_proxy", human_input_mode="NEVER", code_execution_config=execution,
            is_termination_msg=lambda message: "TERMINATE" in (message.get("content") or ""),
        )  # fmt: skip
        if tool:
            register_function(python, caller=coder, executor=proxy, name="python", description="runs a program")
        coder.register_model_client(Scripted)
        with contextlib.redirect_stdout(io.StringIO()):
            result = proxy.initiate_chat(coder, message=QUESTION, silent=True)
        return [{"chat_history": result.chat_history}, coder.chat_messages[proxy]]

    fenced = [reply(f"{words}\n```python\n{code}\n```") for words, code in ((FIRST, BAD), (THEN, GOOD))]
    with tempfile.TemporaryDirectory() as folder:
        by_code = chats(fenced, {"executor": LocalCommandLineCodeExecutor(work_dir=folder)}, tool=False)
    return [*by_code, *chats([reply(FIRST, "c1", BAD), reply(THEN, "c2", GOOD)], False, tool=True)]


def openhands() -> list[Any]:
    from openhands.sdk.event import ActionEvent, MessageEvent, ObservationEvent
    from openhands.sdk.llm import Message, MessageToolCall, TextContent
    from openhands.sdk.tool.schema import Action, Observation

    class IPythonAction(Action):
        code: str

    class IPythonObservation(Observation):
        """As tools of one's own are: `is_error` alone says how it ended."""

    def say(source: Any, text: str) -> Any:
        role: Any = "user" if source == "user" else "assistant"
        return MessageEvent(source=source, llm_message=Message(role=role, content=[TextContent(text=text)]))

    def act(id: str, words: str, code: str, output: str, failed: bool) -> list[Any]:
        arguments = json.dumps({"code": code})
        action = ActionEvent(
            thought=[TextContent(text=words)], reasoning_content=f"reasoning: {words}", tool_call_id=id,
            action=IPythonAction(code=code), tool_name="ipython", llm_response_id=f"r{id}",
            tool_call=MessageToolCall(id=id, name="ipython", arguments=arguments, origin="completion"),
        )  # fmt: skip
        seen = IPythonObservation(content=[TextContent(text=output)], is_error=failed)
        return [action, ObservationEvent(observation=seen, action_id=action.id, tool_name="ipython", tool_call_id=id)]

    first, then = act("c1", FIRST, BAD, TRACEBACK, True), act("c2", THEN, GOOD, "4.0", False)
    events = [say("user", QUESTION), *first, *then, say("agent", "4")]
    return [[event.model_dump(mode="json", exclude_none=True) for event in events]]


def verifiers() -> list[Any]:
    """A trace as prime-rl keeps it, and the episode that verifiers itself writes."""
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.episode import EnvInfo, Episode
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, ModelCall, TraceTask, WireTrace
    from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage
    from verifiers.v1.utils.trace_store import write_episode

    def call(id: str, words: str, code: str) -> Any:
        arguments = json.dumps({"code": code})
        return AssistantMessage(content=words, tool_calls=[ToolCall(id=id, name="python", arguments=arguments)])

    messages = [
        SystemMessage(content="solve"), UserMessage(content=QUESTION),
        call("c1", FIRST, BAD), ToolMessage(tool_call_id="c1", content=TRACEBACK),
        call("c2", THEN, GOOD), ToolMessage(tool_call_id="c2", content="4.0"), AssistantMessage(content="4"),
    ]  # fmt: skip
    nodes = [
        MessageNode(
            parent=n - 1 if n else None, message=message, sampled=(said := isinstance(message, AssistantMessage)),
            token_ids=[n, n + 1], mask=[False, said], logprobs=[-0.25] * said, timestamp=0.0,
        )
        for n, message in enumerate(messages)
    ]  # fmt: skip
    task = TraceTask(type="Roots", data=WireTaskData.model_validate({"idx": 0, "prompt": QUESTION}))
    trace = WireTrace(
        task=task, agent=AgentInfo(config=WireAgentConfig()), nodes=nodes, is_completed=True, ok=True,
        calls=[ModelCall(node=n, model="m") for n, node in enumerate(nodes) if node.sampled],
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_episode(Path(folder), Episode(env=EnvInfo(id="roots"), task=task, traces=[trace], ok=True))
        (line,) = (Path(folder) / "traces.jsonl").read_text().splitlines()
    return [trace.to_record(), json.loads(line)]


def smolagents() -> list[Any]:
    from smolagents import ActionStep, ChatMessage, FinalAnswerStep, MessageRole, TaskStep, Timing, ToolCall
    from smolagents.memory import AgentMemory
    from smolagents.utils import AgentExecutionError

    class Logger:
        def log_error(self, message: str) -> None:
            """Nobody listens."""

    def step(number: int, words: str, code: str, *, failed: bool) -> Any:
        text = f"{words}\n<code>\n{code}\n</code>"
        why = f"Code execution failed at line 'root = math.sqroot(16)' due to: InterpreterError: {ERROR}"
        return ActionStep(
            step_number=number, timing=Timing(0.0, 1.0), model_output=text, code_action=code,
            model_input_messages=[ChatMessage(MessageRole.USER, [{"type": "text", "text": QUESTION}])],
            model_output_message=ChatMessage(MessageRole.ASSISTANT, text),
            tool_calls=[ToolCall("python_interpreter", code, f"call_{number}")],
            error=AgentExecutionError(why, Logger()) if failed else None,
            observations=None if failed else "Execution logs:\n4.0\nLast output from code snippet:\nNone",
        )  # fmt: skip

    memory = AgentMemory("solve")
    memory.steps = [TaskStep(QUESTION), step(1, FIRST, BAD, failed=True), step(2, THEN, GOOD, failed=False)]
    memory.steps.append(FinalAnswerStep("4"))
    return [{"steps": memory.get_full_steps()}, {"steps": memory.get_succinct_steps()}]


if __name__ == "__main__":
    for record in globals()[sys.argv[1]]():
        print(json.dumps(record))
