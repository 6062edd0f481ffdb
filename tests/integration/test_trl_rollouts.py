"""Rollouts for TRL's trainer, without TRL: what happens to those that an infrastructure fault ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from playing import LIMITS, TASK, call, play
from retcon.build import build_chat
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import InfrastructureFault, RecipeError, RecordError, TaskWarning
from retcon.core.types import Trajectory, history_ids, to_sample, token_count
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.models.placing import start_model
from retcon.plugins.trl import ROUNDS, Rollouts, _completions, _question, prompt_of
from retcon.rollout.context import RolloutContext
from retcon.rollout.lengths import count_prompt_ids
from retcon.store.fingerprint import fingerprint
from retcon.store.pass_rates import PassRate, PassRateFile
from retcon.tasks.registry import Taught, training_prompts
from retcon.tasks.types import Task
from retcon.tools.scripted import Answer, ScriptedTool
from retcon.train.objective.shaping import in_failed_turns
from retcon.train.rollouts import TrainingRollouts
from training import Ones, make_base

pytestmark = pytest.mark.torch


class Graded(Ones):
    """Right are those whose index is among `right`, all where there is none; those among `void` have no answer."""

    def __init__(self, right: Collection[int] | None = None, void: Collection[int] = ()) -> None:
        self.right, self.void = right, void

    def grade(self, task: Any, trajectory: Trajectory) -> Trajectory:
        number = int(trajectory.id.rpartition("/")[2])
        right = self.right is None or number in self.right
        return replace(trajectory, reward=1.0 if right else -1.0, answer=None if number in self.void else "1")


def trainer_of(generations: int, step: int = 0) -> Any:
    """What is asked of TRL's, of one process."""
    return SimpleNamespace(
        num_generations=generations, num_generations_eval=generations,
        state=SimpleNamespace(global_step=step), accelerator=SimpleNamespace(process_index=0),
    )  # fmt: skip


def group_of(
    count: int, *, lost: int, base: Path, recipe: str = "quickstart/baseline", keys: Sequence[str] = (),
    right: Collection[int] | None = None, void: Collection[int] = (),
) -> list[Trajectory]:  # fmt: skip
    """A group of rollouts of one call each, of which the first `lost` calls meet a fault of the tool."""
    calls = iter(range(1000))

    def answer(_code: str) -> Answer:
        return ("gone", "infrastructure", None) if next(calls) < lost else ("1", "ok", None)

    def reply(_id: str, prompt: str, _n: int) -> str:
        return "It is 1." if "<|im_start|>tool" in prompt else call("print(1)")

    tokenizer = ByteTokenizer()
    context = RolloutContext(
        ScriptedEngine(tokenizer, reply), Chat(tokenizer), {"python": ScriptedTool(answer)}, LIMITS
    )
    with Rollouts(recipe, keys, model=base) as rollouts:
        rollouts._know([TASK])
        made: Any = TrainingRollouts(rollouts.recipe, context, Graded(right, void), context.engine, None)
        return asyncio.run(rollouts._group(TASK, count, made, 0, 7, True))


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_rollouts_that_a_fault_took_are_made_again_one_by_one_too(lost: int, tmp_path: Path) -> None:
    made = group_of(3, lost=lost, base=make_base(tmp_path / "base", positions=1024))
    assert [t.reward for t in made] == [1.0, 1.0, 1.0]
    assert all(t.stop == "answer" for t in made)


def test_a_group_below_the_minima_of_its_selection_is_refused(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    with Rollouts("mini/rstar2", ["select.min_positive=2", "select.min_negative=3"], model=base) as rollouts:
        rollouts._know([TASK])
        batch = [prompt_of(TASK)] * 8
        assert [count for _, count, _ in rollouts._groups(batch, 8, 0, True)] == [8]
        assert [count for _, count, _ in rollouts._groups(batch, 4, 0, False)] == [4, 4], "evaluation selects nothing"
        for size, start in ((4, 0), (8, 4)):  # of 8, two processes may have 4 each
            with pytest.raises(RecipeError, match=r"min_positive 2 \+ min_negative 3 exceed .* 4.*num_generations"):
                rollouts._groups(batch, size, start, True)


def test_tasks_of_one_question_are_distinguished(tmp_path: Path) -> None:
    """Such as those of an environment, or after other worked examples."""
    ada, bob = (
        Task(f"who/{name}", "Who?", name, before=(("user", "Hi."), ("assistant", name))) for name in ("Ada", "Bob")
    )
    base = make_base(tmp_path / "base", positions=1024)
    with Rollouts("quickstart/baseline", model=base) as rollouts:
        rollouts._know([ada, bob, TASK])
        assert [rollouts._task(*_question(prompt_of(task))) for task in (ada, bob, TASK)] == [ada, bob, TASK]
        assert rollouts._task(*_question(TASK.question)) == TASK
        with pytest.raises(RecipeError, match="2 tasks of numbers have the question of a prompt that names none of th"):
            rollouts._task(*_question("Who?"))
        with pytest.raises(RecipeError, match="one message of the user"):
            _question([{"role": "system", "content": "x"}, *prompt_of(ada)])


def test_a_recipe_in_stages_is_refused() -> None:
    with pytest.raises(RecipeError, match="mini/stages/rstar2 has stages, and TRL's trainer has none"):
        Rollouts("mini/stages/rstar2")


def test_where_faults_do_not_end_nothing_is_learnt(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureFault, match=f"{ROUNDS} times over"):
        group_of(2, lost=1000, base=make_base(tmp_path / "base", positions=1024))


@pytest.mark.parametrize(
    ("overrides", "purified"),
    [
        (["repair.probability=0.0"], [0, 0]),
        (["repair.probability=1.0"], [4, 4]),
        (["repair.probability_schedule=[[1, 1.0], [2, 0.0]]"], [4, 0]),
        (["repair.probability=1.0", "repair.probes=1", "repair.least_probability=1.0"], [3, 3]),
    ],
)
def test_a_share_of_the_rollouts_is_purified_as_in_training(
    overrides: list[str], purified: list[int], tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    model: Any = start_model(base, 0)
    short = ["rollout.max_tokens=40", "rollout.lookahead_tokens=8", "sandbox.workers=1", "compute.device=cpu"]
    with Rollouts("quickstart/saar", [*short, *overrides], model=base) as rollouts:
        for step, count in enumerate(purified):
            made = rollouts._wait(rollouts._rolled(["go"] * 4, model, trainer_of(4, step), True))
            assert sum(t.provenance.purified for t in made) == count


@pytest.mark.parametrize(
    ("key", "value"),
    [("rl.blame", "0.5"), ("rl.dpo_beta", "15"), ("rl.contrast", "0.5"), ("rl.shared_advantage", "mean")],
)
def test_a_loss_that_trl_does_not_have_is_refused(key: str, value: str) -> None:
    with pytest.raises(RecipeError, match=f"{key} = .*TRL's loss has no such term"):
        Rollouts("quickstart/saar", [f"{key}={value}"])


@pytest.mark.parametrize(("key", "value"), [("select.dynamic", "true"), ("lora.rank", "4")])
def test_what_its_trainer_cannot_carry_is_refused_by_key(key: str, value: str) -> None:
    with pytest.raises(RecipeError, match=rf"^{key} = {value}: .*set {key}="):
        Rollouts("quickstart/saar", [f"{key}={value}"])


FAILED = play([call("fail()"), call("print(y)"), "42"], {"fail()": "error"}).trajectory
VOID = play([call("print(y)"), "nothing"], {}).trajectory
LONG = replace(FAILED, stop="length")


@pytest.mark.parametrize(
    ("overrides", "made", "masked"),
    [
        ([], FAILED, "none"), (["rl.failed_calls=mask"], FAILED, "failed"),
        (["rl.void_turns=mask"], replace(FAILED, answer="42"), "none"), (["rl.void_turns=mask"], VOID, "all"),
        (["rl.truncated=mask"], FAILED, "none"), (["rl.truncated=mask"], LONG, "all"),
    ],
)  # fmt: skip
def test_what_the_recipe_masks_is_not_in_the_mask_while_it_trains(
    overrides: list[str], made: Trajectory, masked: str
) -> None:
    recipe = load_recipe("quickstart/baseline", overrides)
    sample, start = to_sample(made), token_count(made.prompt)
    failed = in_failed_turns(made) if masked == "failed" else [masked == "all"] * len(sample.mask)
    expected = [int(m and not f) for m, f in zip(sample.mask, failed, strict=True)][start:]
    assert _completions([made], recipe, True)["env_mask"] == [expected]
    assert _completions([made], recipe, False)["env_mask"] == [list(sample.mask[start:])]


def test_the_reward_is_shaped_while_it_trains() -> None:
    length = len(history_ids(FAILED))
    recipe = load_recipe("quickstart/baseline", [f"rollout.max_tokens={length}", "rl.overlong_buffer=20"])
    made = [replace(FAILED, reward=1.0), FAILED]
    assert _completions(made, recipe, True)["rollout_reward"] == [0.0, None]
    assert _completions(made, recipe, False)["rollout_reward"] == [1.0, None]


def test_void_turns_of_prompts_that_nobody_grades_are_not_known(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    said = r"rl\.void_turns = 'mask' needs the grader's reading of the answer"
    masking = Rollouts("quickstart/baseline", ["rl.void_turns=mask"], model=base)
    with masking as rollouts, pytest.raises(RecipeError, match=said):
        rollouts._task("Who?", None)


class Watched(Rollouts):
    """Keeps the strategies that its groups were made with, and whether the model trained meanwhile."""

    async def _group(self, *about: Any) -> list[Trajectory]:
        self.modes = [*getattr(self, "modes", []), about[2].weights.model.training]
        self.strategies = [*getattr(self, "strategies", []), about[2].context.strategy]
        return await super()._group(*about)


def test_rollouts_branch_in_training_as_the_recipe_says(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    model: Any = start_model(base, 0)
    short = ["rollout.max_tokens=40", "rollout.max_turns=2", "sandbox.workers=1", "compute.device=cpu"]
    with Watched("mini/arpo", [*short, "strategy.initial=2"], model=base) as rollouts:
        for training in (True, False):
            made = rollouts._wait(rollouts._rolled(["go"] * 3, model, trainer_of(3), training))
            assert len(made) == 3
    assert rollouts.strategies == [rollouts.recipe.strategy, None]
    assert rollouts.recipe.strategy.kind == "arpo"


@pytest.mark.parametrize("recipe", ["quickstart/saar", "mini/arpo", "mini/rstar2"])
def test_a_task_that_stands_twice_in_a_batch_has_two_groups(recipe: str, tmp_path: Path) -> None:
    """Apart or side by side; of either, the rollouts are its own."""
    base = make_base(tmp_path / "base", positions=1024)
    model: Any = start_model(base, 0)
    short = ["rollout.max_tokens=40", "rollout.max_turns=2", "sandbox.workers=1", "compute.device=cpu"]
    branching = ["strategy.initial=1"] if recipe == "mini/arpo" else []
    with Rollouts(recipe, [*short, "rl.contrast=0", *branching], model=base) as rollouts:
        one, other = (prompt_of(task) for task in islice(training_prompts(rollouts._tasks, 1), 2))
        rollouts._know(list(islice(training_prompts(rollouts._tasks, 1), 2)))
        batch = [*[one] * 2, *[other] * 4, *[one] * 2]
        made = rollouts._wait(rollouts._rolled(batch, model, trainer_of(2), True))
    assert [t.task for t in made] == [prompt[0]["task"] for prompt in batch]
    assert len({t.id for t in made}) == len(batch)
    assert history_ids(made[0]) not in [history_ids(t) for t in made[6:]]


def test_while_rollouts_are_made_the_model_does_not_train_and_then_it_does_again(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    model: Any = start_model(base, 0).train()
    short = ["rollout.max_tokens=40", "rollout.max_turns=2", "sandbox.workers=1", "compute.device=cpu"]
    with Watched("quickstart/saar", short, model=base) as rollouts:
        trainer = trainer_of(2)
        trainer.args = SimpleNamespace(temperature=rollouts.recipe.rollout.temperature, use_vllm=False)
        trainer.model, trainer.accelerator.unwrap_model = model, lambda wrapped: wrapped
        for training in (True, False):
            model.train(training)
            found = rollouts(["go"] * 2, trainer)
            assert model.training is training
            assert [len(found[key]) for key in ("completion_ids", "env_mask", "logprobs")] == [2, 2, 2]
        assert rollouts.modes == [False, False]
        model.peft_config = {}
        with pytest.raises(RecipeError, match="a model with adapters: the rollouts would need its merged weights"):
            rollouts(["go"] * 2, trainer)


def plain_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the package `datasets`: a data set is the list of its rows."""
    stands_in = SimpleNamespace(Dataset=SimpleNamespace(from_list=lambda rows: rows))
    monkeypatch.setitem(sys.modules, "datasets", stands_in)


def test_the_data_set_is_of_what_a_run_draws_and_no_demonstration_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_data_sets(monkeypatch)
    with Rollouts("quickstart/baseline", model=make_base(tmp_path / "base", positions=1024)) as rollouts:
        seed, tasks = rollouts.recipe.run.seed, rollouts._tasks
        rows = rollouts.dataset(20)
    assert rows == [{"prompt": prompt_of(task)} for task in islice(training_prompts(tasks, seed), 20)]
    assert isinstance(tasks, Taught)
    shown = {task.id for task, _ in islice(tasks.lessons(seed), 20)}
    assert not shown & {row["prompt"][0]["task"] for row in rows}


def test_the_data_set_holds_the_tasks_within_the_bounds_of_pass_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make_base(tmp_path / "base", positions=1024)
    plain_data_sets(monkeypatch)
    with Rollouts("quickstart/baseline", model=base) as rollouts:
        tasks = list(islice(training_prompts(rollouts._tasks, rollouts.recipe.run.seed), 6))
    file, model = tmp_path / "rates.jsonl", fingerprint(base)
    with PassRateFile(file) as rates:
        for task, passed in zip(tasks, (0, 4, 8, 2, 8, 6), strict=True):
            rates.add(PassRate(task.id, model, passed, 8))
    with Rollouts("quickstart/baseline", [f"select.pass_rates={file}"], model=base) as rollouts:
        within = [tasks[n] for n in (1, 3, 5)]
        assert rollouts.dataset(3) == [{"prompt": prompt_of(task)} for task in within]
        with pytest.raises(RecipeError, match=rf"select\.pass_rates = {file}: task .* has no pass rate"):
            rollouts.dataset(4)
    with pytest.raises(RecordError, match=r"missing\.jsonl does not exist; `retcon difficulty` makes one"):
        Rollouts("quickstart/baseline", [f"select.pass_rates={tmp_path / 'missing.jsonl'}"], model=base)


def test_a_prompt_that_leaves_no_room_is_in_no_data_set_and_refused_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL could make no ids of a completion without any."""
    base = make_base(tmp_path / "base", positions=1024)
    plain_data_sets(monkeypatch)
    with Rollouts("quickstart/baseline", model=base) as rollouts:
        chat = build_chat(rollouts.recipe, base, rollouts._tasks)
        tasks = list(islice(training_prompts(rollouts._tasks, rollouts.recipe.run.seed), 20))
        longest = max(
            count_prompt_ids(chat, task) for task in rollouts._tasks.evaluation(20, rollouts.recipe.evaluate.seed)
        )
        assert len(rollouts.evaluation_dataset(20)) == 20
    lengths = [count_prompt_ids(chat, task) for task in tasks]
    room = sorted(lengths)[10]
    with Rollouts("quickstart/baseline", [f"rollout.max_tokens={room}"], model=base) as rollouts:
        fit = [task for task, length in zip(tasks, lengths, strict=True) if length < room]
        looked = tasks.index(fit[-1]) + 1
        with pytest.warns(TaskWarning, match=f"prompts of {looked - len(fit)} of the first {looked} tasks leave no"):
            assert rollouts.dataset(len(fit)) == [{"prompt": prompt_of(task)} for task in fit]
    with (
        Rollouts("quickstart/baseline", [f"rollout.max_tokens={longest}"], model=base) as rollouts,
        pytest.raises(RecipeError, match=rf"of 20 problems leave no room for an answer; .* has {longest} tokens"),
    ):
        rollouts.evaluation_dataset(20)
    made = replace(FAILED, task="long", turns=())
    recipe = load_recipe("quickstart/baseline", ["rollout.max_tokens=8"])
    with pytest.raises(RecipeError, match=r"rollout\.max_tokens = 8: the prompt of long has \d+ tokens and leaves no"):
        _completions([made], recipe, True)
