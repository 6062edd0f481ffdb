"""Demonstrations by rollouts: who writes with what room, which tries count, and why others do not."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from retcon import build
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Status, Trajectory
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.lengths import count_prompt_ids
from retcon.tasks.types import Lesson, Task
from retcon.tools.scripted import ScriptedTool
from retcon.train.demos.annotated import FAILED, OTHER, AnnotatedSource, Style
from retcon.train.demos.remote import RemoteTeacher
from retcon.train.demos.rolling import TOO_LONG, WRONG, Roller, Teacher, split_rejected, try_tasks
from retcon.train.demos.types import LOST, DemoSetup
from teaching import annotated, teacher_at

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER)
NOBODY = Teacher({}, CHAT)
LIMITS = RolloutLimits(4000, 4)


@dataclass(frozen=True)
class Set:
    """A task set of these tasks, right where the last turn says the answer. seeds: that were asked for."""

    tasks: Sequence[Task] = ()
    name: str = "given"
    system: str | None = None
    seeds: list[int] = field(default_factory=list)

    def train(self, seed: int) -> Iterator[Task]:
        self.seeds.append(seed)
        return iter(self.tasks)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return []

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=1.0 if task.answer in trajectory.turns[-1].text else -1.0)


class Lessons(Set):
    """With a teacher, who says the answer."""

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        return ((task, lambda *_: ("1", None)) for task in self.train(seed))


@pytest.fixture(autouse=True)
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run in one here."""

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[object]:
        yield object()

    monkeypatch.setattr(build, "open_sandbox", opened)


def answer(code: str) -> tuple[str, Status, str | None]:
    """Of programs without a sandbox: some fail, some are lost, others print what they compute."""
    if "7 * 8" in code:
        return "no", "error", "ValueError"
    if "9 * 8" in code:
        return "gone", "infrastructure", None
    values: dict[str, Any] = {}
    exec("\n".join(line for line in code.splitlines() if not line.startswith("print")), values)
    return str(max((name, value) for name, value in values.items() if name.startswith("x"))[1]), "ok", None


def rolling(engine: Any = NOBODY, limits: RolloutLimits = LIMITS, seed: int = 0) -> Roller:
    context = RolloutContext(engine, CHAT, {"python": ScriptedTool(answer)}, limits, SamplingParams(), model="who")
    return Roller(context, Set(), seed)


Rewards = Mapping[str, Sequence[float | None]]


def tries_of(rewards: Rewards, keep: str, tries: int) -> tuple[list[tuple[int, str]], list[tuple[str, str | None]]]:
    """rewards: of the attempts at each task. Which tasks each attempt had, and what counts of each."""
    asked: list[tuple[int, str]] = []

    async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
        asked.append((number, "".join(task.id for task in tasks)))
        given = [(task.id, rewards[task.id][number]) for task in tasks]
        return [
            Trajectory(f"{name}{number}", name, (), (), reward=reward, stop="answer" if reward else "infrastructure")
            for name, reward in given
        ]

    found = asyncio.run(try_tasks([Task(name, "", "") for name in rewards], attempt, keep=keep, tries=tries))
    return asked, [(one.id, why) for one, why in found]


def test_until_one_is_right_an_attempt_has_the_tasks_that_none_before_solved() -> None:
    rewards: Rewards = {"a": [1.0], "b": [-1.0, 1.0], "c": [-1.0, None, -1.0], "d": [None, -1.0, None]}
    asked, counts = tries_of(rewards, "right", 3)
    assert asked == [(0, "abcd"), (1, "bcd"), (2, "cd")]
    assert counts == [("a0", None), ("b1", None), ("c2", WRONG), ("d2", LOST)]
    assert tries_of({"a": [1.0], "b": [1.0]}, "right", 3)[0] == [(0, "ab")]


def test_where_wrong_ones_are_kept_there_is_one_attempt_of_which_none_counts_but_what_was_lost() -> None:
    asked, counts = tries_of({"a": [1.0], "b": [-1.0], "c": [None]}, "all", 3)
    assert asked == [(0, "abc")]
    assert counts == [("a0", None), ("b0", None), ("c0", LOST)]


def test_what_is_not_kept_is_counted_by_why() -> None:
    made = [(Trajectory(name, name, (), ()), why) for name, why in (("a", None), ("b", WRONG), ("c", WRONG))]
    assert split_rejected(made) == ((made[0][0],), Counter({WRONG: 2}))


KEYS = ("rollout.temperature=0.5", "rollout.max_turns=7", "rollout.max_tokens=900", "sft.max_turns=3", "run.seed=5",
        "sandbox.workers=1", "sft.demonstrations=3")  # fmt: skip


def setup_of(tasks: Set, *keys: str) -> DemoSetup:
    return DemoSetup(load_recipe(None, [*KEYS, *keys]), CHAT, lambda: tasks)


def opened_source(setup: DemoSetup) -> Any:
    async def opened() -> Any:
        async with setup.recipe.demos.open(setup) as source:
            return source

    return asyncio.run(opened())


ANNOTATED = Set([Task("0", row["question"], "1", meta={"reference": row["answer"]}) for row in annotated(1)])


@pytest.mark.parametrize(
    ("shares", "turns"),
    [((), 2), (("demos.failed_share=0",), 2), (("demos.failed_share=0.5",), 3),
     (("demos.failed_share=0.5", "demos.failed_twice_share=0.5"), 4)],
)  # fmt: skip
def test_annotated_solutions_need_the_turns_that_they_can_come_to(shares: tuple[str, ...], turns: int) -> None:
    kind = ("demos.kind=annotated", *shares)
    source = opened_source(setup_of(ANNOTATED, *kind, f"sft.max_turns={turns}"))
    assert [task.id for task in source.tasks] == ["0"]
    with pytest.raises(RecipeError, match=rf"sft\.max_turns = {turns - 1}: these .* have up to {turns} turns"):
        opened_source(setup_of(ANNOTATED, *kind, f"sft.max_turns={turns - 1}"))


def test_annotated_solutions_are_of_a_stream_of_the_runs_seed_and_say_what_wrote_them() -> None:
    tasks = Set(ANNOTATED.tasks)
    source = opened_source(setup_of(tasks, "demos.kind=annotated"))
    assert tasks.seeds == [derive("annotated", 5)]
    assert (source.seed, source.roller.context.model) == (5, "annotated")
    with pytest.raises(RecipeError, match=r"demos\.kind = 'annotated' calls the tool python, which is missing"):
        opened_source(setup_of(tasks, "demos.kind=annotated", "rollout.tools=[]"))


def test_a_teachers_problems_that_leave_no_room_are_refused_before_it_begins() -> None:
    tasks = Lessons([Task(str(n), "go" * (n == 2), "1") for n in range(4)])
    length = count_prompt_ids(CHAT, tasks.tasks[0])
    with pytest.raises(RecipeError, match=r"the prompts of 1 of 3 training problems leave no room .*, of 2, has"):
        opened_source(setup_of(tasks, "demos.kind=teacher", f"rollout.max_tokens={length + 1}"))
    assert tasks.seeds == [5]
    source = opened_source(
        setup_of(tasks, "demos.kind=teacher", f"rollout.max_tokens={length + 1}", "sft.demonstrations=2")
    )
    assert source.roller.context.model == "teacher"


def test_candidates_are_counted_by_why_they_are_not_kept() -> None:
    """Two of each, in one stretch with one that is right."""
    sums = {"right": ("5*6", "30", "30"), OTHER: ("5*6", "30", "31"), FAILED: ("7*8", "56", "56"),
            LOST: ("9*8", "72", "72")}  # fmt: skip
    tasks = [
        Task(f"{why}/{n}", f"What is {done}?", wanted, meta={"reference": f"It is {done} = <<{done}={value}>>{value}."})
        for why, (done, value, wanted) in sums.items()
        for n in range(1 if why == "right" else 2)
    ]
    tasks += [replace(tasks[0], id=f"long/{n}", question=f"What is 5*6? {'Now. ' * 900}") for n in range(2)]
    tasks += [Task(f"bare/{n}", "What is 5*6?", "30") for n in range(2)]
    source = AnnotatedSource(tasks, rolling(), Style("comments", "It is {answer}.", "any", 0.0), 0)
    made = asyncio.run(source.make(0, len(tasks), 0))
    assert (made.seen, [one.id for one in made.kept]) == (11, ["right/0/0/0"])
    assert made.rejected == Counter({OTHER: 2, FAILED: 2, LOST: 2, TOO_LONG: 2, "no annotated step": 2})


def test_a_server_is_asked_for_a_word_before_any_task_is_drawn() -> None:
    tasks = Set()
    with teacher_at(lambda messages: "Yes.") as server:
        given = (f"demos.url={server.url}", "demos.model=big", "demos.tries=3")
        source = opened_source(setup_of(tasks, "demos.kind=openai", *given))
    assert (source.tries, source.roller.context.model, tasks.seeds) == (3, "big", [])
    ((_, body),) = server.asked
    asked = {"model": "big", "messages": [{"role": "user", "content": "Say yes."}], "max_tokens": 16}
    assert body == {**asked, "temperature": 0.5, "top_p": 1, "seed": 0}, "as for all that comes after it"


class Speaking:
    """In the place of a model behind a URL: says this, and notes how it was asked."""

    def __init__(self, said: str) -> None:
        self.said = said
        self.asked: list[dict[str, Any]] = []

    async def reply(self, messages: Sequence[Mapping[str, str]], **how: Any) -> tuple[str, bool]:
        self.asked.append({"messages": [dict(message) for message in messages], **how})
        return self.said, True


def test_what_a_model_behind_a_url_wrote_ends_with_its_room_and_cannot_be_scored() -> None:
    model: Any = Speaking("It is 4.")
    teacher = RemoteTeacher(model, CHAT, "Compute.", {"t/0/0": Task("t", "go", "1")})
    made = asyncio.run(teacher.generate("t/0/0", [1, 2], SamplingParams(max_tokens=3)))
    assert (made.ids, made.stop) == (tuple(TOKENIZER.encode("It ")), "length")
    with pytest.raises(EngineError, match="it cannot be scored"):
        asyncio.run(teacher.score("t/0/0", [1, 2], 1))
    for _ in range(2):
        asyncio.run(teacher.release("t/0/0"))
    with pytest.raises(KeyError):
        asyncio.run(teacher.generate("t/0/0", [1, 2], SamplingParams()))


def test_a_teacher_that_wrote_no_program_is_asked_again_with_its_words_alone() -> None:
    model, task = Speaking("It is 4."), Task("t", "go", "1")
    given: Any = model
    teacher = RemoteTeacher(given, CHAT, "Compute.", {"t/0/0": task})
    ids = TOKENIZER.encode("<|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant\n", special=True)
    for _ in range(2):
        asyncio.run(teacher.generate("t/0/0", ids, SamplingParams()))
    assert model.asked[1]["messages"][2]["content"] == "It is 4."
