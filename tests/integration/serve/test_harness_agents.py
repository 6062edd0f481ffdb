"""Harnesses of several agents: whose conversation is whose child, and what is learnt from them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from integration.serve.test_harness_rollouts import ask, rolled
from retcon.config.load import load_recipe
from retcon.core.types import Parent, Trajectory, ids_of, to_sample
from retcon.rollout.context import SubcallLimits
from retcon.serve.harness import ModelEndpoint
from retcon.serve.recording import FILE
from retcon.store import jsonl
from retcon.tasks.types import Task
from retcon.train.objective.tree import credit_groups, node_fates, trainable
from servers.agent import LIMITS, SEARCH, Asking, asked, user

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "6 7"}}\n</tool_call>'


def reply(request: str, text: str, n: int) -> str:
    """A manager calls a tool twice, then answers; agents say what they were asked."""
    if "Manage." in text:
        done = text.count("</tool_call>")
        return CALL if done < 2 else "\\boxed{42}"
    return "seen " + text.rsplit("Look up ", 1)[-1][:3]


async def managed(task: Task, endpoint: ModelEndpoint, *, agents: bool = True) -> None:
    """A manager's loop, in which each call of its tool is answered by an agent with a conversation of its own."""
    searcher = endpoint.agent("searcher") if agents else endpoint
    told = [user("Manage.")]
    for name in ("one", "two"):
        called = await ask(endpoint, told, tools=[SEARCH])
        found = await ask(searcher, [user(f"Look up {name}")])
        if agents:
            await ask(searcher.agent("reader"), [user(f"Look up {name}")])
        (call,) = called["tool_calls"]
        told += [called, {"role": "tool", "tool_call_id": call["id"], "content": found["content"]}]
    await ask(endpoint, told, tools=[SEARCH])


def below(root: Trajectory) -> list[Trajectory]:
    return [node for node in root.tree if node is not root]


def places(root: Trajectory) -> list[tuple[str, str, int, str]]:
    """Of each child, without the rollout's name: its id, its parent's, the turn, and what it is."""
    found = []
    for node in below(root):
        assert node.parent is not None
        parent = node.parent.trajectory.removeprefix(root.id)
        found.append((node.id.removeprefix(f"{root.id}/"), parent, node.parent.turn, node.parent.relation))
    return sorted(found)


def test_what_is_said_at_an_agents_url_is_a_child_of_the_turn_that_was_open() -> None:
    (made,), engine, _ = rolled(managed, reply, style="hermes")
    assert (len(made.turns), made.reward) == (3, 1.0)
    assert places(made) == [
        ("searcher/1", "", 0, "subagent"),
        ("searcher/3", "", 1, "subagent"),
        ("searcher/reader/2", "/searcher/1", 0, "subagent"),
        ("searcher/reader/4", "/searcher/3", 0, "subagent"),
    ]
    calls = [turn.calls[0].id for turn in made.turns[:2]]
    assert [child.parent.call for child in made.children if child.parent] == calls
    told = {tuple(ids_of(node.segments)) for node in made.tree}
    assert all(any(ids == seen[: len(ids)] for seen in told) for _, ids in engine.seen), "ids are the engine's"


def test_an_agent_that_sums_a_history_up_is_a_compaction() -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        told = [user("Look up one")]
        told.append(await ask(endpoint, told))
        summary = await ask(endpoint.agent("compaction"), [user("Look up all")])
        await ask(endpoint, [*told, user(f"Look up {summary['content'][-3:]}")])

    (made,), *_ = rolled(solve, reply)
    assert places(made) == [("compaction/1", "", 0, "compaction")]


def test_agents_may_share_one_list_of_messages() -> None:
    """Where messages of several assistants follow one another, each learns its own."""

    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        shared = [user("Look up one")]
        for at in (endpoint, endpoint.agent("searcher"), endpoint):
            shared.append(await ask(at, shared))

    (made,), engine, _ = rolled(solve, reply)
    (child,) = made.children
    assert [len(node.turns) for node in (made, child)] == [2, 1]
    assert child.text.count("seen one") == 2
    assert made.text.count("seen one") == 3
    assert [sum(to_sample(node).mask) for node in (made, child)] == [2 * len("seen one") + 2, len("seen one") + 1]
    told = {tuple(ids_of(node.segments)) for node in made.tree}
    assert all(any(ids == seen[: len(ids)] for seen in told) for _, ids in engine.seen), "ids are the engine's"


def test_a_conversation_without_a_new_message_is_refused() -> None:
    async def play(client: Asking) -> None:
        told = [user("Look up one")]
        made = (await client.post(told, session="s")).json()["choices"][0]["message"]
        refused = await client.post([*told, made], session="s")
        assert (refused.status_code, "no message follows" in refused.text) == (400, True)

    asked(play, reply)


def test_without_urls_of_their_own_conversations_stand_beside_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    (made,), *_ = rolled(lambda task, endpoint: managed(task, endpoint, agents=False), reply, style="hermes")
    assert places(made) == [("1", "", -1, "beside"), ("2", "", -1, "beside")]
    assert sum("give each agent a URL of its own, endpoint.agent(NAME)" in line for line in caplog.messages) == 1


def test_where_agents_above_overlap_it_is_not_known_who_began_a_conversation() -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        await ask(endpoint, [user("Manage.")], tools=[SEARCH])
        searcher = endpoint.agent("searcher")
        await asyncio.gather(*(ask(searcher, [user(f"Look up {name}")]) for name in ("one", "two")))
        await ask(searcher.agent("reader"), [user("Look up it")])

    (made,), *_ = rolled(solve, reply, style="hermes")
    relations = Counter((turn, relation) for _, _, turn, relation in places(made))
    assert relations == {(0, "subagent"): 2, (-1, "beside"): 1}


def test_a_rewritten_history_is_a_fork_and_no_token_is_learnt_twice() -> None:
    async def solve(task: Task, endpoint: ModelEndpoint) -> None:
        told = [user("Look up one")]
        told.append(await ask(endpoint, told))
        await ask(endpoint, [*told, user("Look up two")])
        await ask(endpoint, [*told, user("Look up six")])

    (made,), *_ = rolled(solve, reply)
    assert places(made) == [("0", "", 0, "fork")]
    learnt = [len(list(run)) for node in made.tree for on, run in groupby(to_sample(node).mask) if on]
    assert len(learnt) == 3, "three answers, each once"


def test_children_of_agents_have_the_credit_of_the_recipe() -> None:
    made, *_ = rolled(managed, reply, style="hermes", count=2)
    recipe = load_recipe("mini/rlm", ["rl.algorithm=rloo"])
    group = [made[0], replace(made[1], reward=0.0)]
    (credited,), _ = credit_groups([group], recipe.rl, recipe.credit, LIMITS)
    own = dict(zip((node.id for node in credited.nodes), credited.advantages, strict=True))
    assert len(own) == 10
    assert {own[node.id] for node in made[0].tree} == {own[made[0].id]} != {own[made[1].id]}
    assert len(trainable(made[0], recipe.rl)) == 5
    assert {fate for _, fate in node_fates(made[0], recipe.rl)} == {""}


def test_requests_of_agents_end_with_the_budget_of_calls() -> None:
    (made,), *_ = rolled(managed, reply, style="hermes", subcalls=SubcallLimits(calls=3))
    assert (made.stop, made.reward, len(below(made)), made.refused) == ("turns", 0.0, 3, 1)


def test_files_keep_the_tree(tmp_path: Path) -> None:
    (made,), *_ = rolled(managed, reply, style="hermes")
    file = tmp_path / "made.jsonl"
    jsonl.write(file, [made])
    assert list(jsonl.read(file)) == [made]


def test_an_endpoint_records_agents_below_the_turn_of_their_session(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        assert (await client.post([user("Look up it")], agent="searcher")).status_code == 400, "of no session"
        assert (await client.post([user("Look up it")], session="s", agent="a b")).status_code == 400
        await client.chat([user("Manage.")], session="s", tools=[SEARCH])
        await client.chat([user("Look up it")], session="s", agent="searcher")
        await client.http.post("/v1/sessions/s/reward", json={"reward": 1})

    asked(play, reply, record=tmp_path, style="hermes")
    (manager,) = jsonl.read(tmp_path / FILE)
    (searcher,) = manager.children
    assert (manager.id, searcher.id, searcher.reward) == ("s/0", "s/1", 1.0)
    assert searcher.parent == Parent("s/0", 0, manager.turns[0].calls[0].id, "subagent")
