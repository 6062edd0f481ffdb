"""metrics.jsonl: a line of numbers for every step of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from retcon.config.schema import SECTIONS, Recipe, stages_of
from retcon.core.errors import RecordError
from retcon.core.texts import counted

Metrics = dict[str, float | None]
"""One step, as a line of metrics.jsonl: name to value, None if missing."""


def read_metrics(path: Path, *, cut_off: bool = False) -> list[Metrics]:
    """Read the numbers of each line of a metrics file.

    cut_off: the file may end in a line that was cut off as it was written, and need not be there. Raises RecordError by
    line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        if cut_off and isinstance(error, FileNotFoundError):
            return []
        raise RecordError(f"{path}: the metrics cannot be read: {error}") from error
    steps: list[Metrics] = []
    for number, line in enumerate(lines, start=1):
        try:
            step = msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if cut_off and number == len(lines):
                break
            raise RecordError(f"{path}, line {number}: not a step's metrics: {error}") from error
        steps.append({k: v for k, v in step.items() if v is None or isinstance(v, int | float)})
    return steps


def mechanisms_of(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    """Map active keys and values (`rl.dual_clip=3.0`) to their `Section.mechanisms`."""
    return {
        f"{name}.{key}={str(value).lower() if value is True else value}": mechanism
        for name in SECTIONS
        for key, mechanism in getattr(recipe, name).mechanisms.items()
        if (value := getattr(getattr(recipe, name), key)) and value not in ("none", "keep", "own", "root")
    }


def idle_mechanisms(recipe: Recipe, steps: Sequence[Metrics]) -> list[str]:
    """Name the mechanisms that never acted in a run; steps without their metrics do not count."""
    acted: dict[tuple[str, str], list[bool]] = {}
    for stage in stages_of(recipe):
        for key, (never, *metrics) in mechanisms_of(stage.recipe).items():
            lines = [line for line in steps if (line.get("stage") or 1) == stage.number and line.keys() & metrics]
            acted.setdefault((key, never), []).extend(any(line.get(name) for name in metrics) for line in lines)
    return [
        f"{key} never acted in {counted(len(found), 'step')}: {never}"
        for (key, never), found in acted.items()
        if found and not any(found)
    ]


# What metrics are called: ours, as metrics.jsonl has them, and those that users of verl and of TRL know.
#
# verl's names are of `verl/trainer/ppo/metric_utils.py` and its actor, TRL's of GRPOTrainer, SFTTrainer and DPOTrainer.

Names = Literal["retcon", "verl", "trl"]


@dataclass(frozen=True, slots=True)
class Name:
    """Names of one metric. about: its meaning. verl, trl: its names there, "" where they have no such metric."""

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


def rename(metrics: Mapping[str, float], names: Names) -> dict[str, float]:
    """Rename metrics; those unknown there become `retcon/…`."""
    if names == "retcon":
        return dict(metrics)
    others = {name.own: name.verl if names == "verl" else name.trl for name in ALL}
    return {others.get(name) or f"retcon/{name}": value for name, value in metrics.items()}
