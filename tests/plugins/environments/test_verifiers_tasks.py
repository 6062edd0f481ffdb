"""Environments of verifiers, by its own package, as tasks: `make integration`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("verifiers", reason="verifiers, which `make integration` installs")

import verifiers as vf

if not hasattr(vf, "load_environment"):
    pytest.skip("verifiers below 0.4, which `make integration` installs", allow_module_level=True)

from datasets import Dataset
from rolling import played, recipe_of, tools_of

from retcon.build import build_tasks
from retcon.chat.families.hermes import render_call
from retcon.config.schema import Recipe
from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.tasks.kinds.verifiers import VerifiersEnvironment

pytestmark = pytest.mark.filterwarnings("default")  # the packages' own


def questions(count: int = 6) -> Dataset:
    return Dataset.from_list([{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(count)])


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: the first
        b: the second
    """
    if a < 0:
        raise ValueError("only what is positive")
    if a > 1000:
        raise ConnectionError("the adder is down")
    if a > 100:
        raise vf.ToolCallError("ends the rollout")
    return a + b


async def right(completion: Any, answer: str) -> float:
    return 1.0 if answer in completion[-1].content else 0.0


def calls(completion: Any, state: Any) -> float:
    """A part of the reward by the calls that were made, and that the state has steps."""
    made = sum(len(message.tool_calls or ()) for message in completion if message.role == "assistant")
    return float(made if len(state["trajectory"]) == made + 1 else -9)


def broken(completion: Any) -> float:
    raise KeyError("no judge")


def adding(extra: bool = False, evaluation: bool = False) -> Any:
    rubric = vf.RubricGroup([vf.Rubric([right]), vf.Rubric([calls], weights=[0.125])]) if extra else vf.Rubric([right])
    more = {"eval_dataset": questions(2)} if evaluation else {}
    return vf.ToolEnv(tools=[add], dataset=questions(), rubric=rubric, system_prompt="Add.", **more)


def ungradable() -> Any:
    return vf.SingleTurnEnv(dataset=questions(), rubric=vf.Rubric([right, broken]))


class Ledger(vf.StatefulToolEnv):
    """Keeps what was booked in the state, which its tool is handed; a failure leaves a trace there."""

    def __init__(self, **more: Any) -> None:
        super().__init__(dataset=questions(), rubric=vf.Rubric([self.booked]), **more)
        self.add_tool(self.book, args_to_skip=["books"])

    async def setup_state(self, state: Any) -> Any:
        state["books"] = []
        return state

    def update_tool_args(self, tool_name: str, tool_args: dict, messages: Any, state: Any, **_: Any) -> dict:
        return {**tool_args, "books": state["books"]}

    async def book(self, amount: int, books: list) -> str:
        """Books an amount.

        Args:
            amount: how much
            books: what was booked
        """
        books.append(amount)
        if amount < 0:
            raise ValueError("a debt")
        return str(books)

    def booked(self, state: Any, answer: str) -> float:
        return 1.0 if sum(state["books"]) == int(answer) and len(state["books"]) == 2 else 0.0


HELD: list[str] = []


class Halting(Ledger):
    """Its setup fails when it has opened something."""

    async def setup_state(self, state: Any) -> Any:
        HELD.append(state["trajectory_id"])
        raise OSError("no room")

    @vf.cleanup
    async def free(self, state: Any) -> None:
        HELD.append("freed " + state["trajectory_id"])


class Talking(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        return [{"role": "user", "content": "go on"}]


def talking() -> Any:
    return Talking(dataset=questions(), rubric=vf.Rubric([right]))


def grouped() -> Any:
    def best(completions: Any, answers: Any) -> list[float]:
        return [1.0 for _ in completions]

    return vf.SingleTurnEnv(dataset=questions(), rubric=vf.Rubric([best]))


class Python(vf.PythonEnv):
    """Without the request for a sandbox, which verifiers 0.3.1 makes for an older prime-sandboxes than it asks for."""

    def __init__(self) -> None:
        vf.StatefulToolEnv.__init__(self, dataset=questions(), rubric=vf.Rubric([right]))
        self.active_sandboxes: set[str] = set()
        self._teardown_handlers.clear()


def verifiers(environment: str, *keys: str, repair: str = "saar") -> Recipe:
    return recipe_of('task.kind="verifiers"', f'task.environment="{__name__}:{environment}"', *keys, repair=repair)


def added(a: int, b: int) -> str:
    return render_call("add", {"a": a, "b": b})


def test_a_tool_env_gives_its_rows_its_tools_and_its_reward() -> None:
    recipe = verifiers("adding", "task.arguments={extra=true, evaluation=true}")
    tasks = build_tasks(recipe)
    assert {(t.system, t.question, t.answer) for t in tasks.train(0)} == {
        ("Add.", f"What is {n} + {n}?", str(2 * n)) for n in range(2, 6)
    }  # two of them are held out: they are the environment's own for evaluation
    assert {t.question for t in tasks.evaluation(9, 0)} == {"What is 0 + 0?", "What is 1 + 1?"}
    made = played(recipe, (added(3, 3), "It is 6."))
    assert (made.reward, made.answer) == (1.125, "It is 6.")
    assert made.turns[0].observations[0].text == "6"
    assert played(recipe, ("It is 7.",)).reward == 0.0


def test_its_failed_calls_are_repaired_and_its_rubric_sees_the_clean_conversation() -> None:
    recipe = verifiers("adding", "task.arguments={extra=true}")
    made = played(recipe, (added(-3, 3), added(3, 3), "It is 6."))
    assert made.turns[0].repair
    assert (made.turns[0].repair.decision, made.raw_failures, made.failures) == ("shallow", 1, 0)
    assert made.turns[0].abandoned[0].observations[0].error_type == "ValueError"
    assert made.reward == 1.125
    raw = played(verifiers("adding", "task.arguments={extra=true}", repair="none"), (added(-3, 3), added(3, 3), "6"))
    assert raw.reward == 1.25


@pytest.mark.parametrize("amount", [500, 5000])
def test_what_ends_a_rollout_in_verifiers_ends_it_here_as_an_infrastructure_fault(amount: int) -> None:
    made = played(verifiers("adding"), (added(amount, 3), "It is 6."))
    assert (made.stop, made.reward) == ("infrastructure", None)


def test_a_stateful_env_goes_back_to_where_a_failed_call_began() -> None:
    replies = [render_call("book", {"amount": n}) for n in (2, -1, 4)]
    recipe = verifiers("Ledger")
    assert "books" not in str(tools_of(recipe)["book"].spec.parameters)
    made = played(recipe, (*replies, "It is booked."))
    assert [o.text for turn in made.turns for o in turn.observations] == ["[2]", "[2, 4]"]
    assert made.reward == 1.0
    raw = played(verifiers("Ledger", repair="none"), (*replies, "It is booked."))
    assert [o.text for turn in raw.turns for o in turn.observations] == ["[2]", "a debt", "[2, -1, 4]"]
    assert raw.reward == 0.0
    again = played(verifiers("Ledger", "task.rollback=replay"), (*replies, "It is booked."))
    assert again.reward == 1.0


def test_what_a_setup_had_opened_before_it_failed_is_closed() -> None:
    HELD.clear()
    made = played(verifiers("Halting"), (render_call("book", {"amount": 2}), "It is booked."))
    assert made.stop == "infrastructure"
    assert [f"freed {HELD[0]}"] == HELD[1:]


class Broken(Halting):
    """What it opened cannot be closed, either."""

    @vf.cleanup
    async def free(self, state: Any) -> None:
        raise KeyError("books")


@pytest.mark.parametrize("environment", ["Halting", "Broken"])
def test_why_a_setup_failed_is_reported_whatever_comes_of_closing_it(environment: str) -> None:
    adapter = VerifiersEnvironment(f"{__name__}:{environment}", {}, ())
    task = adapter.tasks("train")[0]
    with pytest.raises(InfrastructureFault, match="its setup raised OSError: no room"):
        asyncio.run(adapter.begin(task.id))


def test_a_rubric_that_raises_is_no_zero() -> None:
    made = played(verifiers("ungradable"), ("It is 6.",))
    assert (made.stop, made.reward) == ("infrastructure", None)


def test_a_python_env_leaves_its_python_to_retcons_sandbox() -> None:
    recipe = verifiers("Python", "rollout.tools=python")
    assert list(tools_of(recipe)) == ["python"]
    assert played(verifiers("Python"), ("It is 6.",)).reward == 1.0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ("talking", r"Talking answers the model itself .* SingleTurnEnv, ToolEnv, StatefulToolEnv and PythonEnv"),
        ("grouped", "compares the rollouts of a group"),
        ("questions", "is a Dataset, and no verifiers Environment"),
        ("nothing", "cannot be loaded"),
    ],
)
def test_environments_that_cannot_be_had_are_refused_by_name(environment: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        build_tasks(verifiers(environment))


def test_an_id_that_is_not_installed_is_refused() -> None:
    with pytest.raises(RecipeError, match="'no-such-env' cannot be loaded"):
        build_tasks(recipe_of('task.kind="verifiers"', 'task.environment="no-such-env"'))
