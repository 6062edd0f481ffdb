"""The recipe: every knob of a run, typed, with its default. No torch.

A recipe is a TOML file with these sections; a key that is not here is an error. Numbers carry their units in their
descriptions. A section with kinds (`PluginSection`) has here the keys that all kinds share, which can be read without
knowing the kind; a kind's own keys are in its file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from retcon.config.section import (
    Aggregate,
    NonNegative,
    PluginField,
    PluginSection,
    Positive,
    Probability,
    Rate,
    Schedule,
    Section,
    StrList,
    Work,
    plugin_names,
    server_urls,
)
from retcon.core.errors import RecipeError, nearest
from retcon.core.types import ToolSpec


class DemosSection(PluginSection, plugin="demos_source"):
    """Source of a cold start's demonstrations. A kind has `open(setup)`, which makes its
    `retcon.train.demos.types.Source` of a `DemoSetup`. sft.demonstrations sets their number.

    of_tasks: whether it is made of the recipe's tasks, which need not exist otherwise."""

    resume_ignores: ClassVar = ("key_env", "seconds", "patience")
    resume_keys: ClassVar = {"demonstrations": None}
    of_tasks: ClassVar[bool] = True
    kind: str = Field("teacher", description="what demonstrations are made of")
    failed_share: Literal["any"] | Probability = Field("any", description="share of the demonstrations in which a call "
        "fails, met to within rounding; any: as they come")  # fmt: skip

    def open(self, setup: Any) -> Any:
        raise self.lacks("open(setup)")


class SFTSection(Section):
    resume_keys: ClassVar = {"sft": None, "demonstrations": ("demonstrations", "max_turns")}
    demonstrations: Positive = Field(5000, description="how many are wanted")
    max_turns: Positive = Field(5, description="generations of a demonstration")
    steps: Positive = 300
    batch: Positive = 32
    aggregate: Literal["token", "sequence"] = Field("token", description="what the loss is averaged over: all tokens "
        "of a batch, or each sequence's, then sequences, as for short answers beside long programs")  # fmt: skip
    lr: Rate = 4e-3
    schedule: Schedule = Field("cosine", description="of the learning rate after its warm-up: constant | linear | "
                               "cosine; the last two fall to 0")  # fmt: skip
    warmup: Probability = Field(0.1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: Rate = 1.0
    checkpoint_every: Positive = 50
    validation_share: float = Field(0.0, ge=0, lt=1, description="of the demonstrations, held out to measure a loss on "
        "(validation_loss); 0: none")  # fmt: skip
    validate_every: Positive = Field(50, description="steps between validations; there is one more at the end")
    samples: NonNegative = Field(0, description="evaluation problems that the final model solves greedily, kept as "
                                 "trajectories of the last step")  # fmt: skip
    first_repair: NonNegative = Field(0, description="step after which evaluation problems are sampled with SAAR "
        "until a failed call is repaired, kept as trajectories of that step; 0: none"
    )  # fmt: skip


class RLSection(PluginSection, plugin="algorithm", chosen_by="algorithm"):
    """Base of RL algorithms. A kind has `advantages`, `loss` and its own ε's."""

    resume_keys: ClassVar = {"rl": None}
    mechanisms: ClassVar = {
        "mask_negative_spliced": ("no spliced token had a negative advantage", "spliced_negative"),
        "splice_weight": ("no spliced token's weight was cut", "splice_weights_cut"),
        "imitate_spliced": ("no spliced token had a positive advantage", "spliced_positive"),
        "contrast": ("no rollout that it compares had a repaired turn", "contrast_tries"),
        "dpo_beta": ("no rollout trained on had a failed call replaced", "dpo_pairs"),
        "correction": ("no weight was beyond rl.correction_cap", "correction_cut"),
        "max_kl": ("no minibatch's policy was further from the one that sampled", "skipped"),
        "failed_calls": ("no call failed", "failures"),
        "blame": ("no rollout of positive advantage had a failed call", "blamed_tokens"),
        "echo": ("no tool output was to be predicted", "echo_tokens"),
        "sdpo": ("no rollout trained on had a turn with a failed call before another one", "sdpo_tokens"),
        "shared_advantage": ("no rollout branched off another one", "branches"),
        "step_advantage": ("no turn had an advantage of its own", "shared_states", "contrasts"),
        "void_turns": ("every turn called a tool or answered", "void_masked"),
        "truncated": ("no rollout was cut off at its limit", "truncated_masked"),
        "overlong_buffer": ("no rollout trained on came that close to rollout.max_tokens", "overlong_rollouts"),
    }
    algorithm: str = Field("dapo", description="the advantage and the loss")
    steps: Positive = 80
    prompts: Positive = Field(12, description="prompts per step")
    group: Positive = Field(8, description="G: rollouts per prompt that are trained on")
    lr: Rate = 2e-4
    schedule: Schedule = Field("constant", description="of the learning rate after its warm-up: constant | linear | "
                               "cosine; the last two would reach 0 one step after the last step")  # fmt: skip
    warmup_steps: NonNegative = Field(0, description="steps of rising learning rate")
    minibatches: Positive = 2
    epochs: Positive = Field(1, description="passes of a step over its samples, each with new minibatches")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: Rate = 1.0
    mask_negative_spliced: bool = Field(False, description="ours, not the paper's: spliced tokens get no gradient "
                                        "where the advantage is negative")  # fmt: skip
    splice_weight: Literal["none", "truncated", "accept"] = Field("none", description="of spliced tokens in the "
        "loss; truncated: π(c′|purified) / π(c′|lookahead), splice_weight_cap at most; accept: 1 for a turn's splice "
        "with that as its probability, else 0")  # fmt: skip
    splice_weight_cap: Rate = 2.0
    imitate_spliced: float = Field(0.0, ge=0, description="ours: weight of a cross-entropy on spliced tokens where "
        "the advantage is positive, in place of the policy loss on them; 0: off")  # fmt: skip
    contrast: float = Field(0.0, ge=0, description="ours: bound of the advantages that the tries at a repaired turn "
        "get among themselves, as samples of their own; 0: off")  # fmt: skip
    contrast_rollouts: Literal["right", "all"] = Field("right", description="the rollouts whose tries "
        "contrast compares; right: those with a positive reward, as a call that runs may still be wrong")  # fmt: skip
    dpo_beta: float = Field(0.0, ge=0, description="β of CLEANER's online masked DPO: what replaced a failed call is "
        "preferred to it, by an adjustment of their tokens' advantages; 0: off")  # fmt: skip
    dpo_limit: Rate = Field(0.1, description="of that adjustment, per token")
    old_logprobs: Literal["engine", "recompute"] = Field("engine", description="π_old of the ratio: engine, the "
        "log-probs that rollouts came with; recompute, the trainer's own, for one more forward a step; with a "
        "rollout.temperature other than 1 they always are")  # fmt: skip
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "none", description="with old_logprobs recompute: weight each term by how much likelier the trainer finds "
        "its token, or its sequence, than the engine; truncate: correction_cap at most, mask: 0 beyond it")  # fmt: skip
    correction_cap: Rate = 2.0
    max_staleness: NonNegative = Field(0, description="steps by which rollouts may start before the one that learns "
        "from them, and so the age of the weights that sampled a token; 0: a step waits for its own; otherwise a run "
        "does not repeat bit for bit")  # fmt: skip
    kl: float = Field(0.0, ge=0, description="β of a KL penalty to the model that training starts from, which is then "
                      "kept in memory; 0: off")  # fmt: skip
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="of that penalty, per token: log-ratio, half its "
        "square, or GRPO's r - 1 - log r")  # fmt: skip
    entropy_coefficient: float = Field(0.0, ge=0, description="of a bonus for the entropy of the distributions that "
        "tokens are sampled from, averaged as the loss; 0: off")  # fmt: skip
    max_kl: float = Field(0.0, ge=0, description="nats per token: a minibatch whose policy is further than this from "
                          "the one that sampled it is skipped; 0: off")  # fmt: skip
    failed_calls: Literal["keep", "mask"] = Field("keep", description="mask: turns whose call failed are masked")
    blame: float = Field(0.0, ge=0, description="ours: where a rollout's advantage is positive, what later calls "
                         "corrected in its failed ones gets this times its negative; 0: off")  # fmt: skip
    echo: float = Field(0.0, ge=0, description="λ of ECHO: weight of the cross-entropy of tool outputs, in nats a "
        "token, beside the policy loss; 0: off")  # fmt: skip
    echo_outputs: Literal["all", "failed"] = Field("all", description="tool outputs that echo predicts; failed: those "
        "of calls that failed")  # fmt: skip
    sdpo: float = Field(0.0, ge=0, description="β of SDPO: in turns with a failed call, the advantage of a token is β "
        "times by how much likelier the model finds it once it has seen the error, in place of the rollout's; 0: "
        "off")  # fmt: skip
    sdpo_limit: Rate = Field(1.0, description="most nats that this counts for a token")
    shared_advantage: Literal["own", "mean", "siblings"] = Field("own", description="of what rollouts that branch off "
        "each other have in common; own: each rollout's on its copy (ARPO's soft one), mean: that of them all (its "
        "hard one), siblings: none on a branch's copy, and branches of one point are compared with one another alone "
        "(Fission-GRPO)")  # fmt: skip
    step_advantage: Literal["none", "rtmc", "branpo"] = Field("none", description="rtmc: a turn's advantage is the "
        "mean of the rollouts of its group that acted alike in its state, less that of all that were in it (RTMC); "
        "branpo: before the point where another rollout ends otherwise, that of both (BranPO)")  # fmt: skip
    void_turns: Literal["keep", "mask"] = Field("keep", description="mask: rollouts with a turn that neither calls a "
        "tool nor answers are masked (SimpleTIR)")  # fmt: skip
    truncated: Literal["keep", "mask"] = Field("keep", description="mask: rollouts that were cut off at their limit "
        "are masked (DAPO's overlong filtering)")  # fmt: skip
    masked_in_baseline: bool = Field(False, description="whether rollouts that void_turns or truncated masks are still "
        "compared with their siblings; otherwise they leave the group")  # fmt: skip
    overlong_buffer: NonNegative = Field(0, description="tokens before rollout.max_tokens over which the reward "
        "falls by overlong_penalty (DAPO's soft overlong punishment); 0: off")  # fmt: skip
    overlong_penalty: Rate = 1.0
    max_sampled_tokens: NonNegative = Field(0, description="a run ends early, after the step in which its rollouts "
        "have sampled this many, lookaheads included; 0: off")  # fmt: skip
    max_cpu_seconds: float = Field(0.0, ge=0, description="a run ends early, after the step in which it has cost this "
        "many; it then does not repeat bit for bit; 0: off")  # fmt: skip
    drift_alarm: Probability = Field(0.05, description="rise of the first-try failure rate over its best 10 steps from "
        "which a run warns (docs/training/schedule.md); 0: never")  # fmt: skip
    checkpoint_every: Positive = 20

    @model_validator(mode="after")
    def _keys_go_together(self) -> RLSection:
        if self.group < 2:
            raise ValueError("a group of 1 has no variance: group must be 2 or more")
        if self.imitate_spliced and self.mask_negative_spliced:
            raise ValueError("imitate_spliced and mask_negative_spliced exclude each other: set one of them")
        if self.blame and self.failed_calls == "mask":
            raise ValueError("blame teaches from the turns that failed_calls = mask leaves out: set one of them")
        if self.sdpo and (self.blame or self.failed_calls == "mask"):
            other = "blame" if self.blame else "failed_calls = mask"
            raise ValueError(f"sdpo and {other} both decide what is learnt from failed turns: set one of them")
        if self.sdpo and self.shared_advantage == "mean":
            raise ValueError("sdpo gives tokens advantages of their own, which shared_advantage = mean averages: set "
                             "one of them")  # fmt: skip
        if self.step_advantage != "none" and (self.blame or self.sdpo or self.shared_advantage != "own"):
            other = "blame" if self.blame else "sdpo" if self.sdpo else f"shared_advantage = {self.shared_advantage}"
            raise ValueError(f"step_advantage = {self.step_advantage} and {other} both give tokens their advantages: "
                             "set one of them")  # fmt: skip
        if self.correction != "none" and self.old_logprobs != "recompute":
            raise ValueError("correction weighs the trainer's log-probs against the engine's: it needs old_logprobs = "
                             "recompute")  # fmt: skip
        if self.schedule != "constant" and (self.max_sampled_tokens or self.max_cpu_seconds):
            raise ValueError(f"schedule = {self.schedule} falls over all of rl.steps, to the last of which a run "
                             "with max_sampled_tokens or max_cpu_seconds may not come: use constant")  # fmt: skip
        return self

    def check(self, recipe: Any) -> None:
        if self.max_staleness and not recipe.engine.carries_over:
            raise ValueError(f"rl: max_staleness = {self.max_staleness} needs an engine that goes on with a generation "
                             f"where other weights take over, which engine.kind = {recipe.engine.kind!r} does not: "
                             "take another, or 0")  # fmt: skip
        if self.step_advantage == "branpo" and recipe.strategy.kind != "branpo":
            raise ValueError("rl: step_advantage = branpo compares rollouts that strategy.kind = "
                             f"{recipe.strategy.kind!r} does not make: set strategy.kind = 'branpo'")  # fmt: skip
        if self.overlong_buffer >= recipe.rollout.max_tokens:
            raise ValueError(f"rl: overlong_buffer = {self.overlong_buffer} must be less than rollout.max_tokens = "
                             f"{recipe.rollout.max_tokens}")  # fmt: skip

    @property
    def aggregate(self) -> Aggregate:
        """Return the averaging of the loss and the KL penalty."""
        return "token"

    @property
    def entropy_weight(self) -> float:
        """Return a token's extra weight by its entropy. It is per standard deviation above the step's mean
        (`retcon.train.objective.credit`); 0: entropies are ignored."""
        return 0.0

    def advantages_of_step(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        """Return Â of a step's rollouts by group; groups may differ in size."""
        return [self.advantages(rewards) for rewards in groups]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Turn the (G,) rewards of a group into (G,) advantages Â."""
        raise self.lacks("advantages(rewards)")

    def loss(self, logprobs: Any, batch: Any, totals: Any, *, masked: Any = None) -> Any:
        """Return the `Loss` (`retcon.train.objective.loss`) of a micro-batch. logprobs: (B, T) nats, of the trained
        policy. batch: a `retcon.train.batch.Batch`. totals: of the whole minibatch (`Totals`). masked: (B, T) bool,
        tokens without a term, or None."""
        raise self.lacks("loss(logprobs, batch, totals, *, masked=None)")


class DPOSection(Section):
    resume_keys: ClassVar = {"dpo": None}
    beta: Rate = Field(0.1, description="β: how much a change from the model that it starts from costs")
    steps: Positive = 100
    batch: Positive = Field(16, description="pairs per step")
    lr: Rate = 5e-5
    warmup: Probability = Field(0.1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: Rate = 1.0
    checkpoint_every: Positive = 50


DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1")
ALL_LINEAR = "all-linear"
AUTO = "auto"

ChatStyle = Annotated[str, plugin_names("chat_family", AUTO)]
ToolNames = Annotated[StrList, plugin_names("tool")]
TrackerNames = Annotated[StrList, plugin_names("tracker")]


class RunSection(Section):
    resume_keys: ClassVar = {"sft": None, "dpo": None, "rl": None, "demonstrations": ("seed",)}
    resume_ignores: ClassVar = ("keep_gb",)
    seed: int = Field(0, description="of every random stream of the run")
    threads: Positive = Field(1, description="torch threads; part of what makes a run repeat bit for bit")
    keep_gb: float = Field(10.0, ge=0, description="disk for the rollouts of a training, in GB (10⁹ bytes); beyond it "
                           "the oldest steps go, those that ten divides last; 0: none are stored")  # fmt: skip


class ModelSection(Section):
    resume_keys: ClassVar = {"sft": None, "dpo": None, "rl": None, "demonstrations": ("style",)}
    path: str = Field("base", description="a folder, a file or a name (docs/models/models.md); `base` is the "
                      "packaged model, `scratch`, for sft, its configuration with fresh weights")  # fmt: skip
    style: ChatStyle = Field(AUTO, description="how the model is prompted and writes tool calls: `auto` (by its own "
                            "chat template), the name of a family, or an import path such as "
                            "`my_package.my_module:MINE`")  # fmt: skip
    thinking: Literal["default", "on", "off"] = Field("default", description="with style `auto`: what the model's "
                      "template is given as `enable_thinking`; default: nothing")  # fmt: skip
    chat_template_kwargs: dict[str, Any] = Field({}, description="with style `auto`: other variables that the model's "
                                                "template reads, such as reasoning_effort")  # fmt: skip

    @field_validator("thinking", "chat_template_kwargs")
    @classmethod
    def _check_template_used(cls, value: Any, info: ValidationInfo) -> Any:
        style = info.data.get("style", AUTO)
        if value not in ("default", {}) and style != AUTO:
            raise ValueError(f"the model's template, which reads it, is not used with style = '{style}': set style to "
                             f"'{AUTO}', or leave {info.field_name} out")  # fmt: skip
        return value


class TaskSection(PluginSection, plugin="task_family"):
    """Base of task families. A kind has `build(count_tokens=None)`, which makes its `retcon.tasks.registry.TaskSet`;
    count_tokens counts the tokens of a task's prompt, where a model is known. own_lengths: whether the defaults of
    lengths in [rollout] and [sandbox] fit it; else the model and its prompts set them (`retcon.rollout.lengths`)."""

    own_lengths: ClassVar[bool] = False
    resume_keys: ClassVar = {"rl": None, "demonstrations": None}
    kind: str = Field("numbers", description="the task family")

    def build(self, count_tokens: Any = None) -> Any:
        raise self.lacks("build(count_tokens=None)")

    def tools(self, recipe: Recipe) -> Sequence[Any]:
        """Return the tools (`retcon.tools.types`) of its tasks, added to those of [rollout]."""
        return ()

    def check_rollouts(self, recipe: Recipe) -> None:
        """Raise RecipeError where [repair] does not work with its tools. Called before any work that rolls out; for
        evaluations with their own repair (`build.with_evaluation_repair`)."""

    def check_branching(self, recipe: Recipe) -> None:
        """Raise RecipeError where its rollouts cannot branch by [strategy]. Called before training, which alone
        branches."""


class EngineSection(PluginSection, plugin="engine"):
    """Base of engines. A kind has `build(setup)`, which makes a `retcon.engine.types.Generator` of an `EngineSetup`.
    in_process: whether it computes here, with the weights of the model's folder. carries_over: whether its engine
    implements `CarriesOver`."""

    in_process: ClassVar[bool] = True
    carries_over: ClassVar[bool] = False
    resume_ignores: ClassVar = ("key_env", "seconds", "attempts", "at_once", "patience", "start_seconds")
    resume_keys: ClassVar = {"rl": None}
    kind: str = Field("local", description="what generates")

    def build(self, setup: Any) -> Any:
        raise self.lacks("build(setup)")

    def check_training(self, recipe: Recipe) -> None:
        """Raise RecipeError where it cannot train a policy by this recipe. Called before any work."""

    def chat(self, folder: Path, system: str | None, tools: Sequence[ToolSpec]) -> Any:
        """Return its own `retcon.chat.chat.Chat`; None: that of the model in `folder`."""
        return None

    def room(self) -> int | None:
        """Return its context length in tokens; None: that of the model in the folder."""
        return None

    def requests(self) -> int:
        """Return the concurrent requests of all its servers; 0 without servers."""
        return 0

    def subject(self, folder: Path) -> str:
        """Name the model that makes its rollouts, for the record."""
        return str(folder.resolve())


class RolloutSection(Section):
    resume_ignores: ClassVar = ("harness_seconds",)  # longer rollouts are lost, not graded, as with sandbox.patience
    resume_keys: ClassVar = {"rl": None, "demonstrations": None}
    max_tokens: Positive = Field(320, description="most tokens of a trajectory, prompt and observations included; "
                                 "for tasks other than numbers: by the model and the prompts")  # fmt: skip
    max_response_tokens: NonNegative = Field(0, description="most tokens after the prompt, observations included; 0: "
                                             "as many as max_tokens leaves")  # fmt: skip
    max_turns: Positive = Field(5, description="generations of a trajectory; a call in the last one still runs")
    lookahead_tokens: NonNegative = Field(160, description="room beyond max_tokens for a repair's lookahead; for "
                                          "tasks other than numbers: half of the room for answers")  # fmt: skip
    temperature: float = Field(1.0, ge=0, description="0 is greedy; the policy that is trained is of this one")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: NonNegative = Field(0, description="keeps the k most probable tokens; 0 is off")
    min_p: Probability = Field(0.0, description="keeps tokens of at least this share of the most probable one's "
                               "probability; 0 is off")  # fmt: skip
    tools: ToolNames = Field(("python",), description="what the model can call: names of tools, or import paths")
    harness: str = Field("", description="import path of a function that makes rollouts in place of Retcon's loop, "
                         "my_module:solve (docs/training/harnesses.md); empty: none")  # fmt: skip
    harness_seconds: Rate = Field(3600.0, description="wall time that it has for a rollout, which is lost then")

    def check(self, recipe: Any) -> None:
        if self.harness and recipe.strategy.branching:
            raise ValueError("rollout: harness: a harness's rollouts cannot be branched from: leave it out, or set "
                             "strategy.kind to independent")  # fmt: skip


class SubcallsSection(Section):
    """Limits of a rollout's model calls by programs (`rollout.tools = ["rlm"]`)."""

    resume_keys: ClassVar = {"rl": None, "demonstrations": None}
    depth: NonNegative = Field(1, description="levels of rollouts below the root, each with an interpreter of its own; "
                               "deeper calls are answered by the model alone")  # fmt: skip
    calls: NonNegative = Field(1000, description="calls of the model")
    input_tokens: NonNegative = Field(5_000_000, description="tokens of their prompts")
    output_tokens: NonNegative = Field(500_000, description="tokens of their answers")
    seconds: Rate = Field(600.0, description="wall time from the rollout's start, after which no call is made")
    prompts: Literal["", "retcon", "rlms"] = Field("", description="system prompt of tasks that bring none, and the "
        "question of rollouts below: ours or those of the package rlms, which must be installed; empty: none"
    )  # fmt: skip

    def check(self, recipe: Any) -> None:
        if self.prompts and "rlm" not in recipe.rollout.tools:
            raise ValueError("subcalls: prompts: they explain the tool rlm: set rollout.tools=rlm, or leave them out")


class RepairSection(PluginSection, plugin="repair"):
    """Base of repairs of failed turns. A kind has `build()`, which makes its `retcon.purify.types.Repair`, or None. The
    keys of all kinds set which rollouts are purified, which is drawn before any of them fails."""

    resume_keys: ClassVar = {"rl": None}
    mechanisms: ClassVar = {"kind": ("no failed turn was repaired", "shallow", "deep", "resampled", "described")}
    kind: str = Field("none", description="what is done about a failed turn")
    probability: Probability = Field(1.0, description="p: share of rollouts that are purified")
    probability_schedule: tuple[tuple[Positive, Probability], ...] = Field((), description="p over a run, in place of "
        "probability: [[step, p], …] with straight lines between; [[1, 1.0], [40, 0.0]] falls to 0 at step 40"
    )  # fmt: skip
    probes: NonNegative = Field(0, description="ours: rollouts of a prompt that are made first and not purified; p of "
        "the others is then least_probability + (p - least_probability) · the share of their first tries that failed; "
        "0: p is the same for all")  # fmt: skip
    least_probability: Probability = Field(0.0, description="of probes: p of a prompt at which no first try fails")

    @model_validator(mode="after")
    def _steps_do_not_decrease(self) -> RepairSection:
        steps = [step for step, _ in self.probability_schedule]
        if steps != sorted(steps):
            raise ValueError(f"the steps of probability_schedule must not decrease: {steps}")
        return self

    def check(self, recipe: Any) -> None:
        made = recipe.select.made(recipe.rl.group)
        if self.probes and recipe.strategy.branching:
            raise ValueError(f"repair: probes = {self.probes}: rollouts that branch off each other cannot wait for the "
                             "first of them; set it to 0, or strategy.kind to independent")  # fmt: skip
        if self.kind != "none" and self.probes >= made:
            raise ValueError(f"repair: probes = {self.probes} leaves none of the {made} rollouts of a prompt to "
                             "purify: take fewer")  # fmt: skip

    def build(self) -> Any:
        raise self.lacks("build()")


class StrategySection(PluginSection, plugin="strategy"):
    """Base of rollout strategies of training prompts. branching: whether some rollouts branch off others; such a kind
    is itself the `retcon.rollout.strategy.Strategy`."""

    branching: ClassVar[bool] = False
    resume_keys: ClassVar = {"rl": None}
    kind: str = Field("independent", description="how the rollouts of a prompt are made")

    @property
    def measures(self) -> bool:
        """Return whether one rollout must end before the others start."""
        return False

    def branches(self, point: Any, draw: Any) -> int:
        """Return how many rollouts branch off at a point."""
        return 0

    def resume(self, rollouts: Sequence[Any]) -> list[tuple[int, int]]:
        """Choose finished rollouts to resume (`retcon.rollout.strategy.Strategy`)."""
        return []


class SelectSection(PluginSection, plugin="selection"):
    """Base of selections of a group's rollouts. A kind has `made` and `select`, and no state. The keys of all kinds
    set which prompts are drawn. reasons: words of `why`."""

    resume_keys: ClassVar = {"rl": None}
    mechanisms: ClassVar = {"dynamic": ("the rewards of every group differed", "groups_flat", "extra_groups")}
    reasons: ClassVar[tuple[str, ...]] = ()
    kind: str = Field("none", description="which rollouts of a prompt are trained on")
    dynamic: bool = Field(False, description="DAPO: groups whose rewards are all equal are replaced by groups of fresh "
                          "prompts")  # fmt: skip
    max_extra: float = Field(2.0, ge=0, description="of dynamic: most extra groups of a step, for each of its own")
    max_rounds: NonNegative = Field(5, description="of dynamic: most times that a step draws more prompts")
    pass_rates: str = Field("", description="a file of `retcon difficulty`: only tasks whose rate lies within the "
                            "bounds are trained on")  # fmt: skip
    min_pass_rate: Probability = Field(0.01, description="0 keeps what no rollout solved")
    max_pass_rate: Probability = Field(0.99, description="1 keeps what every rollout solved")

    def made(self, keep: int) -> int:
        """Return G', the rollouts of a prompt to make for `keep` (G)."""
        return keep

    def select(self, group: Sequence[Any], keep: int, *, seed: int) -> list[Any]:
        """Select at most `keep` (G) trajectories of a graded group. It has no infrastructure losses; `seed` sets all
        randomness."""
        raise self.lacks("select(group, keep, *, seed)")

    def why(self, dropped: Sequence[Any], kept: Sequence[Any]) -> list[str]:
        """Return a one-word reason for each trajectory that `select` dropped."""
        return ["selection"] * len(dropped)


class CreditSection(PluginSection, plugin="credit"):
    """Base of credits for a rollout's children: model calls by its programs (`Trajectory.children`). A kind has
    `rewards`; groups, selection and pass rates always go by roots."""

    resume_keys: ClassVar = {"rl": None}
    mechanisms: ClassVar = {"kind": ("no rollout trained on had children to train", "children_trained")}
    kind: str = Field("root", description="what a rollout's children are trained with")
    weights: Literal["tree", "node"] = Field("tree", description="of children in the loss; tree: those of one depth "
        "together weigh as much as their root, however many they are; node: each weighs as much as a root")  # fmt: skip

    def rewards(self, tree: Sequence[Any], reward: float) -> Mapping[str, float]:
        """Return the rewards of the trained nodes by id. tree: the trainable nodes of a rollout, parents before
        children, the root first. reward: the root's, as its group compares it."""
        raise self.lacks("rewards(tree, reward)")


class ComputeSection(Section):
    resume_keys: ClassVar = {"sft": None, "dpo": None, "rl": None}
    device: str = Field("auto", description="auto: cuda if there is one, else cpu; or cpu, cuda, cuda:1")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="of a training step's matrix products "
        "(autocast; weights and optimiser stay float32): auto | float32 | bfloat16; auto: float32 on a CPU, bfloat16 "
        "on CUDA")  # fmt: skip
    rollout_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="of the weights that "
        "rollouts decode with: auto | float32 | bfloat16 | float16; auto as dtype's own auto; float32 shares the "
        "trained weights")  # fmt: skip
    attention: Literal["auto", "sdpa", "eager"] = Field("auto", description="auto | sdpa | eager; auto: sdpa where the "
        "model has it")  # fmt: skip
    micro_batch_tokens: NonNegative = Field(0, description="padded tokens of a forward; 0: 2,048, up to 16,384 on GPUs")
    checkpointing: bool = Field(False, description="keep no activations inside a layer, compute them again in the "
                                "backward: less memory, more time")  # fmt: skip
    logits_chunk: NonNegative = Field(0, description="logits (tokens × vocabulary) of a training step that exist at "
        "once; 0: 2²⁴ on a CPU, up to 2²⁸ on a GPU")  # fmt: skip
    share_prompts: bool = Field(True, description="compute a prefix that samples of a micro-batch share once")
    kv_memory_mb: NonNegative = Field(0, description="for the keys and values of rollouts, MiB; 0: chosen by what is "
                                      "free")  # fmt: skip

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            close = nearest("cuda" if "gpu" in value.lower() else value, DEVICES)
            raise ValueError(f"no such device{close}; there are: {', '.join(DEVICES)}")
        return value


class LoraSection(Section):
    resume_keys: ClassVar = {"sft": None, "dpo": None, "rl": None}
    rank: NonNegative = Field(0, description="r of the adapters that are trained in place of the weights; 0: off, all "
                              "weights are trained")  # fmt: skip
    alpha: Rate = Field(32.0, description="α: what an adapter adds is scaled by α / r")
    dropout: float = Field(0.0, ge=0, lt=1, description="of an adapter's input, only in supervised training")
    targets: StrList = Field(("all-linear",), description="all-linear (except the output layer), or names of "
                             "linear layers such as q_proj")  # fmt: skip

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or (ALL_LINEAR in value and len(value) > 1):
            raise ValueError(f"name {ALL_LINEAR} alone, or one linear layer or more")
        return value


class SandboxSection(Section):
    """Where and under which limits calls of tools run."""

    resume_ignores: ClassVar = ("url", "patience", "workers", "reuse")
    resume_keys: ClassVar = {"rl": None, "demonstrations": None}
    url: StrList = Field((), description="of servers (`retcon sandbox serve`) to run calls on instead of here, "
                         "one or several; their token: RETCON_SANDBOX_TOKEN")  # fmt: skip
    patience: NonNegative = Field(300, description="seconds for which calls wait where all of these servers have gone "
                                  "away during the work, as one does that is restarted")  # fmt: skip
    workers: Positive = Field(2, description="calls at a time; servers set their own number")
    python: str = Field("", description="interpreter (3.11 or later), or folder of its venv, that calls run in; "
                        "empty: this one")  # fmt: skip
    packages: StrList = Field((), description="modules to import once before calls start, outside their limits, such "
                              "as pandas, matplotlib, sklearn, torch")  # fmt: skip
    sessions: bool = Field(False, description="each rollout has an interpreter that keeps variables and files between "
                           "calls, and is rolled back with its history")  # fmt: skip
    reuse: bool = Field(True, description="a program that only computes, without numpy and the like, runs once, "
                        "and in one process with others (docs/sandbox/sandbox.md); not with sessions")  # fmt: skip
    cpu_seconds: Rate = Field(2.0, le=10**9, description="CPU time of a call")
    wall_seconds: Rate = Field(30.0, le=10**9, description="wall time of a call: a backstop, not a limit that load "
                               "can reach")  # fmt: skip
    memory_mb: Positive = Field(512, le=10**9, description="address space that a call may add")
    output_chars: Positive = Field(24, description="characters of an observation; for tasks other than numbers: by "
                                   "rollout.max_tokens")  # fmt: skip

    @field_validator("url")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return server_urls(value)

    def check(self, recipe: Any) -> None:
        for key in ("python", "packages"):
            if self.url and getattr(self, key):
                raise ValueError(
                    f"sandbox: {key} is of calls that run here, and url names servers: start those with "
                    "`retcon sandbox serve --python … --package …`, and leave it out here"
                )


class EvaluateSection(Section):
    """Problems and settings of evaluations. An RL run that evaluates on its way may resume with another number of
    points, but with no other measurement."""

    resume_keys: ClassVar = {"rl": ("problems", "seed", "repair", "faults", "every_samples")}

    problems: Positive = 48
    samples: Positive = Field(16, description="rollouts per problem in each setting")
    top_p: float = Field(0.6, gt=0, le=1, description="of the second setting, the paper's; the first is top-p 1. "
                         "1: there is no second one")  # fmt: skip
    sampling: Literal["plain", "rollout"] = Field("plain", description="plain: T = 1 with top-p 1 and with top_p, "
        "whatever [rollout] says; rollout: one setting, [rollout]'s own")  # fmt: skip
    seed: int = Field(1000, description="of the evaluation problems and their rollouts")
    repair: str = Field("none", description="what to do about failed turns while measuring: as [repair] says if it is "
                        "of that kind, else with that kind's defaults; its probability is "
                        "ignored")  # fmt: skip
    faults: Probability = Field(0.0, description="share of calls that fail while measuring, as if the tool's "
        "service had a hiccup: the model sees a TimeoutError or a ConnectionError; drawn by rollout and call"
    )  # fmt: skip
    every: NonNegative = Field(0, description="steps of reinforcement learning between evaluations of the policy on "
        "the same problems (eval_… in metrics.jsonl); 0: none")  # fmt: skip
    every_samples: Positive = Field(4, description="rollouts per problem in those")

    def keys_for(self, work: Work) -> tuple[str, ...]:
        return super().keys_for(work) if self.every else ()

    @field_validator("repair")
    @classmethod
    def _repair(cls, value: str) -> str:
        try:
            RepairSection.kinds.find(value)
        except RecipeError as error:
            raise ValueError(str(error)) from error
        return value


class TrackSection(Section):
    """Metric trackers; no result depends on them, so that they can change between sessions."""

    to: TrackerNames = Field((), description="trackers that get every step's metrics, besides metrics.jsonl: "
                        "tensorboard, trackio, wandb, or import paths")  # fmt: skip
    names: Literal["retcon", "verl", "trl"] = Field("retcon", description="what metrics are called there: retcon | "
                                                    "verl | trl (docs/training/tracking.md)")  # fmt: skip
    project: str = Field("retcon", description="of trackers that have projects")
    name: str = Field("", description="of the run; empty: that of its folder")


# The stages of a run: each is the recipe with some keys changed.
#
#     [[stages]]
#     name = "short"
#     steps = 30
#     rollout.max_tokens = 160
#
# A stage is the whole recipe with its own keys on top, like overrides; evaluations, in between and afterwards, use the
# recipe without them. Steps are counted over the whole run of rl.steps.

CHANGED = ("task", "rollout", "repair", "select", "sandbox", "rl")
"""Sections that a stage can have keys of; the others are of the whole run."""
WHOLE_RUN = ("steps", "max_sampled_tokens", "max_cpu_seconds", "drift_alarm", "checkpoint_every")
"""Keys of [rl] that a stage cannot have."""

Changes = dict[str, Any]
"""Key to value, as written."""


class StageSection(Section):
    """One of [[stages]], with the changed keys of sections in CHANGED."""

    name: str = Field(pattern=r"^[\w-]*[\p{L}_-][\w-]*$", description="in progress, reports and overrides "
                      "(stages.short.rollout.max_tokens=200), which also take its number")  # fmt: skip
    steps: NonNegative = Field(0, description="steps of the stage; the last one can leave them out, and has what is "
                               "left of rl.steps")  # fmt: skip
    optimizer: Literal["keep", "new"] = Field("keep", description="new: the stage begins with no moments of AdamW, and "
        "the learning rate with its warm-up and schedule anew")  # fmt: skip
    task: Changes = Field({})
    rollout: Changes = Field({})
    repair: Changes = Field({})
    select: Changes = Field({})
    sandbox: Changes = Field({})
    rl: Changes = Field({})

    @property
    def changes(self) -> dict[str, Changes]:
        """Map section to key to value."""
        return {section: keys for section in CHANGED if (keys := getattr(self, section))}

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if key not in CHANGED or value}


OWN = tuple(key for key in StageSection.model_fields if key not in CHANGED)
"""A stage's keys outside its sections."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive steps of a run with one recipe. number: from 1. before: steps of the run before its first. last: its
    last step. anew: whether it begins with a new optimiser. falling: (before, last) of the stages that share an
    optimiser, over which the learning rate runs its schedule. recipe: with its changes, and without stages; rl.steps is
    still that of the whole run."""

    number: int
    name: str
    before: int
    last: int
    anew: bool
    falling: tuple[int, int]
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.last - self.before

    def __str__(self) -> str:
        return f"stage {self.number}, {self.name}" if self.name else "the run"


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """Return the stages of a run, or one nameless stage for all."""
    total = recipe.rl.steps
    if not recipe.stages:
        return (Stage(1, "", 0, total, False, (0, total), recipe),)
    ends = list(_ends(recipe))
    begins = [0, *ends[:-1]]
    renewed = [before for stage, before in zip(recipe.stages, begins, strict=True) if stage.optimizer == "new"]
    found = []
    for number, (stage, before, last) in enumerate(zip(recipe.stages, begins, ends, strict=True), start=1):
        since = max((step for step in renewed if step <= before), default=0)
        until = min((step for step in renewed if step > before), default=total)
        anew = stage.optimizer == "new"
        found.append(Stage(number, stage.name, before, last, anew, (since, until), apply_stage(recipe, stage)))
    return tuple(found)


def find_stage(recipe: Recipe, named: str, where: str) -> Stage:
    """Find a stage by name, or number from 1. Raises RecipeError, which begins with `where`."""
    return stages_of(recipe)[stage_index([stage.name for stage in recipe.stages], named, where)]


def stage_index(names: Sequence[str], named: str, where: str) -> int:
    """Find a stage's index by name, or number from 1. Raises RecipeError, which begins with `where`."""
    if named in names:
        return names.index(named)
    if named.isdecimal() and 1 <= int(named) <= len(names):
        return int(named) - 1
    there = ", ".join(f"{number} {name}" for number, name in enumerate(names, start=1))
    reason = f"no stage '{named}'{nearest(named, names)}; there are: {there}" if names else "the recipe has no stages"
    raise RecipeError(f"{where}: {reason}")


def apply_stage(recipe: Recipe, stage: StageSection) -> Recipe:
    """Return the recipe with a stage's changes. Raises ValidationError for invalid changes."""
    data = recipe.model_dump(mode="json", exclude_unset=True, exclude={"stages"})
    for section, changes in stage.changes.items():
        about: Any = type(recipe).model_fields[section].annotation
        data[section] = about.with_changes(data.get(section, {}), changes)
    return type(recipe).model_validate_json(json.dumps(data), strict=True)


def check_stages(recipe: Recipe) -> None:
    """Check names, steps and changes of the stages. Raises ValidationError at ("stages", number from 0, …)."""
    names = [stage.name for stage in recipe.stages]
    for at, stage in enumerate(recipe.stages):
        if stage.name in names[:at]:
            raise _error((at, "name"), "stage", f"there is another stage of that name: {', '.join(names)}", stage.name)
        for key in WHOLE_RUN:
            if key in stage.rl:
                own = "; the stage's own are its key `steps`" if key == "steps" else ""
                raise _error((at, "rl", key), "stage", f"it is of the whole run: set it in [rl]{own}", stage.rl[key])
    total, last = recipe.rl.steps, len(names) - 1
    for at, (stage, end) in enumerate(zip(recipe.stages, _ends(recipe), strict=True)):
        if at < last and not stage.steps:
            reason = "every stage but the last says how many steps it has"
        elif at < last and end >= total:
            reason = f"no step of rl.steps = {total} is left for stage {names[at + 1]}: raise that, or lower this"
        elif at == last and end != total:
            reason = f"the stages have {end} steps in all, and rl.steps = {total}: make them equal, or leave this out"
        else:
            continue
        raise _error((at, "steps"), "stage", reason, stage.steps)
    for at, stage in enumerate(recipe.stages):
        try:
            apply_stage(recipe, stage)
        except ValidationError as error:
            first = error.errors()[0]
            raise _error((at, *first["loc"]), first["type"], first["msg"], first["input"]) from error


def differences(recipe: Recipe, stage: StageSection, whole: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return a stage's keys that differ from the recipe's, as a table. whole: the recipe, written in full. Keys that a
    kind adds are in it too, instead of being left to its defaults."""
    own = apply_stage(recipe, stage).model_dump(mode=mode)
    table: dict[str, Any] = {key: getattr(stage, key) for key in OWN}
    for section in CHANGED:
        there = whole.get(section)
        if there is not None and own[section] != there:
            table[section] = {k: v for k, v in own[section].items() if k not in there or there[k] != v}
    return table


def dump_recipe(recipe: Recipe, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
    """Dump a recipe as a table; stages are written as their `differences`."""
    data: dict[str, Any] = handler(recipe)
    if not recipe.stages:
        data.pop("stages", None)
    elif "stages" in data and not info.exclude_unset:
        data["stages"] = [differences(recipe, stage, data, info.mode) for stage in recipe.stages]
    return data


def _ends(recipe: Recipe) -> Iterator[int]:
    """Yield the last step of each stage."""
    end, last = 0, len(recipe.stages) - 1
    for at, stage in enumerate(recipe.stages):
        end = end + stage.steps if stage.steps or at < last else recipe.rl.steps
        yield end


def _error(place: tuple[str | int, ...], kind: str, reason: str, value: object) -> ValidationError:
    about = PydanticCustomError(kind, "{reason}", {"reason": reason})
    return ValidationError.from_exception_data(
        "Recipe", [InitErrorDetails(type=about, loc=("stages", *place), input=value)]
    )


C = TypeVar("C", bound=PluginSection)


def _default(section: type[C]) -> C:
    return section.kind_in({})()


class Recipe(Section):
    """A whole recipe; all sections have defaults, so an empty file is the quickstart's baseline."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    compute: ComputeSection = ComputeSection()
    lora: LoraSection = LoraSection()
    engine: Annotated[EngineSection, PluginField()] = Field(default_factory=partial(_default, EngineSection))
    task: Annotated[TaskSection, PluginField()] = Field(default_factory=partial(_default, TaskSection))
    rollout: RolloutSection = RolloutSection()
    subcalls: SubcallsSection = SubcallsSection()
    strategy: Annotated[StrategySection, PluginField()] = Field(default_factory=partial(_default, StrategySection))
    repair: Annotated[RepairSection, PluginField()] = Field(default_factory=partial(_default, RepairSection))
    select: Annotated[SelectSection, PluginField()] = Field(default_factory=partial(_default, SelectSection))
    credit: Annotated[CreditSection, PluginField()] = Field(default_factory=partial(_default, CreditSection))
    sandbox: SandboxSection = SandboxSection()
    demos: Annotated[DemosSection, PluginField()] = Field(default_factory=partial(_default, DemosSection))
    sft: SFTSection = SFTSection()
    dpo: DPOSection = DPOSection()
    rl: Annotated[RLSection, PluginField()] = Field(default_factory=partial(_default, RLSection))
    evaluate: EvaluateSection = EvaluateSection()
    track: TrackSection = TrackSection()
    stages: tuple[StageSection, ...] = ()

    @model_validator(mode="after")
    def _sections_go_together(self) -> Recipe:
        for name in SECTIONS:
            getattr(self, name).check(self)
        check_stages(self)
        return self

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        return dump_recipe(self, handler, info)


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation  # type: ignore[misc]
    for name, field in Recipe.model_fields.items()
    if name != "stages"
}
"""Sections by name, those with kinds by their base class. Stages are not sections."""
