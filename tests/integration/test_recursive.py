"""Rollouts whose programs call the model: children, budgets, answers that a program submits, repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from playing import LIMITS, call, written
from retcon.build import build_tools
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.core.types import Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.purify.saar import Saar
from retcon.rollout.context import RolloutContext, SubcallLimits
from retcon.rollout.group import rollout_member
from retcon.rollout.loop import run_rollout
from retcon.rollout.subcalls import SubcallBudget, TreePlace
from retcon.sandbox.pool import SandboxPool
from retcon.tasks.types import Task
from retcon.tools.kinds.rlm import Rlm
from retcon.train.objective.tree import node_fates

TASK = Task("q", "Which word?", "plum", meta={"context": "a long text with a plum in it"})
UNLIMITED = SubcallLimits()
DONE = "answer['content'] = {}\nanswer['ready'] = True"


def play(
    *programs: str,
    child: Callable[[str], str] = lambda prompt: prompt[-4:].upper(),
    limits: SubcallLimits = UNLIMITED,
    repair: Saar | None = None,
    nested: str = "",
    refuse: bool = False,
    system: str | None = None,
) -> tuple[Trajectory, list[Trajectory], SubcallBudget]:
    """Play a root's programs; `nested` is that of a child with a session, `child` answers for the model alone.

    refuse: the second turn of a child with a session.
    """

    def reply(request: str, text: str, n: int) -> str:
        if request == "q":
            return call(programs[n]) if n < len(programs) else "I give up."
        if nested and "Do what `context` asks for." in text:
            if refuse and n:
                raise EngineError("too long for me")
            return call(nested)
        return child(text.removesuffix("<|im_end|>\n<|im_start|>assistant\n"))

    async def main() -> tuple[Trajectory, list[Trajectory], SubcallBudget]:
        tokenizer = ByteTokenizer()
        async with SandboxPool(2) as pool:
            tool = Rlm(pool)
            context = RolloutContext(
                ScriptedEngine(tokenizer, reply), Chat(tokenizer, system=system), {tool.name: tool}, LIMITS,
                repair=repair, subcalls=limits,
            )  # fmt: skip
            children: list[Trajectory] = []
            budget = SubcallBudget(limits)
            place = TreePlace(budget, on_child=lambda made, _: children.append(made))
            made = await run_rollout(TASK, context, id="q", seed=1, place=place)
            assert pool.open_sessions == 0
            return made, children, budget

    return asyncio.run(main())


def test_a_call_of_the_model_sees_its_prompt_alone_and_a_rollout_below_the_system_prompt_too():
    made, children, _ = play(
        "print(llm_query('fig.'))\nprint(rlm_query('a pea'))",
        nested=DONE.format("1"), system="You are a reader.",
    )  # fmt: skip
    assert seen(made) == ["FIG.\n1"]
    assert [("a reader" in "".join(s.text for s in node.prompt)) for node in (*children, made)] == [False, True, True]


def seen(made: Trajectory) -> list[str]:
    return [o.text for t in made.turns for o in t.observations]


def test_a_program_reads_the_context_asks_the_model_and_submits_the_answer():
    made, children, budget = play(
        "print(len(context), SHOW_VARS())",
        "x = llm_query('say plum')\nprint(x)",
        DONE.format("x.lower()"),
    )
    assert seen(made) == ["29 Available variables: {'context': 'str'}", "PLUM", ""]
    assert (made.stop, made.returned) == ("answer", "plum")
    assert [(c.parent.trajectory, c.parent.turn, c.parent.relation) for c in children] == [("q", 1, "subcall")]
    assert children[0].parent.call == made.turns[1].calls[0].id
    assert written(children[0].turns[0]) == "PLUM"
    assert (budget.calls, budget.output_tokens) == (1, children[0].sampled_tokens)


def test_an_answer_with_update_ends_the_rollout_and_one_that_is_not_ready_does_not():
    made, *_ = play("answer['content'] = 'no'", "answer.update(content=7, ready=True)", "1")
    assert (len(made.turns), made.returned) == (2, "7")


def test_a_batch_is_answered_in_order_and_a_failed_call_is_a_text():
    def child(prompt: str) -> str:
        if prompt.endswith("two!"):
            raise EngineError("this prompt is refused")
        return prompt[-4:]

    made, children, _ = play("print(llm_query_batched(['one.', 'two!', '.six']))", child=child)
    assert seen(made) == ["['one.', 'Error: this prompt is refused', '.six']"]
    (refused,) = [child for child in children if child.stop == "infrastructure"]
    assert (len(children), refused.reason, refused.turns) == (3, "this prompt is refused", ())
    assert "two!" in refused.text
    assert refused.parent.call == made.turns[0].calls[0].id
    assert {n.id: fate for n, fate in node_fates(made, load_recipe("mini/rlm").rl)}[refused.id] == "infrastructure"


def test_a_child_that_is_refused_in_its_second_turn_keeps_its_first_and_its_children():
    def child(prompt: str) -> str:
        return "plum"

    made, children, _ = play("print(rlm_query('find a fig'))", child=child, nested="print(llm_query('a'))", refuse=True)
    assert seen(made) == ["Error: too long for me"]
    below, above = children
    assert (above.stop, len(above.turns), above.children) == ("infrastructure", 1, (below,))


def test_a_recursive_call_has_a_session_of_its_own_and_the_prompt_as_context():
    made, children, _ = play(
        "x = 1\nprint(rlm_query_batched(['find a fig', 'find a pea']))\nprint(x)",
        nested="x = 2\n" + DONE.format("llm_query(context)"),
    )
    assert seen(made) == ["['FIG', 'PEA']\n1"]
    below = {c.id: c for c in children}
    deep = [c for c in children if c.parent.trajectory != "q"]
    assert len(children) == 4
    assert [below[c.parent.trajectory].parent.trajectory for c in deep] == ["q", "q"]


def test_below_the_depth_a_recursive_call_is_answered_by_the_model_alone():
    made, children, _ = play("print(rlm_query('a fig.'))", limits=SubcallLimits(depth=0), nested="1 / 0")
    assert seen(made) == ["FIG."]
    assert len(children) == 1


def test_a_limit_of_calls_is_said_to_the_program_and_ends_nothing():
    made, children, budget = play("print(llm_query_batched(['aaaa'] * 3))", limits=SubcallLimits(calls=2))
    refusal = "Error: the limit of 2 calls of the model is reached; answer with what you have"
    assert seen(made) == [f"['AAAA', 'AAAA', '{refusal}']"]
    assert (len(children), budget.refused) == (2, 1)


def test_a_model_that_calls_itself_for_ever_ends_by_its_budget():
    made, children, budget = play(
        "print(rlm_query('go on')[:5])",
        nested=DONE.format("rlm_query(context)"),
        limits=SubcallLimits(depth=100, calls=6),
    )
    assert seen(made) == ["Error"]
    assert (len(children), budget.calls) == (6, 6)


def test_children_do_not_depend_on_the_order_in_which_threads_ask():
    def ids(order: str) -> set[tuple[str, int | None]]:
        code = f"from concurrent.futures import ThreadPoolExecutor\nlist(ThreadPoolExecutor(4).map(llm_query, {order}))"
        return {(c.id, c.provenance.seed) for c in play(code)[1]}

    assert ids("['aaaa', 'bbbb', 'aaaa']") == ids("['bbbb', 'aaaa', 'aaaa']")


def test_children_of_a_repaired_failure_keep_the_abandoned_call():
    made, children, _ = play("x = llm_query('aaaa')\ny + 1", "x = llm_query('aaaa')\nprint(x)", repair=Saar(attempts=1))
    assert made.turns[0].repair.decision in ("shallow", "deep")
    committed = {c.id for t in made.turns for c in t.calls}
    assert sorted(c.parent.call in committed for c in children) == [False, True]


def test_what_a_program_submits_is_graded():
    async def main() -> Trajectory:
        tokenizer = ByteTokenizer()
        async with SandboxPool(2) as pool:
            tool = Rlm(pool)
            engine = ScriptedEngine(tokenizer, [call(DONE.format("'plum'"))])
            context = RolloutContext(engine, Chat(tokenizer), {tool.name: tool}, LIMITS)

            def grade(task: Task, made: Trajectory) -> Trajectory:
                return replace_reward(made, written(made.turns[-1]) == task.answer)

            return await rollout_member(TASK, context, 0, seed=1, step=0, grade=grade)

    made = asyncio.run(main())
    assert (made.reward, made.returned, len(made.turns[0].calls)) == (1.0, "plum", 1)


@pytest.mark.parametrize("change", ["strategy.kind=arpo", 'sandbox.url=["http://127.0.0.1:1"]'])
def test_a_recipe_that_the_tool_cannot_serve_is_refused(change: str):
    with pytest.raises(RecipeError, match="rlm"):
        build_tools(load_recipe(None, ['rollout.tools=["rlm"]', change]), SandboxPool(1))


def replace_reward(made: Trajectory, right: bool) -> Trajectory:
    return replace(made, reward=float(right))
