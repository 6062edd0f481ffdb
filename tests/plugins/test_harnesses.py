"""Harnesses with loops of their own through `retcon serve-agent`, and training on what they did: `make integration`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents", reason="the harnesses, which `make integration` installs")

import openai
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded
from endpoints import ROOMY, endpoint, exact, reward, trained, written
from langchain.agents import create_agent
from langchain_core.tools import ToolException
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool

from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Parent, Trajectory, ids_of
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.group import rollout_group
from retcon.serve.harness import ModelEndpoint
from retcon.serve.harness_server import open_harness
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.tasks.graders.text import find_boxed
from retcon.tasks.types import Task
from servers.agent import MODEL, context_of

pytestmark = pytest.mark.filterwarnings("default")  # the harnesses' own
set_tracing_disabled(True)


@tool
def look_up(query: str) -> str:
    """Looks a word up.

    Args:
        query: the word
    """
    return f"<{query}>"


@contextmanager
def smol(url: str, session: str, model: str = MODEL) -> Iterator[OpenAIServerModel]:
    headers = {"X-Retcon-Session": session, "X-Retcon-Task": "asked"}
    made = OpenAIServerModel(model, api_base=url, api_key="none", client_kwargs={"default_headers": headers})
    yield made
    made.client.close()


def test_a_code_agent_of_smolagents_is_one_conversation(tmp_path: Path) -> None:
    replies = [
        "I compute.\n<code>\ny = 6 * 7\nprint(y)\n</code> never said",
        "A slip.\n<code>\nprint(z)\n</code>",
        "<code>\nfinal_answer(look_up(str(y)))\n</code>",
    ]
    with endpoint(replies, tmp_path) as (url, engine):
        with smol(url, "code", f"{MODEL}:chat") as model:
            agent = CodeAgent([look_up], model, max_steps=5, verbosity_level=0)
            assert agent.run("6 times 7?") == "<42>"
        reward(url, "code", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert (kept.id, kept.task, kept.reward, len(kept.turns)) == ("code/0", "asked", 1.0, 3)
    assert exact(kept, engine)
    learnt = [s.text for s in kept.segments if s.kind == "sampled"]
    assert learnt[0].endswith("</code>")
    assert "Calling tools" not in "".join(learnt)
    assert "NameError" in kept.text or "not defined" in kept.text


def test_a_tool_calling_agent_of_smolagents_is_one_conversation(tmp_path: Path) -> None:
    replies = [
        written("Ada", "look_up"),
        'So.\n<tool_call>\n{"name": "final_answer", "arguments": {"answer": "Ada"}}\n</tool_call>',
    ]
    with endpoint(replies, tmp_path, style="qwen") as (url, engine):
        with smol(url, "tools") as model:
            assert ToolCallingAgent([look_up], model, max_steps=5, verbosity_level=0).run("Who?") == "Ada"
        reward(url, "tools", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert [turn.calls[0].name for turn in kept.turns] == ["look_up", "final_answer"]
    assert exact(kept, engine)
    assert "&lt;Ada&gt;" in kept.text or "<Ada>" in kept.text


@function_tool
def find(query: str) -> str:
    """Looks a word up."""
    if query == "nothing":
        raise ValueError("no such page")
    return f"<{query}>"


def run_agent(url: str, session: str, *, turns: int = 6) -> str | None:
    """The SDK's own loop; None where it did not come to an end within its turns."""

    async def main() -> str | None:
        headers = {"X-Retcon-Session": session, "X-Retcon-Task": "asked"}
        async with openai.AsyncOpenAI(base_url=url, api_key="none", default_headers=headers) as client:
            model = OpenAIChatCompletionsModel(MODEL, client)
            agent = Agent("finder", instructions="Find it.", tools=[find], model=model)
            try:
                return str((await Runner.run(agent, "Who?", max_turns=turns)).final_output)
            except MaxTurnsExceeded:
                return None

    return asyncio.run(main())


def test_an_agent_of_openais_sdk_is_one_conversation(tmp_path: Path) -> None:
    replies = ["I look.\n" + written("nothing", "find"), written("Ada", "find"), "It is Ada."]
    with endpoint(replies, tmp_path, style="qwen") as (url, engine):
        assert run_agent(url, "sdk") == "It is Ada."
        reward(url, "sdk", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert [[o.status for o in turn.observations] for turn in kept.turns][1:] == [["ok"], []]
    assert "error occurred" in kept.turns[0].observations[0].text
    assert exact(kept, engine)


@langchain_tool
def consult(query: str) -> str:
    """Looks a word up."""
    if query == "nothing":
        raise ToolException("no such page")
    return f"<{query}>"


consult.handle_tool_error = True  # the model is told of it, as LangChain's tools are usually set


def run_graph(url: str, session: str, *, turns: int = 6, stream: bool = False) -> str | None:
    """LangGraph's prebuilt loop, which calls a turn's tools at the same time; None where it came to no end."""
    headers = {"X-Retcon-Session": session, "X-Retcon-Task": "asked"}
    model = ChatOpenAI(model=MODEL, base_url=url, api_key="none", default_headers=headers, streaming=stream)
    agent = create_agent(model, [consult], system_prompt="Find it.")
    try:
        found = agent.invoke({"messages": [("user", "Who?")]}, {"recursion_limit": 2 * turns})
    except GraphRecursionError:
        return None
    return str(found["messages"][-1].content)


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_of_langgraph_is_one_conversation(stream: bool, tmp_path: Path) -> None:
    both = written("nothing", "consult") + "\n" + written("Eve", "consult")
    replies = ["I look.\n" + both, written("Ada", "consult"), "It is Ada."]
    with endpoint(replies, tmp_path, style="qwen") as (url, engine):
        assert run_graph(url, "graph", stream=stream) == "It is Ada."
        reward(url, "graph", 1.0)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert (kept.id, kept.task, kept.reward) == ("graph/0", "asked", 1.0)
    told = [[o.text for o in turn.observations] for turn in kept.turns]
    assert told == [["no such page", "<Eve>"], ["<Ada>"], []]
    assert exact(kept, engine)


@pytest.mark.parametrize("harness", ["smolagents", "openai-agents", "langgraph"])
def test_what_a_harness_did_trains(harness: str, tmp_path: Path) -> None:
    with trained(tmp_path, "markdown" if harness == "smolagents" else "hermes") as url:
        for n in range(4):
            if harness == "smolagents":
                with smol(url, f"s{n}", f"{MODEL}:chat") as served:
                    CodeAgent([], served, max_steps=2, verbosity_level=0).run("Go.")
            elif harness == "langgraph":
                run_graph(url, f"s{n}", turns=2)
            else:
                run_agent(url, f"s{n}", turns=2)
            reward(url, f"s{n}", float(n % 2))


def by_code_agent(task: Task, endpoint: ModelEndpoint) -> str:
    model = OpenAIServerModel(f"{endpoint.name}:chat", api_base=endpoint.url, api_key=endpoint.key)
    try:
        return f"\\boxed{{{CodeAgent([look_up], model, max_steps=3, verbosity_level=0).run(task.question)}}}"
    finally:
        model.client.close()


async def by_sdk(task: Task, endpoint: ModelEndpoint) -> str:
    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as client:
        model = OpenAIChatCompletionsModel(endpoint.name, client)
        agent = Agent("finder", instructions="Find it.", tools=[find], model=model)
        return f"\\boxed{{{(await Runner.run(agent, task.question)).final_output}}}"


def by_graph(task: Task, endpoint: ModelEndpoint) -> None:
    model = ChatOpenAI(model=endpoint.name, base_url=endpoint.url, api_key=endpoint.key)
    create_agent(model, [consult], system_prompt="Find it.").invoke({"messages": [("user", task.question)]})


@pytest.mark.parametrize(
    ("solve", "style", "replies"),
    [
        (by_code_agent, "markdown", ["A slip.\n<code>\nz\n</code>", '<code>\nfinal_answer("Ada")\n</code>']),
        (by_sdk, "qwen", [written("nothing", "find"), written("Ada", "find"), "Ada"]),
        (by_graph, "qwen", [written("nothing", "consult"), "\\boxed{Ada}"]),
    ],
)
def test_a_recipes_harness_may_be_any_of_them(solve: Any, style: str, replies: list[str]) -> None:
    """Several rollouts at once, each with a URL of its own, and nothing else that tells them apart."""

    def graded(task: Task, made: Trajectory) -> Trajectory:
        answer = find_boxed(made.turns[-1].text)
        return replace(made, answer=answer, reward=float(answer == task.answer))

    engine = ScriptedEngine(ByteTokenizer(), replies)

    async def main() -> list[Trajectory]:
        async with open_harness(solve, 120.0) as harness:
            context = replace(context_of(engine, style=style, limits=ROOMY), harness=harness)
            return await rollout_group(Task("w/1", "Who?", "Ada"), context, count=4, seed=0, step=1, grade=graded)

    made = asyncio.run(main())
    assert [(t.id, t.reward, t.stop, len(t.turns)) for t in made] == [
        (f"w/1/1/{n}", 1.0, "answer", len(replies)) for n in range(4)
    ]
    for t in made:
        assert any(seen == tuple(ids_of(t.segments))[: len(seen)] for _, seen in engine.seen)
    assert {t.raw_failures for t in made} == {int(solve is by_sdk)}  # LangChain says nothing of its own here


def by_managed_agents(task: Task, endpoint: ModelEndpoint) -> str:
    """A manager of smolagents with an agent that it manages, which has the URL of an agent."""
    asked = [
        OpenAIServerModel(f"{one.name}:chat", api_base=one.url, api_key=one.key)
        for one in (endpoint, endpoint.agent("finder"))
    ]
    try:
        finder = CodeAgent([look_up], asked[1], max_steps=3, verbosity_level=0, name="finder", description="Finds.")
        manager = CodeAgent([], asked[0], managed_agents=[finder], max_steps=4, verbosity_level=0)
        return f"\\boxed{{{manager.run(task.question)}}}"
    finally:
        for model in asked:
            model.client.close()


def managed_replies(request: str, text: str, n: int) -> str:
    if "Find Ada" in text and "You're a helpful agent named 'finder'" in text:
        return "<code>\nprint(look_up('Ada'))\n</code>" if n == 0 else '<code>\nfinal_answer("Ada it is")\n</code>'
    return "<code>\nx = finder('Find Ada')\nprint(x)\n</code>" if n == 0 else '<code>\nfinal_answer("Ada")\n</code>'


async def by_hand_off(task: Task, endpoint: ModelEndpoint) -> str:
    """The Agents SDK hands a conversation over to an agent with the URL of an agent."""
    async with AsyncExitStack() as clients:
        found = []
        for one in (endpoint, endpoint.agent("finder")):
            client = await clients.enter_async_context(openai.AsyncOpenAI(base_url=one.url, api_key=one.key))
            found.append(OpenAIChatCompletionsModel(one.name, client))
        finder = Agent("finder", instructions="Find it.", tools=[find], model=found[1])
        triage = Agent("triage", instructions="Hand over.", handoffs=[finder], model=found[0])
        return f"\\boxed{{{(await Runner.run(triage, task.question)).final_output}}}"


def handed_replies(request: str, text: str, n: int) -> str:
    if "Hand over." in text:
        return '<tool_call>\n{"name": "transfer_to_finder", "arguments": {}}\n</tool_call>'
    return written("Ada", "find") if n == 0 else "Ada"


def by_subgraph(task: Task, endpoint: ModelEndpoint) -> str:
    """A supervisor of LangGraph with a subgraph that shares its messages."""

    def model(at: ModelEndpoint) -> ChatOpenAI:
        return ChatOpenAI(model=at.name, base_url=at.url, api_key=at.key)

    supervisor = model(endpoint)

    def supervise(state: MessagesState) -> dict[str, Any]:
        return {"messages": [supervisor.invoke([("system", "Supervise."), *state["messages"]])]}

    def next_of(state: MessagesState) -> str:
        return "finder" if state["messages"][-1].content == "finder" else END

    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", supervise)
    graph.add_node("finder", create_agent(model(endpoint.agent("finder")), [consult], system_prompt="Find it."))
    graph.add_edge(START, "supervisor")
    graph.add_conditional_edges("supervisor", next_of)
    graph.add_edge("finder", "supervisor")
    found = graph.compile().invoke({"messages": [("user", task.question)]})
    return f"\\boxed{{{found['messages'][-1].content}}}"


def supervised_replies(request: str, text: str, n: int) -> str:
    if "Supervise." in text:
        return "finder" if n == 0 else "Ada"
    return written("Ada", "consult") if n == 0 else "It is Ada."


@pytest.mark.parametrize(
    ("solve", "style", "replies", "turns"),
    [
        (by_managed_agents, "markdown", managed_replies, (2, 2)),
        (by_hand_off, "qwen", handed_replies, (1, 2)),
        (by_subgraph, "qwen", supervised_replies, (2, 2)),
    ],
)
def test_an_agents_conversation_is_a_child_of_the_turn_that_called_it(
    solve: Any, style: str, replies: Any, turns: tuple[int, int]
) -> None:
    engine = ScriptedEngine(ByteTokenizer(), replies)

    async def main() -> list[Trajectory]:
        async with open_harness(solve, 120.0) as harness:
            context = replace(context_of(engine, style=style, limits=ROOMY), harness=harness)
            return await rollout_group(
                Task("w/1", "Who?", "Ada"), context, count=3, seed=0, step=1, grade=lambda task, made: made
            )

    for n, made in enumerate(asyncio.run(main())):
        assert (made.id, made.returned, made.stop) == (f"w/1/1/{n}", "\\boxed{Ada}", "answer")
        (child,) = made.children
        assert (len(made.turns), len(child.turns), child.stop) == (*turns, "answer")
        call = made.turns[0].calls[0].id if made.turns[0].calls else ""
        assert child.parent == Parent(made.id, 0, call, "subagent")
        for node in made.tree:
            assert any(seen == tuple(ids_of(node.segments))[: len(seen)] for _, seen in engine.seen)
