"""What metrics are called: ours, as metrics.jsonl has them, and those that users of verl and of TRL know.

verl's names are of `verl/trainer/ppo/metric_utils.py` and its actor, TRL's of GRPOTrainer, SFTTrainer and DPOTrainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Names = Literal["retcon", "verl", "trl"]


@dataclass(frozen=True, slots=True)
class Name:
    """One metric. about: what it is. verl, trl: what it is called there, "" where they have no such metric."""

    own: str
    about: str
    verl: str = ""
    trl: str = ""


ALL = (
    Name("stage", "number of the stage, from 1; absent where the recipe has no stages"),
    Name("reward", "mean of the rollouts' rewards", "critic/score/mean", "reward"),
    Name("reward_std", "standard deviation of the rewards within a group, mean over groups", "", "reward_std"),
    Name("same_reward", "share of groups whose rewards are all equal, which teach nothing", "", "frac_reward_zero_std"),
    Name("pass_rate", "share of rollouts with a positive reward"),
    Name("eval_pass_rate", "pass@1 on held-out problems, after steps that evaluate.every names"),
    Name("first_try_failure_rate", "share of first tries that failed, as they happened"),
    Name("response_tokens", "tokens of a rollout after its prompt, observations included, mean",
         "response_length/mean", "completions/mean_length"),
    Name("prompt_tokens", "tokens of a prompt, mean over rollouts", "prompt_length/mean"),
    Name("cut_off", "share of rollouts that ended for want of tokens or turns",
         "response_length/clip_ratio", "completions/clipped_ratio"),
    Name("turns", "generations of a rollout, mean", "num_turns/mean"),
    Name("raw_calls", "calls of a rollout, those that were repaired among them, mean",
         "tool_call_counts/mean", "tools/call_frequency"),
    Name("call_failure_rate", "failed calls among all calls, as they happened", "", "tools/failure_frequency"),
    Name("loss", "of the policy, or of supervised or preference training", "actor/pg_loss", "loss"),
    Name("kl", "estimate of KL(π_old ‖ π), nats a token", "actor/ppo_kl"),
    Name("kl_reference", "of a run with rl.kl: KL to the model that it began from, by rl.kl_estimator; nothing without",
         "actor/kl_loss", "kl"),
    Name("entropy_estimate", "mean −log π of the tokens that are trained on, nats: an estimate of the entropy",
         "actor/entropy", "entropy"),
    Name("clip_fraction", "share of tokens whose ratio is clipped", "actor/pg_clipfrac", "clip_ratio/region_mean"),
    Name("grad_norm", "of the gradient before it is clipped", "actor/grad_norm", "grad_norm"),
    Name("lr", "learning rate", "actor/lr", "learning_rate"),
    Name("total_tokens", "prompts and responses of a step's rollouts", "perf/total_num_tokens"),
    Name("step_seconds", "wall seconds of a step", "perf/time_per_step", "step_time"),
    Name("tokens_per_second", "total_tokens in step_seconds", "perf/throughput"),
    Name("rollout_seconds", "wall seconds of a step's rollouts", "timing_s/gen"),
    Name("train_seconds", "wall seconds of a step's updates", "timing_s/update_actor"),
    Name("sync_seconds", "wall seconds until the engine has the new weights", "timing_s/update_weights"),
    Name("accuracy", "of preference training: share of pairs whose margin is positive", "", "rewards/accuracies"),
    Name("margin", "of preference training: mean margin", "", "rewards/margins"),
    Name("chosen", "of preference training: mean β log π/π_ref of what was chosen", "", "rewards/chosen"),
    Name("rejected", "of preference training: the same of what was rejected", "", "rewards/rejected"),
)  # fmt: skip
"""Those that others have too, and what a line on the terminal shows; the rest keep their names."""


def renamed(metrics: Mapping[str, float], names: Names) -> dict[str, float]:
    """The metrics under these names; what is not known there is `retcon/…`."""
    if names == "retcon":
        return dict(metrics)
    others = {name.own: name.verl if names == "verl" else name.trl for name in ALL}
    return {others.get(name) or f"retcon/{name}": value for name, value in metrics.items()}
