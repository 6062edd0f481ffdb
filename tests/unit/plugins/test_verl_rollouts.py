"""What verl is given of a rollout, and how its servers are asked, without verl and without Ray."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="what is masked is our trainer's to say")

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.core.types import Observation, Parent, Segment, ToolCall, Trajectory, Turn
from retcon.engine.types import Generation, SamplingParams
from retcon.plugins.verl.choosing import to_outputs, unpack
from retcon.plugins.verl.settings import Lengths
from retcon.plugins.verl.shared import FIRST, SIZE, VALIDATING, ServerEngine, Shared, VerlRollout
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.tasks.types import Task

pytestmark = pytest.mark.torch
STOP = 9


class Servers:
    """verl's client: one answer after the other, some of which are errors."""

    def __init__(self, *answers: Any) -> None:
        self.left, self.asked = list(answers), list[tuple[str, list[int], dict[str, Any]]]()

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append((request_id, prompt_ids, sampling_params))
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def told(ids: Sequence[int], stop: str = "completed", preempted: int | None = None, **about: Any) -> Any:
    """A `TokenOutput`."""
    logprobs = [-float(i) for i in ids]
    return SimpleNamespace(
        token_ids=list(ids), log_probs=logprobs, stop_reason=stop, num_preempted=preempted, extra_fields=about
    )


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = ModuleType("ray.exceptions")
    exceptions.RayError, exceptions.RayTaskError = RayError, RayTaskError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)


def generated(engine: ServerEngine, **params: Any) -> Generation:
    return asyncio.run(engine.generate("r", [1, 2], SamplingParams(max_tokens=4, stop_ids=(STOP,), **params)))


def test_ids_go_both_ways_and_only_an_end_of_turn_is_an_end() -> None:
    """verl calls whatever ends a generation the same."""
    servers = Servers(told([5, STOP]), told([5, 6, 7, 8]))
    engine = ServerEngine(servers, logprobs=True)
    ended = generated(engine, temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, seed=2**40)
    assert (ended.ids, ended.logprobs, ended.stop) == ((5, STOP), (-5.0, -9.0), "stop")
    engine = ServerEngine(servers)
    cut = generated(engine)
    assert (cut.ids, cut.logprobs, cut.stop) == ((5, 6, 7, 8), None, "length")
    first, second = servers.asked
    assert first[:2] == ("r", [1, 2])
    assert first[2] == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "max_tokens": 4, "stop_token_ids": [STOP],
        "ignore_eos": True, "seed": 2**40, "repetition_penalty": 1.0, "logprobs": True,
    }  # fmt: skip
    assert (second[2]["top_k"], second[2]["logprobs"]) == (-1, False), "vLLM's way to say that nothing is cut"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (told([5], stop="aborted"), "gave it up (aborted)"),
        (told([5], stop="abort"), "gave it up (abort)"),
        (told([]), "gave it up (completed)"),
        (RayTaskError(RuntimeError("out of memory")), "RuntimeError('out of memory')"),
        (RayError("the actor died"), "verl's server is gone: the actor died"),
    ],
)
def test_what_is_a_servers_fault_is_nobody_elses_and_kept(answer: Any, says: str) -> None:
    engine = ServerEngine(Servers(answer))
    with pytest.raises(InfrastructureFault, match=re.escape(says)):
        generated(engine)
    made = Trajectory("t/1/0", "t", (), (), stop="infrastructure")
    assert says in VerlRollout(made, 100, engine, False, 2).fault
    assert VerlRollout(replace(made, stop="answer"), 100, engine, False, 2).fault == "", "it was answered in the end"


def test_what_a_server_refuses_and_what_it_could_not_serve_is_no_fault() -> None:
    servers = Servers(*(RayTaskError(kind("too long")) for kind in (ValueError, TypeError, AssertionError)))
    for _ in range(3):
        with pytest.raises(EngineError, match="request r: too long"):
            generated(ServerEngine(servers))
    with pytest.raises(EngineError, match="do not give the ids of a stop string; use stop_ids"):
        generated(ServerEngine(servers), stop=("END",))
    assert len(servers.asked) == 3


def test_what_sampled_a_rollout_is_counted() -> None:
    about = {"min_global_steps": 3, "max_global_steps": 4}
    one = {"min_global_steps": 5, "max_global_steps": 5}
    servers = Servers(told([5], None, -1), told([5], None, 2, **about), told([5], None, 1, **one))
    engine = ServerEngine(servers)
    assert generated(engine).version is None
    assert (engine.preempted, engine.steps) == (None, [])
    assert generated(engine).version is None, "two steps' weights made it"
    assert generated(engine).version == "5"
    assert (engine.preempted, engine.steps) == (3, [3, 4, 5, 5])
    assert engine.seconds > 0


CALLED = Turn(
    (
        Segment("sampled", "go", (1, 2), (-1.0, -2.0)),
        Segment("observation", "no", (9,)),
    ),
    (ToolCall("0.0", "python", {"code": "1"}, 0),),
    (Observation("0.0", "no", "error", seconds=0.25),),
)
ANSWER = Turn((Segment("sampled", "\\boxed{1}", (3,), (-0.5,)),))
MADE = Trajectory("t/1/0", "t", (Segment("prompt", "?", (7, 8)),), (CALLED, ANSWER), 1.0)


def outputs(made: Trajectory = MADE, *keys: str, validating: bool = False, limit: int = 100) -> list[dict[str, Any]]:
    engine = ServerEngine(Servers())
    engine.seconds, engine.preempted, engine.steps = 1.5, 2, [5, 3, 4]
    rollout = VerlRollout(made, RolloutLimits(limit, 1), engine, validating, 6)
    return to_outputs(rollout, load_recipe("mini/cleaner", keys))


def output(made: Trajectory = MADE, *keys: str, validating: bool = False, limit: int = 100) -> dict[str, Any]:
    (found,) = outputs(made, *keys, validating=validating, limit=limit)
    return found


def test_ids_mask_and_log_probs_begin_after_the_prompt() -> None:
    found = output()
    assert (found["prompt_ids"], found["response_ids"]) == ([7, 8], [1, 2, 9, 3])
    assert (found["response_mask"], found["response_logprobs"]) == ([1, 1, 0, 1], [-1.0, -2.0, 0.0, -0.5])
    assert (found["reward_score"], found["num_turns"]) == (1.0, 4)
    assert found["metrics"] == {"generate_sequences": 1.5, "tool_calls": 0.25, "num_preempted": 2}
    more = found["extra_fields"]
    assert (more["min_global_steps"], more["max_global_steps"]) == (3, 5)
    assert unpack(more["trajectory"]).id == "t/1/0"
    assert more["group_size"] == 6
    assert more["reward_extra_info"] == {
        "acc": 1.0, "turns": 2.0, "calls": 1.0, "failed_calls": 1.0, "repairs": 0.0, "sampled_tokens": 3.0,
        "cut_off": 0.0, "children": 0.0,
    }  # fmt: skip


def test_where_one_log_prob_is_not_known_none_is_reported() -> None:
    """As one that were 0 would be of a token that was certain."""
    unknown = replace(CALLED, segments=(Segment("spliced", "go", (1, 2)), *CALLED.segments[1:]))
    assert output(replace(MADE, turns=(unknown, ANSWER)))["response_logprobs"] is None
    bare = [replace(t, segments=tuple(replace(s, logprobs=None) for s in t.segments)) for t in MADE.turns]
    assert output(replace(MADE, turns=tuple(bare)))["response_logprobs"] is None


def test_what_the_recipe_masks_is_masked() -> None:
    assert output(MADE, "rl.failed_calls=mask")["response_mask"] == [0, 0, 0, 1]
    assert output(replace(MADE, stop="length"), "rl.truncated=mask")["response_mask"] == [0, 0, 0, 0]


def test_length_is_taken_off_the_reward_while_it_trains_alone() -> None:
    """By the limit of this rollout, which its prompt has a part in."""
    keys = ("rl.overlong_buffer=4",)
    assert [output(MADE, *keys, limit=n)["reward_score"] for n in (10, 8, 6)] == [1.0, 0.5, 0.0]
    assert output(MADE, *keys, limit=6, validating=True)["reward_score"] == 1.0


def child(name: str, *turns: Turn, call: str = "0.0", **about: Any) -> Trajectory:
    return Trajectory(name, "t", (Segment("prompt", "?", (5,)),), turns, parent=Parent("t/1/0", 0, call), **about)


TREE = replace(
    MADE,
    children=(
        child("a", ANSWER, stop="answer"),
        child("gone", ANSWER, call="of an attempt that was taken out"),
        child("refused", stop="infrastructure"),
        child(
            "b", CALLED, ANSWER, stop="answer", children=(replace(child("c", ANSWER), parent=Parent("b", 0, "0.0")),)
        ),
    ),
)


def test_children_come_before_their_rollout_with_its_reward() -> None:
    """verl takes a session's last output for the rollout, and gives the others its advantage."""
    *below, root = outputs(TREE, "credit.kind=inherit", "credit.weights=node")
    assert [(one["prompt_ids"], one["response_ids"]) for one in below] == [([5], [3]), ([5], [1, 2, 9, 3]), ([5], [3])]
    assert below[1]["response_mask"] == [1, 1, 0, 1]
    assert {one["reward_score"] for one in (*below, root)} == {1.0}
    assert unpack(root["extra_fields"]["trajectory"]).id == "t/1/0"
    assert [one["extra_fields"]["trajectory"] for one in below] == [b""] * 3
    assert {one["extra_fields"]["reward_extra_info"]["children"] for one in (*below, root)} == {5.0}
    assert [one.keys() for one in below] == [root.keys()] * 3, "verl makes one table of them"


def test_children_stay_out_of_what_is_masked_validated_or_trained_by_roots() -> None:
    keys = ("credit.kind=inherit", "credit.weights=node")
    assert len(outputs(TREE, *keys)) == 4
    assert len(outputs(replace(TREE, stop="length"), "rl.truncated=mask", *keys)) == 1
    assert len(outputs(TREE, *keys, validating=True)) == 1
    assert len(outputs(TREE)) == 1


def test_a_task_that_a_step_has_twice_is_rolled_out_by_other_draws_each_time() -> None:
    chat = Chat(ByteTokenizer())
    servers = Servers(*(told(chat.stop_ids) for _ in range(5)))
    recipe = load_recipe("mini/cleaner", ["repair.kind=none"])
    context = RolloutContext(ServerEngine(servers), chat, {}, RolloutLimits(4000, 1))
    shared = Shared(
        recipe, Lengths(2000, 2000), servers, context, lambda row: Task("t", "?", "1"),
        lambda task, trajectory: replace(trajectory, reward=1.0),
    )  # fmt: skip

    async def rolled(first: int, session: int) -> str:
        row = {"global_steps": 1, "session_id": session, FIRST: first, SIZE: 2, VALIDATING: False}
        return (await shared.rollout(row, {"temperature": 1.0, "top_p": 1.0, "top_k": -1})).trajectory.id

    names = [asyncio.run(rolled(first, session)) for first, session in ((0, 0), (0, 1), (2, 0), (2, 1), (0, 0))]
    assert names == ["t/1/0", "t/1/1", "t/1/2", "t/1/3", "t/1/0"]
    seeds = [params["seed"] for _, _, params in servers.asked]
    assert len(set(seeds)) == 4
    assert seeds[0] == seeds[4], "and a step that is done again is the same"
