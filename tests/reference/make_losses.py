"""Losses, gradients and advantages as TRL's and verl's own code computes them, for
tests/unit/train/test_reference_losses.py.

In an environment with trl==1.16.0 and verl==0.9.1 (verl without its dependencies, then ray, tensordict, orjson, dill,
codetiming, hydra-core, pylatexenc, torchdata, cachetools, pandas and pyarrow; no GPU is needed):

    python tests/reference/make_losses.py tests/reference/losses.json

Random ragged batches, in float64. TRL's loss is `GRPOTrainer._compute_loss`, given the log-probs in place of a model;
its advantages are what a real `GRPOTrainer` hands to that method for given rewards. verl's are its own functions; its
dual clip is moved out of reach where it is not asked for. `+ kl`: GRPO with TRL's KL term.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOTrainer
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_rloo_outcome_advantage,
    get_policy_loss_fn,
    kl_penalty,
)
from verl.workers.config import ActorConfig

DUAL = 1.5
LOSS_TOKENS = 16
BETA = 0.04
CLIPS = {
    "grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "dr_grpo": (0.2, 0.2), "gspo": (0.05, 0.06), "cispo": (1.0, 0.28),
    "dual_clip": (0.2, 0.28),
}  # fmt: skip
VERL_MODES = {
    "grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm",
    "gspo": "seq-mean-token-mean", "cispo": "token-mean", "dual_clip": "token-mean",
}  # fmt: skip
TRL_TYPES = {"grpo": "grpo", "dapo": "dapo", "dr_grpo": "dr_grpo", "gspo": "grpo", "cispo": "cispo"}
"""It has no dual clip of this form; GSPO is its `grpo` with ratios of sequences."""


def batch(seed: int) -> dict[str, Tensor]:
    """Ragged: some ids inside are masked, as observations are; ratios on both sides of the clips."""
    draw = torch.Generator().manual_seed(seed)
    rows, width = 6, 11
    old = -3 * torch.rand(rows, width, generator=draw, dtype=torch.float64) - 0.05
    new = old + 0.4 * torch.randn(rows, width, generator=draw, dtype=torch.float64)
    advantages = torch.randn(rows, 1, generator=draw, dtype=torch.float64).expand(rows, width).clone()
    lengths = torch.randint(1, width + 1, (rows, 1), generator=draw)
    mask = (torch.arange(width) < lengths) & (torch.rand(rows, width, generator=draw) < 0.8)
    mask[:, 0] = True
    reference = old + 0.3 * torch.randn(rows, width, generator=draw, dtype=torch.float64)
    return {"old": old, "new": new, "advantages": advantages, "mask": mask, "reference": reference}


def trl_loss(kind: str, given: dict[str, Tensor], new: Tensor, *, beta: float = 0.0) -> Tensor:
    low, high = CLIPS[kind]
    trainer: Any = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if kind == "gspo" else "token",
        beta=beta,
        loss_type=TRL_TYPES[kind],
        epsilon_low=low,
        epsilon_high=1 + high if kind == "cispo" else high,  # there it is the bound itself
        args=SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=False),
        use_vllm=False,
        accelerator=Accelerator(cpu=True),
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        max_completion_length=LOSS_TOKENS,
    )
    ids = torch.zeros(new.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1] + 1, "completion_ids": ids,
        "completion_mask": given["mask"].double(), "advantages": given["advantages"],
        "old_per_token_logps": given["old"], "num_items_in_batch": given["mask"].sum(),
        "ref_per_token_logps": given["reference"],
    }  # fmt: skip
    return GRPOTrainer._compute_loss(trainer, None, inputs)


def verl_loss(kind: str, given: dict[str, Tensor], new: Tensor, **_: Any) -> Tensor:
    low, high = CLIPS[kind]
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=low, clip_ratio_low=low,
        clip_ratio_high=high, clip_ratio_c=DUAL if kind == "dual_clip" else 1e9,
    )  # fmt: skip
    if kind == "dr_grpo":
        config.global_batch_info["loss_scale_factor"] = LOSS_TOKENS
    loss = get_policy_loss_fn(kind if kind in ("gspo", "cispo") else "vanilla")
    return loss(given["old"], new, given["advantages"], given["mask"].double(), VERL_MODES[kind], config)[0]


def losses() -> list[dict[str, Any]]:
    rows = []
    for seed in range(4):
        given = batch(seed)
        row: dict[str, Any] = {name: tensor.tolist() for name, tensor in given.items()}
        wanted: list[tuple[str, Any, str, dict[str, Any]]] = [
            (f"{peer} {kind}", loss, kind, {})
            for peer, loss, kinds in (("trl", trl_loss, TRL_TYPES), ("verl", verl_loss, VERL_MODES))
            for kind in kinds
        ]
        wanted.append(("trl grpo + kl", trl_loss, "grpo", {"beta": BETA}))
        for name, loss, kind, options in wanted:
            new = given["new"].clone().requires_grad_()
            value = loss(kind, given, new, **options)
            value.backward()
            row[name] = {"loss": value.item(), "gradient": new.grad.tolist()}  # type: ignore[union-attr]
        for estimator in ("k1", "k2", "k3"):
            row[f"verl {estimator}"] = kl_penalty(given["new"], given["reference"], estimator).tolist()
        rows.append(row)
    return rows


REWARDS = [[1.0, -1.0, -1.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.25, -0.5, 0.75, 0.125]]


def verl_advantages(scaled: bool) -> list[list[float]]:
    flat = torch.tensor(REWARDS, dtype=torch.float64).flatten()
    given = compute_grpo_outcome_advantage(
        token_level_rewards=flat[:, None],
        response_mask=torch.ones(len(flat), 1, dtype=torch.float64),
        index=np.repeat(np.arange(len(REWARDS)), len(REWARDS[0])),
        norm_adv_by_std_in_grpo=scaled,
    )[0]
    return given[:, 0].reshape(len(REWARDS), -1).tolist()


def verl_others(estimate: Any) -> list[list[float]]:
    flat = torch.tensor(REWARDS, dtype=torch.float64).flatten()
    found = estimate(
        token_level_rewards=flat[:, None],
        response_mask=torch.ones(len(flat), 1, dtype=torch.float64),
        index=np.repeat(np.arange(len(REWARDS)), len(REWARDS[0])),
        config=None,
    )[0]
    return found[:, 0].reshape(len(REWARDS), -1).tolist()


def trl_advantages(scaled: bool) -> list[float]:
    """From a real trainer's step; of all groups together, sorted."""
    import tempfile

    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig

    seen: list[Tensor] = []

    class Looking(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            seen.append(inputs["advantages"])
            return super()._compute_loss(model, inputs)

    words = {f"w{i}": i for i in range(14)} | {"<pad>": 14, "<eos>": 15}
    inner = Tokenizer(WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    config = Qwen3Config(
        vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=16,
    )  # fmt: skip
    prompts = [f"w{i}" for i in range(len(REWARDS))]

    def reward(prompts: list[str], **_: Any) -> list[float]:
        taken: dict[str, int] = defaultdict(int)
        given = []
        for prompt in prompts:
            given.append(REWARDS[int(prompt[1:])][taken[prompt]])
            taken[prompt] += 1
        return given

    size = len(REWARDS) * len(REWARDS[0])
    with tempfile.TemporaryDirectory() as folder:
        trainer = Looking(
            model=Qwen3ForCausalLM(config),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            args=GRPOConfig(
                output_dir=folder, use_cpu=True, max_steps=1, num_generations=len(REWARDS[0]), report_to=[],
                per_device_train_batch_size=size, max_completion_length=4, beta=0.0, bf16=False, shuffle_dataset=False,
                scale_rewards="group" if scaled else "none", save_strategy="no", logging_strategy="no",
                disable_tqdm=True,
            ),
        )  # fmt: skip
        trainer.train()
    return sorted(seen[0].tolist())  # the trainer has shuffled the rows


def main() -> None:
    advantages = {
        "rewards": REWARDS, "verl grpo": verl_advantages(True), "verl dr_grpo": verl_advantages(False),
        "verl rloo": verl_others(compute_rloo_outcome_advantage),
        "verl reinforce_pp": verl_others(compute_reinforce_plus_plus_baseline_outcome_advantage),
        "trl grpo": trl_advantages(True), "trl dr_grpo": trl_advantages(False),
    }  # fmt: skip
    import trl
    import verl

    versions = {"trl": trl.__version__, "verl": verl.__version__, "torch": torch.__version__}
    settings = {"clips": CLIPS, "dual": DUAL, "loss_tokens": LOSS_TOKENS, "beta": BETA}
    made = {"versions": versions, "settings": settings, "losses": losses(), "advantages": advantages}
    Path(sys.argv[1]).write_text(json.dumps(made) + "\n")


if __name__ == "__main__":
    main()
