"""Conversations as they are recorded: continued from what was sampled, branched where they were rewritten, rewarded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from playing import call
from retcon.core.types import Trajectory, to_sample
from retcon.serve.recording import FILE, OPEN
from retcon.store import jsonl
from servers.agent import MODEL, SAAR, SEARCH, Asking, Message, asked, conversed, said, user


def numbered(_: str, text: str, n: int) -> str:
    return f"answer {text.count('<|im_start|>assistant')}"


def ids_of(trajectory: Trajectory) -> tuple[int, ...]:
    return tuple(i for s in trajectory.segments for i in s.ids or ())


def learnt(trajectory: Trajectory) -> list[str]:
    return [s.text for s in trajectory.segments if s.kind in ("sampled", "spliced")]


@pytest.mark.parametrize("session", [None, "mine.1"])
def test_a_conversation_goes_on_from_what_was_sampled(session: str | None) -> None:
    async def play(client: Asking) -> None:
        _, answer = await conversed(client, "One?", "Two?", "Three?", session=session)
        id = answer["retcon"]["session"]
        assert session in (None, id)
        (kept,) = client.trajectories(id)
        assert learnt(kept) == [f"answer {n}<|im_end|>" for n in (1, 2, 3)]
        *_, last = client.engine.seen
        assert ids_of(kept)[: len(last[1])] == last[1]
        assert {request for request, _ in client.engine.seen} == {f"{id}/0.1"}  # one row of keys and values
        assert client.engine.released == []
        sample = to_sample(kept)
        assert sum(sample.mask) == kept.sampled_tokens == answer["usage"]["completion_tokens"] * 3

    asked(play, numbered)


def test_what_was_sampled_is_not_encoded_again_though_its_text_would_be_other_ids() -> None:
    """The repaired history: the client has seen its answer alone."""

    async def play(client: Asking) -> None:
        _, answer = await conversed(client, "One?", "Two?")
        (kept,) = client.trajectories(answer["retcon"]["session"])
        assert [s.kind for s in kept.turns[0].generated] == ["sampled", "spliced"]
        assert [o.text for turn in kept.turns for o in turn.observations] == ["<1 + 1>"]
        assert client.engine.seen[-1][1] == ids_of(kept)[: len(client.engine.seen[-1][1])]
        assert answer["retcon"]["turns"] == 1

    asked(play, [call("x + 1", "a "), call("1 + 1", "b "), "two", "three"], repair=SAAR)


def test_a_rewritten_history_becomes_a_branch_that_learns_nothing_twice() -> None:
    async def play(client: Asking) -> None:
        told, answer = await conversed(client, "One?", "Two?", session="s")
        await client.chat([*told[:2], user("Two, in other words?")], session="s")
        await client.chat([user("One?"), {"role": "assistant", "content": "made up"}, user("Two?")], session="s")
        assert answer["retcon"]["known_tokens"] > 0
        first, second, third = client.trajectories("s")
        assert [t.id for t in (first, second, third)] == ["s/0", "s/1", "s/2"]
        assert learnt(first) == ["answer 1<|im_end|>", "answer 2<|im_end|>"]
        assert learnt(second) == ["answer 2<|im_end|>"]
        assert learnt(third) == ["answer 2<|im_end|>"]
        assert [s.kind for s in second.prompt].count("sampled") == 0
        assert "answer 1" in "".join(s.text for s in second.prompt)
        assert "made up" in "".join(s.text for s in third.prompt)
        assert [seen for _, seen in client.engine.seen[2:]] == [
            ids_of(t)[: len(seen)] for t, (_, seen) in zip((second, third), client.engine.seen[2:], strict=True)
        ]
        assert len({request for request, _ in client.engine.seen}) == 3

    asked(play, numbered)


def test_a_trajectory_keeps_its_id_and_reward_when_others_branch_off(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        told, _ = await conversed(client, "One?", session="s")
        first = await client.chat([*told, user("b")], session="s")
        await client.chat([*told, user("c")], session="s")
        await client.http.post("/v1/sessions/s/reward", json={"reward": 0.5, "trajectory": "s/1", "end": False})
        for text in ("d", "e"):
            await client.chat([*told, user("b"), said(first), user(text)], session="s")
        await client.chat([user("Anew?")], session="s")
        ended = (await client.http.post("/v1/sessions/s/end")).json()
        assert [(one["id"], one["reward"]) for one in ended["data"]] == [
            ("s/0", None), ("s/1", 0.5), ("s/2", None), ("s/3", None)
        ]  # fmt: skip

    asked(play, numbered, record=tmp_path)
    last = {t.id: t.text.rpartition("user\n")[2].partition("<")[0] for t in jsonl.read(tmp_path / FILE)}
    assert last == {"s/0": "d", "s/1": "c", "s/2": "e", "s/3": "Anew?"}


@pytest.mark.parametrize("session", [None, "s"], ids=["nameless", "named"])
@pytest.mark.parametrize("answers", [["42", "4"], ["4", "42"], ["420", "42", "4"]])
def test_an_answer_is_not_taken_for_another_one_that_it_begins_with(answers: list[str], session: str | None) -> None:
    """Nor is what a harness adds to it."""

    def reply(request: str, text: str, n: int) -> str:
        return "and on" if "Two?" in text else answers[len(given)]

    given: list[Any] = []

    async def play(client: Asking) -> None:
        for _ in answers:
            given.append(await client.chat([user("One?")], session=session))
        for answer in given:
            for adds in ("", " Calling tools"):
                wrote = {"role": "assistant", "content": f"{said(answer)['content']}{adds}"}
                after = await client.chat([user("One?"), wrote, user("Two?")], session=session)
                assert after["retcon"]["session"] == answer["retcon"]["session"]
                assert after["retcon"]["known_tokens"] == answer["usage"]["total_tokens"]

    asked(play, reply)


def test_a_message_of_the_users_that_quotes_the_model_is_none_of_the_models() -> None:
    async def play(client: Asking) -> None:
        told, _ = await conversed(client, "One?", "Two?")
        quoted = [*told[:3], user("answer 2, you said, which is wrong")]  # without the answer itself
        again = await client.chat(quoted)
        assert (again["choices"][0]["message"]["content"], again["retcon"]["session"]) == ("answer 2", session(client))

    def session(client: Asking) -> str:
        (one,) = client.agent.sessions
        return one.id

    asked(play, numbered)


def test_rewards_are_posted_and_sessions_end_on_the_record(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        for name in ("a", "b", "c"):
            told, _ = await conversed(client, "One?", "Two?", session=name)
        await client.chat([*told[:2], user("Other?")], session="c")
        assert (await client.http.post("/v1/sessions/a/reward", json={"reward": 1})).json()["open"] is False
        await client.http.post("/v1/sessions/c/reward", json={"reward": 0.5, "trajectory": "c/1", "end": False})
        ended = (await client.http.post("/v1/sessions/c/reward", json={"reward": -1})).json()
        assert [one["reward"] for one in ended["data"]] == [-1.0, 0.5]
        listed = (await client.http.get("/v1/sessions")).json()["data"]
        assert [(one["id"], one["requests"]) for one in listed] == [("b", 2)]
        assert sorted(path.stem for path in (tmp_path / OPEN).iterdir()) == ["b"]
        lines = (await client.http.get("/v1/sessions/b/trajectories")).text.splitlines()
        assert json.loads(lines[0])["id"] == "b/0"
        gone = await client.http.post("/v1/sessions/a/reward", json={"reward": 1})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "no_such_session")
        assert {request.partition("/")[0] for request in client.engine.released} == {"a", "c"}

    asked(play, numbered, record=tmp_path)
    found = {t.id: t for t in jsonl.read(tmp_path / FILE)}
    assert {id: t.reward for id, t in found.items()} == {"a/0": 1.0, "c/0": -1.0, "c/1": 0.5, "b/0": None}
    assert len({t.task for t in found.values()}) == 1
    assert list((tmp_path / OPEN).iterdir()) == []


def test_the_header_names_the_task_and_a_session_can_be_thrown_away(tmp_path: Path) -> None:
    async def play(client: Asking) -> None:
        await client.post([user("One?")], session="a", task="sums/1")
        await client.post([user("One?")], session="b", task="sums/2")
        await client.http.delete("/v1/sessions/b")
        for name, reward in (("reward", "NaN"), ("reward", '"1"'), ("rewards", "1")):
            body = f'{{"{name}": {reward}}}'
            wrong = await client.http.post("/v1/sessions/a/reward", content=body)
            assert wrong.status_code == 400, body
        assert (await client.http.post("/v1/sessions/a/end")).json()["task"] == "sums/1"

    asked(play, numbered, record=tmp_path)
    (kept,) = jsonl.read(tmp_path / FILE)
    assert (kept.task, kept.reward) == ("sums/1", None)


def test_a_task_may_be_named_later() -> None:
    """A client may not send it from the first request on: the conversation is the same one all along."""

    async def play(client: Asking) -> None:
        begun: list[Message] = [user("One?")]
        for session in ("a", None):
            first = (await client.post(begun, session=session)).json()
            told: list[Message] = [*begun, said(first), user("Two?")]
            own = first["retcon"]["session"]
            second = (await client.post(told, session=session, task="sums/1")).json()
            assert second["retcon"]["session"] == own
            assert client.agent.sessions.get(own).task == "sums/1"
            told += [said(second), user("Three?")]
            assert (await client.post(told, session=session)).json()["retcon"]["session"] == own
            other = await client.post(told, session=session, task="sums/2")
            if session is None:
                assert other.json()["retcon"]["session"] != own
            else:
                assert other.json()["error"]["code"] == "another_task"

    asked(play, numbered)


def test_a_task_is_named_in_any_script() -> None:
    async def play(client: Asking) -> None:
        body = {"model": MODEL, "messages": [user("One?")]}
        for sent, task in (("größe/1".encode(), "größe/1"), ("東京".encode(), "東京"), ("é".encode("latin-1"), "é")):
            headers = [(b"x-retcon-task", sent)]
            answer = (await client.http.post("/v1/chat/completions", json=body, headers=headers)).json()
            assert client.agent.sessions.get(answer["retcon"]["session"]).task == task

    asked(play, numbered)


def test_a_history_that_was_never_sampled_here_is_reported_and_not_learnt() -> None:
    async def play(client: Asking) -> None:
        made = {"id": "z", "type": "function", "function": {"name": "search", "arguments": '{"query": "Ada"}'}}
        told: list[Message] = [
            {"role": "developer", "content": "Be brief."},
            user("Who?"),
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "tool_call_id": "z", "content": [{"type": "text", "text": "Lovelace"}]},
            user("And?"),
        ]
        answer = await client.chat(told, tools=[SEARCH])
        (kept,) = client.trajectories(answer["retcon"]["session"])
        assert learnt(kept) == ["answer 2<|im_end|>"]
        text = "".join(s.text for s in kept.prompt)
        parts = ("Be brief.", "Who?", '"query": "Ada"', "<tool_response>\nLovelace", "And?")
        places = [text.index(part) for part in parts]
        assert places == sorted(places)

    asked(play, numbered, style="hermes")


def test_calls_that_a_harness_writes_as_text_are_known_by_their_ids() -> None:
    tool = '<tool_call>\n{"name": "search", "arguments": {"query": "it"}}\n</tool_call>'

    async def play(client: Asking) -> None:
        first = await client.chat([user("Who?")], tools=[SEARCH])
        (made,) = first["choices"][0]["message"]["tool_calls"]
        written: Message = {"role": "assistant", "content": f"Calling tools:\n[{made}]"}
        second = await client.chat([user("Who?"), written, user("Observation: Ada")], tools=[SEARCH])
        assert second["retcon"]["session"] == first["retcon"]["session"]
        (kept,) = client.trajectories(second["retcon"]["session"])
        assert [len(turn.calls) for turn in kept.turns] == [1, 0]
        dropped: Message = {"role": "assistant", "content": "Calling tools"}
        third = await client.chat([user("Who?"), dropped, user("Observation: Ada")], tools=[SEARCH])
        assert third["retcon"]["known_tokens"] == 0

    asked(play, [tool, "Ada.", "Who knows."], style="hermes")


def test_a_call_that_no_tool_takes_is_known_by_its_id_however_a_harness_puts_it() -> None:
    """OpenHands sends it back under its own name of the tool, or with an object where the arguments were no JSON."""
    slips = ("bash", '{"query": "x"}'), ("search", '{"query": '), ("search", '{"query": "x", "more": null}')
    replies = [f'<tool_call>\n{{"name": "{name}", "arguments": {told}}}\n</tool_call>' for name, told in slips]

    async def play(client: Asking) -> None:
        told: list[Message] = [user("Who?")]
        for _ in slips:
            (made,) = (await client.chat(told, tools=[SEARCH]))["choices"][0]["message"]["tool_calls"]
            put = {**made, "function": {"name": "search", "arguments": '{"query": "x"}'}}
            message: Message = {"role": "assistant", "content": None, "tool_calls": [put]}
            told = [*told, message, {"role": "tool", "tool_call_id": made["id"], "content": "Ada"}]
        answer = await client.chat(told, tools=[SEARCH])
        (kept,) = client.trajectories(answer["retcon"]["session"])
        assert learnt(kept) == [f"{text}<|im_end|>" for text in (*replies, "Ada.")]
        assert ids_of(kept)[: len(client.engine.seen[-1][1])] == client.engine.seen[-1][1]

    asked(play, [*replies, "Ada."], style="hermes")


def test_a_tag_that_a_stop_string_cut_is_closed_in_the_same_message() -> None:
    """OpenHands, where it asks for calls as text: they stop at `</function`, and come back spaced anew."""

    async def play(client: Asking) -> None:
        model, stop = f"{MODEL}:chat", ["</function"]
        first = await client.chat([user("Go.")], model=model, stop=stop)
        assert first["choices"][0]["message"]["content"] == "I look.\n<function=ls>\n"
        message: Message = {"role": "assistant", "content": "I look.\n\n<function=ls>\n</function>"}
        told = [user("Go."), message, user("a b")]
        second = await client.chat(told, model=model, stop=stop)
        (kept,) = client.trajectories(second["retcon"]["session"])
        assert learnt(kept) == ["I look.\n<function=ls>\n</function", "It is a.<|im_end|>"]
        assert "\n</function><|im_end|>\n<|im_start|>user\na b<|im_end|>" in kept.text
        assert [s.kind for s in kept.segments if s.text == ">"] == ["prompt"]

    asked(play, ["I look.\n<function=ls>\n</function> never said", "It is a."])
