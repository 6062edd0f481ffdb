"""The recipe: every knob of a run, typed, with its default. No torch.

A recipe is a TOML file with these sections; a key that is not here is an error. Numbers carry their units in their
descriptions. Of a section with kinds (`Chosen`) the keys that all kinds share stand here, for whoever needs them
without knowing the kind; a kind's own stand in its file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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

from retcon.config.learning import DemosSection, DPOSection, RLSection, SFTSection
from retcon.config.section import (
    Chosen,
    NonNegative,
    OneKind,
    Positive,
    Probability,
    Rate,
    Section,
    Several,
    Work,
    named,
    server_urls,
)
from retcon.config.stages import StageSection, check_stages, written
from retcon.core.errors import RecipeError, nearest
from retcon.core.schema import ToolSpec

DEVICES = ("auto", "cpu", "cuda", "cuda:0", "cuda:1")
ALL_LINEAR = "all-linear"
AUTO = "auto"

ChatStyle = Annotated[str, named("chat style", "retcon.chat.families", "my_package.my_module:MINE", AUTO)]
ToolNames = Annotated[Several, named("tool", "retcon.tools.kinds", "my_package.my_module:MyTool")]
TrackerNames = Annotated[Several, named("tracker", "retcon.runs.trackers", "my_package.my_module:MyTracker")]


class RunSection(Section):
    matters_to: ClassVar = {"sft": None, "dpo": None, "rl": None, "demonstrations": ("seed",)}
    seed: int = Field(0, description="of every random stream of the run")
    threads: Positive = Field(1, description="torch threads; part of what makes a run repeat bit for bit")


class ModelSection(Section):
    matters_to: ClassVar = {"sft": None, "dpo": None, "rl": None, "demonstrations": ("style",)}
    path: str = Field("base", description="a folder, a file or a name (docs/models/models.md); `base` is the "
                      "packaged model, `scratch`, for sft, its configuration with fresh weights")  # fmt: skip
    style: ChatStyle = Field(AUTO, description="how the model is prompted and writes tool calls: `auto` (by its own "
                            "chat template), the name of a family, or an import path such as "
                            "`my_package.my_module:MINE`")  # fmt: skip
    thinking: Literal["default", "on", "off"] = Field("default", description="with style `auto`: what the model's "
                      "template is given as `enable_thinking`; default: nothing")  # fmt: skip

    @field_validator("thinking")
    @classmethod
    def _told_by_the_template(cls, value: str, info: ValidationInfo) -> str:
        style = info.data.get("style", AUTO)
        if value != "default" and style != AUTO:
            raise ValueError(f"the model's template is told it, and is not used with style = '{style}': set style to "
                             f"'{AUTO}', or leave thinking out")  # fmt: skip
        return value


class TaskSection(Chosen, what="task family", kinds="retcon.tasks.kinds"):
    """A kind has `build(count_tokens=None)`, which makes its `retcon.tasks.registry.TaskSet`; count_tokens gives the
    tokens of a task's prompt, where a model is known. own_lengths: whether the defaults of lengths in [rollout] and
    [sandbox] were chosen for it; else they follow the model and its prompts (`retcon.rollout.lengths`)."""

    own_lengths: ClassVar[bool] = False
    matters_to: ClassVar = {"rl": None, "demonstrations": None}
    kind: str = Field("numbers", description="the task family")

    def build(self, count_tokens: Any = None) -> Any:
        raise self.lacks("build(count_tokens=None)")

    def tools(self, recipe: Recipe) -> Sequence[Any]:
        """Tools (`retcon.tools.types`) that its tasks bring with them, beside those of [rollout]."""
        return ()

    def refuse_rollouts(self, recipe: Recipe) -> None:
        """Raises RecipeError, before any work, where what its tasks bring cannot be rolled out as [repair] says; asked
        by whoever rolls out so, of evaluations with what they repair by (`build.as_evaluated`)."""

    def refuse_branching(self, recipe: Recipe) -> None:
        """Raises RecipeError, before any work, where its rollouts cannot branch as [strategy] says; asked by whoever
        trains: nobody else's do."""


class EngineSection(Chosen, what="engine", kinds="retcon.engine.kinds"):
    """A kind has `build(setup)`, which makes a `retcon.engine.types.Generator` of an `EngineSetup`. in_process: whether
    it computes here, with the weights of the model's folder. carries_over: whether its engine is one that
    `CarriesOver`."""

    in_process: ClassVar[bool] = True
    carries_over: ClassVar[bool] = False
    immaterial: ClassVar = ("key_env", "seconds", "attempts", "at_once", "patience", "start_seconds")
    matters_to: ClassVar = {"rl": None}
    kind: str = Field("local", description="what generates")

    def build(self, setup: Any) -> Any:
        raise self.lacks("build(setup)")

    def refuse_training(self, recipe: Recipe) -> None:
        """Raises RecipeError, before any work, where a policy cannot be trained with it as the recipe says."""

    def chat(self, folder: Path, system: str | None, tools: Sequence[ToolSpec]) -> Any:
        """The `retcon.chat.chat.Chat` that it has to be spoken to in; None: that of the model in `folder`."""
        return None

    def room(self) -> int | None:
        """Tokens that it takes; None: as many as the model in the folder."""
        return None

    def requests(self) -> int:
        """That its servers take at a time, all of them together; 0 where it has none."""
        return 0

    def subject(self, folder: Path) -> str:
        """Whose rollouts it makes, for the record."""
        return str(folder.resolve())


class RolloutSection(Section):
    immaterial: ClassVar = ("harness_seconds",)  # what takes longer is lost, as with sandbox.patience, and not judged
    matters_to: ClassVar = {"rl": None, "demonstrations": None}
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


class RepairSection(Chosen, what="repair", kinds="retcon.purify.kinds"):
    """Which rollouts are purified is drawn before any of them fails, whatever purifies them: those keys are here. A
    kind has `build()`, which makes its `retcon.purify.types.Repair`, or None."""

    matters_to: ClassVar = {"rl": None}
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


class StrategySection(Chosen, what="rollout strategy", kinds="retcon.rollout.strategies"):
    """How the rollouts of a training prompt come to be. branching: whether some begin where others have come to; such a
    kind is itself what decides (`retcon.rollout.strategy.Strategy`)."""

    branching: ClassVar[bool] = False
    matters_to: ClassVar = {"rl": None}
    kind: str = Field("independent", description="how the rollouts of a prompt are made")

    @property
    def measures(self) -> bool:
        """See `Strategy`."""
        return False


class SelectSection(Chosen, what="selection", kinds="retcon.select.kinds"):
    """Which prompts are drawn is settled before their rollouts are chosen from, however that is done: those keys are
    here. A kind has `made` and `select`; it keeps no state, and is itself what selects. reasons: words of `why`."""

    matters_to: ClassVar = {"rl": None}
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
        """G': the rollouts to make of a prompt, where `keep` (G) are to be trained on."""
        return keep

    def select(self, group: Sequence[Any], keep: int, *, seed: int) -> list[Any]:
        """`keep` (G) trajectories of a graded group without infrastructure losses, or fewer where it has no more;
        what is random comes from `seed`."""
        raise self.lacks("select(group, keep, *, seed)")

    def why(self, dropped: Sequence[Any], kept: Sequence[Any]) -> list[str]:
        """Why `select` dropped each of these trajectories of a group, in a word."""
        return ["selection"] * len(dropped)


class ComputeSection(Section):
    matters_to: ClassVar = {"sft": None, "dpo": None, "rl": None}
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
    matters_to: ClassVar = {"sft": None, "dpo": None, "rl": None}
    rank: NonNegative = Field(0, description="r of the adapters that are trained in place of the weights; 0: off, all "
                              "weights are trained")  # fmt: skip
    alpha: Rate = Field(32.0, description="α: what an adapter adds is scaled by α / r")
    dropout: float = Field(0.0, ge=0, lt=1, description="of an adapter's input, only in supervised training")
    targets: Several = Field(("all-linear",), description="all-linear (except the output layer), or names of "
                             "linear layers such as q_proj")  # fmt: skip

    @field_validator("targets")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or (ALL_LINEAR in value and len(value) > 1):
            raise ValueError(f"name {ALL_LINEAR} alone, or one linear layer or more")
        return value


class SandboxSection(Section):
    """Where calls run, how many at a time, and whether repeated programs run again, can change between sessions."""

    immaterial: ClassVar = ("url", "patience", "workers", "reuse")
    matters_to: ClassVar = {"rl": None, "demonstrations": None}
    url: Several = Field((), description="of servers (`retcon sandbox serve`) to run calls on instead of here, "
                         "one or several; their token: RETCON_SANDBOX_TOKEN")  # fmt: skip
    patience: NonNegative = Field(300, description="seconds for which calls wait where all of these servers have gone "
                                  "away during the work, as one does that is restarted")  # fmt: skip
    workers: Positive = Field(2, description="calls at a time; servers set their own number")
    python: str = Field("", description="interpreter (3.11 or later), or folder of its venv, that calls run in; "
                        "empty: this one")  # fmt: skip
    packages: Several = Field((), description="modules to import once before calls start, outside their limits, such "
                              "as pandas, matplotlib, sklearn, torch")  # fmt: skip
    sessions: bool = Field(False, description="each rollout has an interpreter that keeps variables and files between "
                           "calls, and is rolled back with its history")  # fmt: skip
    reuse: bool = Field(True, description="a program that only computes, without numpy and the like, runs once: "
                        "another call of it gets what it came to; not with sessions")  # fmt: skip
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
    """To a run of reinforcement learning that evaluates on its way, what the points of its curve are measured by
    matters; how many there are does not."""

    matters_to: ClassVar = {"rl": ("problems", "seed", "repair", "faults", "every_samples")}

    problems: Positive = 48
    samples: Positive = Field(16, description="rollouts per problem in each setting")
    top_p: float = Field(0.6, gt=0, le=1, description="of the second setting, the paper's; the first is top-p 1. "
                         "1: there is no second one")  # fmt: skip
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
    """Nothing that is computed depends on it: it can change from session to session."""

    to: TrackerNames = Field((), description="trackers that get every step's metrics, besides metrics.jsonl: "
                        "tensorboard, trackio, wandb, or import paths")  # fmt: skip
    names: Literal["retcon", "verl", "trl"] = Field("retcon", description="what metrics are called there: retcon | "
                                                    "verl | trl (docs/training/tracking.md)")  # fmt: skip
    project: str = Field("retcon", description="of trackers that have projects")
    name: str = Field("", description="of the run; empty: that of its folder")


C = TypeVar("C", bound=Chosen)


def _default(section: type[C]) -> C:
    return section.kind_in({})()


class Recipe(Section):
    """A whole recipe. All sections have defaults, so an empty file is the quickstart's baseline."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    compute: ComputeSection = ComputeSection()
    lora: LoraSection = LoraSection()
    engine: Annotated[EngineSection, OneKind()] = Field(default_factory=partial(_default, EngineSection))
    task: Annotated[TaskSection, OneKind()] = Field(default_factory=partial(_default, TaskSection))
    rollout: RolloutSection = RolloutSection()
    strategy: Annotated[StrategySection, OneKind()] = Field(default_factory=partial(_default, StrategySection))
    repair: Annotated[RepairSection, OneKind()] = Field(default_factory=partial(_default, RepairSection))
    select: Annotated[SelectSection, OneKind()] = Field(default_factory=partial(_default, SelectSection))
    sandbox: SandboxSection = SandboxSection()
    demos: Annotated[DemosSection, OneKind()] = Field(default_factory=partial(_default, DemosSection))
    sft: SFTSection = SFTSection()
    dpo: DPOSection = DPOSection()
    rl: Annotated[RLSection, OneKind()] = Field(default_factory=partial(_default, RLSection))
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
        return written(self, handler, info)


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation  # type: ignore[misc]
    for name, field in Recipe.model_fields.items()
    if name != "stages"
}
"""Every section by name; of those with kinds what all kinds share. Stages (`retcon.config.stages`) are none."""
