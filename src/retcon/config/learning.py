"""What is learnt from, and how: the sections of demonstrations, and of each kind of training. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from retcon.config.section import Aggregate, Chosen, NonNegative, Positive, Probability, Rate, Schedule, Section


class DemosSection(Chosen, what="source of demonstrations", kinds="retcon.train.demos.kinds"):
    """What a cold start learns from, and how it is made. A kind has `open(setup)`, which makes its
    `retcon.train.demos.types.Source` of a `DemoSetup`. How many are wanted says sft.demonstrations.

    of_tasks: whether it is made of the recipe's tasks, which need not be there otherwise."""

    immaterial: ClassVar = ("key_env", "seconds", "patience")
    matters_to: ClassVar = {"demonstrations": None}
    of_tasks: ClassVar[bool] = True
    kind: str = Field("teacher", description="what demonstrations are made of")
    failed_share: Literal["any"] | Probability = Field("any", description="share of the demonstrations in which a call "
        "fails, met to within rounding; any: as they come")  # fmt: skip

    def open(self, setup: Any) -> Any:
        raise self.lacks("open(setup)")


class SFTSection(Section):
    matters_to: ClassVar = {"sft": None, "demonstrations": ("demonstrations", "max_turns")}
    demonstrations: Positive = Field(5000, description="how many are wanted")
    max_turns: Positive = Field(5, description="generations of a demonstration")
    steps: Positive = 300
    batch: Positive = 32
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


class RLSection(Chosen, what="algorithm", kinds="retcon.train.algorithms", chosen_by="algorithm"):
    """An algorithm is a kind of this section: it has `advantages` and `loss`, and ε's of its own."""

    matters_to: ClassVar = {"rl": None}
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
        "shared_advantage": ("no rollout branched off another one", "branches"),
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
    shared_advantage: Literal["own", "mean"] = Field("own", description="of what rollouts that branch off each other "
        "have in common; own: each rollout's on its copy (ARPO's soft one), mean: that of them all (its hard "
        "one)")  # fmt: skip
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
        if self.overlong_buffer >= recipe.rollout.max_tokens:
            raise ValueError(f"rl: overlong_buffer = {self.overlong_buffer} must be less than rollout.max_tokens = "
                             f"{recipe.rollout.max_tokens}")  # fmt: skip

    @property
    def aggregate(self) -> Aggregate:
        """What the loss, and the KL penalty, are averaged over."""
        return "token"

    @property
    def entropy_weight(self) -> float:
        """By how much more a token weighs, for each standard deviation by which its entropy is above the step's mean
        (`retcon.train.objective.entropy_weights`); 0: entropies are not looked at."""
        return 0.0

    def advantages_of_step(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        """Â of each rollout of each group of a step, whose groups need not be of one size."""
        return [self.advantages(rewards) for rewards in groups]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Â of each rollout of a group, (G,) rewards to (G,) advantages."""
        raise self.lacks("advantages(rewards)")

    def loss(self, logprobs: Any, batch: Any, totals: Any, *, masked: Any = None) -> Any:
        """The `Loss` (`retcon.train.objective.loss`) of a micro-batch. logprobs: (B, T) nats, of the policy that is
        trained. batch: a `retcon.train.batch.Batch`. totals: of the whole minibatch (`Totals`). masked: (B, T) bool,
        tokens without a term, or None."""
        raise self.lacks("loss(logprobs, batch, totals, *, masked=None)")


class DPOSection(Section):
    matters_to: ClassVar = {"dpo": None}
    beta: Rate = Field(0.1, description="β: how much a change from the model that it starts from costs")
    steps: Positive = 100
    batch: Positive = Field(16, description="pairs per step")
    lr: Rate = 5e-5
    warmup: Probability = Field(0.1, description="share of the steps in which the learning rate rises")
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: Rate = 1.0
    checkpoint_every: Positive = 50
