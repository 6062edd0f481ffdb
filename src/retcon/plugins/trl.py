"""Retcon's rollouts in TRL's GRPOTrainer: SAAR, GRPO-RoC and the sandbox.

TRL (1.16) asks a `rollout_func` for completions. It gets whole rollouts by the recipe's engine with the weights in
training: programs run, failed calls repaired, observations masked. Loss and optimiser stay TRL's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from retcon.build import build_chat, build_limits, build_step_context, build_strategy, build_tasks, resolve_lengths
from retcon.chat.chat import Chat
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, RolloutSection
from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import InfrastructureFault, MissingExtra, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Trajectory, to_sample, token_count
from retcon.models.locating import locate
from retcon.plugins.losses import check_loss_supported
from retcon.rollout.group import rollout_group
from retcon.rollout.lengths import check_lengths, count_prompt_ids, drop_long_prompts, warn_of_long_prompts
from retcon.store.fingerprint import fingerprint
from retcon.tasks.registry import training_prompts
from retcon.tasks.types import Task
from retcon.train.objective.shaping import comparable, is_masked, shaped_rewards
from retcon.train.prompts import PromptStream, check_rate_bounds
from retcon.train.rollouts import EngineWeights, TrainingRollouts, open_rollouts
from retcon.train.update import learnt

if TYPE_CHECKING:
    import datasets

OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""TRL's defaults of what [rollout] has, too; a None is one."""
UNKNOWN: Mapping[str, object] = {"repetition_penalty": 1.0, "generation_kwargs": {}}
"""TRL's defaults of what the rollouts do not have."""


def check_same_sampling(rollout: RolloutSection, args: Any) -> None:
    """Raise RecipeError where GRPOConfig (`args`) contradicts the recipe's sampling.

    TRL's loss divides logits by its own temperature. The log-probs that it is given are of temperature 1, which it
    compares with its own only for importance weights of vLLM and in its off-policy mask.
    """
    if args.temperature != rollout.temperature:
        raise RecipeError(
            f"GRPOConfig's temperature = {args.temperature} goes into TRL's loss, and the rollouts are sampled with "
            f"rollout.temperature = {rollout.temperature}: set both alike"
        )
    for key, off in OFF.items():
        if (asked := getattr(args, key, None) or off) not in (off, own := getattr(rollout, key)):
            raise RecipeError(
                f"GRPOConfig's {key} = {asked}, but the rollouts are sampled with rollout.{key} = {own}: set both alike"
            )
    for key, nothing in UNKNOWN.items():
        if (asked := getattr(args, key, None) or nothing) != nothing:
            raise RecipeError(f"GRPOConfig's {key} = {asked}: the recipe samples without it; leave it out")
    compares = getattr(args, "off_policy_mask_threshold", None) is not None or (
        args.use_vllm and args.vllm_importance_sampling_correction
    )
    if compares and rollout.temperature != 1:
        raise RecipeError(
            f"rollout.temperature = {rollout.temperature}: log-probs of the rollouts are of temperature 1, and TRL "
            "would compare them with others; leave out off_policy_mask_threshold and use_vllm, or set both "
            "temperatures to 1"
        )


def check_turn_ends(chat: Chat, trainer: Any) -> None:
    """Raise RecipeError where TRL would mask all completions as truncated."""
    end, known = chat.stop_ids[0], (*trainer.eos_token_ids, trainer.processing_class.pad_token_id)
    if end not in known:
        raise RecipeError(
            f"GRPOConfig's mask_truncated_completions = True: turns end with {chat.family.ends[0]!r}, and TRL takes "
            "turns without the model's own end of text as truncated, so all of them: leave it out, or set "
            "rl.truncated=mask in its place"
        )


T = TypeVar("T")
ROUNDS = 4
"""Times that rollouts are made at most until infrastructure faults have left as many as TRL asked for."""
TASK = "task"
"""The key of a prompt's message that names its task: several may have one question."""
Prompt = str | Sequence[Mapping[str, Any]]
Group = tuple[Task, int, int]
"""A task, its rollouts, and how many are made of the same task in groups before it in a call."""


class Rollouts:
    """Retcon as TRL's `rollout_func`, with its data set and reward.

        with Rollouts("quickstart/saar", model="runs/start") as rollouts:
            trainer = GRPOTrainer(
                model="runs/start/final", args=GRPOConfig(…), train_dataset=rollouts.dataset(1000),
                reward_funcs=rollouts.reward, rollout_func=rollouts,
            )
            trainer.train()

    recipe, overrides: as those of `retcon train`; [task], [rollout], [strategy], [sandbox], [repair] and [select]
    count, and of [rl] what masks rollouts and turns or shapes rewards: algorithm, group and optimiser are TRL's. Rules
    of credit that its loss does not have are refused, as are dynamic sampling and adapters.
    model: whose tokenizer and chat template the rollouts use; it must be that of the trainer's model. A prompt is a
    text, or one message of the user. Of a prompt that is a question of the task set, the rollouts are graded
    (`reward`); other prompts are for reward functions of your own, and cannot be selected among (`[select] kind =
    "none"`).

    Completions hold everything after the prompt. Their `env_mask` is 1 on what the model wrote, repairs among it, less
    what [rl] masks, and their log-probs are those under the purified history, by the weights that sampled, 0 on
    observations. While TRL evaluates, nothing is repaired, selected, masked or shaped. Sandbox and engine start with
    the first call and end with the `with` block. Raises RecipeError, MissingExtra, and what `retcon train` raises for
    recipe, model, tasks and pass rates.
    """

    def __init__(self, recipe: str | Path, overrides: Sequence[str] = (), *, model: str | Path = "") -> None:
        settings = load_recipe(str(recipe), overrides)
        settings.engine.check_training(settings)
        if settings.stages:
            raise RecipeError(f"{recipe} has stages, and TRL's trainer has none: train with a recipe of one of them")
        _check_compatible(settings)
        settings.task.check_rollouts(settings)
        settings.task.check_branching(settings)
        self._folder = locate(model or settings.model.path)
        self._tasks = build_tasks(settings, self._folder)
        self.recipe, _ = resolve_lengths(settings, self._folder, self._tasks)
        if self.recipe.select.pass_rates:
            self._within(0)  # a file that cannot serve says so
        self._known: dict[str, Task] = {}
        self._asking: dict[str, dict[str, Task]] = {}  # by question, then by id
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retcon-trl", daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._open: tuple[object, TrainingRollouts] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def dataset(self, count: int) -> datasets.Dataset:
        """Return the first `count` prompts of `retcon train`, for `train_dataset`. Those that leave no room to answer
        are left out, with a TaskWarning; with `select.pass_rates` only those within the bounds, repeated as it draws
        them. Raises MissingExtra without datasets, RecipeError as `PromptStream`."""
        if self.recipe.select.pass_rates:
            return self._dataset(self._within(count))
        chat, limit = build_chat(self.recipe, self._folder, self._tasks), self.recipe.rollout.max_tokens
        looked: list[Task] = []

        def drawn() -> Iterator[Task]:
            for task in training_prompts(self._tasks, self.recipe.run.seed):
                looked.append(task)
                yield task

        tasks = list(islice(drop_long_prompts(drawn(), chat, limit), count))
        kept = {task.id for task in tasks}
        warn_of_long_prompts(
            [count_prompt_ids(chat, task) for task in looked if task.id not in kept], len(looked), limit
        )
        return self._dataset(tasks)

    def _within(self, count: int) -> list[Task]:
        rl = self.recipe.rl.model_copy(update={"prompts": 1})  # steps and their prompts are TRL's
        recipe = self.recipe.model_copy(update={"rl": rl})
        chat = build_chat(recipe, self._folder, self._tasks)
        stream = PromptStream(recipe, self._tasks, chat=chat, model=fingerprint(self._folder), steps=count)
        return list(islice(stream.after(0), count))

    def evaluation_dataset(self, count: int) -> datasets.Dataset:
        """Return `count` prompts that no training sees, for `eval_dataset`. Raises MissingExtra without datasets,
        RecipeError where some leave no room to answer."""
        problems = self._tasks.evaluation(count, self.recipe.evaluate.seed)
        chat = build_chat(self.recipe, self._folder, self._tasks)
        check_lengths(problems, chat, self.recipe.rollout.max_tokens, "problems")
        return self._dataset(problems)

    def _dataset(self, tasks: Sequence[Task]) -> datasets.Dataset:
        try:
            import datasets
        except ModuleNotFoundError as missing:
            raise MissingExtra("TRL's trainer takes a datasets.Dataset: pip install trl") from missing
        self._know(tasks)
        return datasets.Dataset.from_list([{"prompt": prompt_of(task)} for task in tasks])

    def _know(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._known[task.id] = self._asking.setdefault(task.question, {})[task.id] = task

    def reward(self, prompts: object = None, completions: object = None, *, rollout_reward: Any, **_: object) -> Any:
        """Return the grader's rewards; None where the prompt is not of the task set."""
        return list(rollout_reward)

    def __call__(self, prompts: Sequence[Prompt], trainer: Any) -> dict[str, Any]:
        """Return a completion per prompt, in order; a prompt's `num_generations` form a group.

        Beside TRL's own columns, reward functions get `rollout_reward`, `failed_calls` (as they happened) and
        `repairs`, one of each a completion. Raises RecipeError where GRPOConfig asks for other sampling than the
        recipe's, for groups too small for its selection, probes or strategy, or for a prompt that leaves no room to
        answer; InfrastructureFault where faults took rollouts again and again.
        """
        check_same_sampling(self.recipe.rollout, trainer.args)
        if getattr(trainer.args, "mask_truncated_completions", False):
            check_turn_ends(build_chat(self.recipe, self._folder, self._tasks), trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "peft_config"):
            raise RecipeError("a model with adapters: the rollouts would need its merged weights; train without LoRA")
        training = bool(model.training)
        model.eval()  # without dropout
        try:
            made = self._wait(self._rolled(list(prompts), model, trainer, training))
        finally:
            model.train(training)
        return _completions(made, self.recipe, training)

    async def _rolled(self, prompts: list[Prompt], model: Any, trainer: Any, training: bool) -> list[Trajectory]:
        process = trainer.accelerator.process_index
        size = trainer.num_generations if training else trainer.num_generations_eval
        groups = self._groups(prompts, size, process * len(prompts), training)
        rollouts = await self._opened(model, groups)
        await rollouts.sync()
        step, seed = trainer.state.global_step, derive("trl", self.recipe.run.seed, process)
        context = rollouts.context
        if training:  # TRL counts the steps that are done, a recipe from its first one
            context = replace(build_step_context(self.recipe, context, step + 1), strategy=build_strategy(self.recipe))
        else:
            context = replace(context, repair=None)
        try:
            return [
                trajectory
                for group in await gather_or_cancel(
                    self._group(task, count, replace(rollouts, context=context), step, seed, training, first)
                    for task, count, first in groups
                )
                for trajectory in group
            ]
        finally:
            rollouts.rest()

    def _groups(self, prompts: Sequence[Prompt], size: int, start: int, training: bool) -> list[Group]:
        """One group per run of equal prompts: TRL has each `size` times in a row, and may draw one twice. start: of
        `prompts` in the batch of all processes, of which another may have begun the first run. Raises RecipeError."""
        made: Counter[str] = Counter()
        found = []
        for (question, _), same in groupby(
            (_question(prompt), (start + n) // size) for n, prompt in enumerate(prompts)
        ):
            task, count = self._task(*question), len(list(same))
            if training:
                self._check_group_size(count)
            found.append((task, count, made[task.id]))
            made[task.id] += self._rollouts_to_make(count, training)
        return found

    def _check_group_size(self, count: int) -> None:
        """Raise RecipeError where `count` rollouts are fewer than the selection keeps, no more than the probes, or
        fewer than the strategy starts from the prompt."""
        recipe = self.recipe.model_copy(update={"rl": self.recipe.rl.model_copy(update={"group": count})})
        try:
            for section in (recipe.select, recipe.repair, recipe.strategy):
                section.check(recipe)
        except ValueError as error:
            raise RecipeError(
                f"{error}; in TRL's trainer a group is a process's share of GRPOConfig's num_generations: raise it"
            ) from error

    def _rollouts_to_make(self, count: int, training: bool) -> int:
        """Rollouts to make so that `count` are left."""
        return self.recipe.select.made(count) if training else count

    async def _group(
        self, task: Task, count: int, rollouts: TrainingRollouts, step: int, seed: int, training: bool, first: int = 0
    ) -> list[Trajectory]:
        """`count` rollouts of a task, selected in training. first: rollouts of the task in earlier groups of this
        call."""
        graded, select = task.id in self._known, self.recipe.select
        left: list[Trajectory] = []
        for number in range(ROUNDS):
            stream = derive(seed, number, first) if first else derive(seed, number)
            group = await rollout_group(
                task,
                rollouts.context,
                count=self._rollouts_to_make(count - len(left), training),
                seed=stream,
                step=step,
                grade=rollouts.tasks.grade if graded else lambda _, trajectory: trajectory,
                first=first,
            )
            left += [t for t in group if t.stop != "infrastructure"]
            if len(left) >= count:
                compared = comparable(left, self.recipe.rl) if training and graded else []
                kept = select.select(compared, count, seed=stream) if compared else []
                others = [t for t in left if all(t is not one for one in kept)]  # TRL wants `count`, masked or not
                return kept + others[: count - len(kept)]
        raise InfrastructureFault(
            f"prompt {task.id}: {ROUNDS} times over infrastructure faults ended rollouts, and {count - len(left)} of "
            f"{count} are missing; see `retcon doctor`"
        )

    def _task(self, question: str, id: str | None) -> Task:
        """The task of a prompt. id: its name, if the prompt has one. Raises RecipeError for an unknown one, and for a
        plain prompt where grading is needed."""
        if id in self._known:
            return self._known[id]
        if id is not None:  # ungraded, it would pass: TRL accepts a missing reward
            raise RecipeError(
                f"a prompt names the task {id!r:.80}, which these rollouts have not drawn: where rows were kept, or "
                "are another `Rollouts`', call `dataset` or `evaluation_dataset` with as many before it trains"
            )
        asking = list(self._asking.get(question, {}).values())
        if len(asking) > 1:
            raise RecipeError(
                f"{len(asking)} tasks of {self._tasks.name} have the question of a prompt that names none of them: "
                f"{question[:80]!r}; train on `dataset()`, whose prompts do"
            )
        if asking:
            return asking[0]
        graded = f"and a prompt is not a question of the task set {self._tasks.name}: {question[:80]!r}"
        if self.recipe.select.kind != "none":
            raise RecipeError(
                f"select.kind = '{self.recipe.select.kind}' needs rewards, {graded}; set select.kind=none, or train "
                "on `dataset()`"
            )
        if self.recipe.rl.void_turns == "mask":
            raise RecipeError(
                f"rl.void_turns = 'mask' needs the grader's reading of the answer, {graded}; set rl.void_turns=keep, "
                "or train on `dataset()`"
            )
        return Task(f"prompt/{derive(question):016x}", question, "")

    async def _opened(self, model: Any, groups: Sequence[Group]) -> TrainingRollouts:
        """The sandbox and the engine over the trainer's weights, opened by the first call."""
        if self._open is None:
            weights = EngineWeights(model, next(model.parameters()).dtype)
            recipe = self._sized_recipe(groups)
            opened = open_rollouts(recipe, weights, self._folder, self._tasks)
            self._open = model, await self._stack.enter_async_context(opened)
        known, rollouts = self._open
        if known is not model:
            raise RecipeError("these rollouts belong to another trainer's model: make a `Rollouts` for each trainer")
        return rollouts

    def _sized_recipe(self, groups: Sequence[Group]) -> Recipe:
        """The recipe with TRL's numbers, so that the engine has room for a batch."""
        largest = max(count for _, count, _ in groups)
        rl = self.recipe.rl.model_copy(update={"prompts": len(groups), "group": max(2, largest)})
        return self.recipe.model_copy(update={"rl": rl})

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on our own loop; Ctrl-C ends it. Raises RecipeError after the `with` block."""
        if self._loop.is_closed():
            work.close()
            raise RecipeError("these rollouts are closed: train within their `with` block, or make new ones")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def prompt_of(task: Task) -> list[dict[str, str]]:
    """Return a task as TRL's prompt; system prompt and examples follow by its id."""
    return [{"role": "user", "content": task.question, TASK: task.id}]


def _question(prompt: Prompt) -> tuple[str, str | None]:
    """The question of a prompt, and the id of its task if it has one. Raises RecipeError for other messages."""
    if isinstance(prompt, str):
        return prompt, None
    last = prompt[-1]
    if last.get("role") != "user" or not isinstance(last.get("content"), str) or len(prompt) > 1:
        raise RecipeError(
            "a prompt must be a text, or one message of the user with a text: the system prompt is that of the "
            f"recipe's task set; this one has the roles {', '.join(str(m.get('role')) for m in prompt)}"
        )
    return str(last["content"]), last.get(TASK)


def _check_compatible(recipe: Recipe) -> None:
    """Raise RecipeError, before any work, for settings that TRL's trainer cannot carry."""
    check_loss_supported(recipe, "TRL")
    check_rate_bounds(recipe.select)
    if recipe.select.dynamic:
        raise RecipeError("select.dynamic = true: TRL's trainer draws the prompts of a step, and no more in their "
                          "place; set select.dynamic=false")  # fmt: skip
    if recipe.lora.rank:
        raise RecipeError(f"lora.rank = {recipe.lora.rank}: TRL makes the model, and with adapters the rollouts "
                          "would need its merged weights; set lora.rank=0")  # fmt: skip


def _completions(made: Sequence[Trajectory], recipe: Recipe, training: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [],
        "rollout_reward": [_shaped_reward(t, recipe) if training else t.reward for t in made],
        "failed_calls": [t.raw_failures for t in made],
        "repairs": [sum(turn.repair is not None for turn in t.turns) for t in made],
    }  # fmt: skip
    for trajectory in made:
        sample, start = to_sample(trajectory), token_count(trajectory.prompt)
        if start == len(sample.ids):  # TRL cannot build a tensor of no ids
            raise RecipeError(
                f"rollout.max_tokens = {recipe.rollout.max_tokens}: the prompt of {trajectory.task} has {start} tokens "
                "and leaves no room for an answer; raise it, or leave that prompt out"
            )
        mask = learnt(trajectory, sample, recipe.rl) if training else sample.mask
        found["prompt_ids"].append(list(sample.ids[:start]))
        found["completion_ids"].append(list(sample.ids[start:]))
        found["logprobs"].append([0.0 if logprob is None else logprob for logprob in sample.logprobs[start:]])
        found["env_mask"].append(list(mask[start:]))
    return found


def _shaped_reward(trajectory: Trajectory, recipe: Recipe) -> float | None:
    """Return the reward less what [rl] takes off for length; None leaves TRL's baseline.

    None: for ungraded rollouts, and for masked ones unless masked_in_baseline.
    """
    if trajectory.reward is None or (is_masked(trajectory, recipe.rl) and not recipe.rl.masked_in_baseline):
        return None
    return shaped_rewards([trajectory], recipe.rl, build_limits(recipe))[0]
