#!/usr/bin/env python
"""One GRPO step of TRL's trainer, in the environment that `step.py` describes.

    TRL-ENVIRONMENT/bin/python benchmarks/parts/trl_step.py --precision autocast

TRL as its users would have it fast on a CPU: no reference model (beta 0), no gradient checkpointing, one pass over a
batch, so that with one minibatch it computes no old log-probs; no logging, no saving, no progress bars. Completions
have exactly NEW_IDS ids, as the end of text has an id that the model's head does not know.

--precision: `fp32`; `autocast` (bf16=True over fp32 weights, TRL's default); `bf16` (bf16=True over bf16 weights, which
AdamW then updates in bf16). --paged: its continuous batching in place of `generate`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import step_shape as shape
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    """A word for every id of the model; padding and the end of text lie beyond its vocabulary."""
    words = {f"w{i}": i for i in range(shape.VOCAB)} | {"<pad>": shape.VOCAB, "<eos>": shape.VOCAB + 1}
    inner = Tokenizer(WordLevel(words, unk_token="w0"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


class Timed(GRPOTrainer):
    """The trainer, with the CPU seconds of its parts: `spent`. What a part calls is not counted twice."""

    spent: Counter[str]
    _inner: float = 0.0

    def _timed(self, phase: str, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        before, self._inner = self._inner, 0.0
        began = time.process_time()
        result = call(*args, **named)
        seconds = time.process_time() - began
        self.spent[phase] += seconds - self._inner
        self._inner = before + seconds
        return result

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        return self._timed("generate", super()._generate_single_turn, *args, **named)

    def _generate_and_score_completions(self, *args: Any, **named: Any) -> Any:
        """Tokenising, decoding, rewards and advantages, beside what the two others count."""
        return self._timed("prepare", super()._generate_and_score_completions, *args, **named)

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        phase = "train" if torch.is_grad_enabled() else "score"
        return self._timed(phase, super()._get_per_token_logps_and_entropies, *args, **named)


class Steps(TrainerCallback):
    """A step for every order: all that the process computes from one to the next is the step's."""

    def __init__(self, orders: shape.Orders, minibatches: int) -> None:
        self.orders, self.minibatches = orders, minibatches
        self.trainer: Timed
        self._began: tuple[float, float] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.minibatches:
            return
        if self._began is not None:
            self._report(*self._began)
        if not self.orders.wait():
            raise KeyboardInterrupt  # the driver has what it wanted
        self.trainer.spent = Counter()
        self._began = time.perf_counter(), time.process_time()

    def _report(self, wall: float, cpu: float) -> None:
        spent, total = self.trainer.spent, time.process_time() - cpu
        phases = {name: spent[name] for name in ("generate", "score", "prepare")}
        phases["train"] = total - sum(phases.values())
        self.orders.answer({"wall": time.perf_counter() - wall, "phases": phases})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "autocast", "bf16"), default="autocast")
    parser.add_argument("--minibatches", type=int, default=1)
    parser.add_argument("--paged", action="store_true")
    options = parser.parse_args()
    orders = shape.Orders("trl", "torch", "transformers")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(shape.model_config())
    if options.precision == "bf16":
        model.to(torch.bfloat16)
    micro_batches = shape.PROMPTS * shape.GROUP // shape.MICRO_BATCH
    scores = shape.rewards()
    steps = Steps(orders, options.minibatches)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=options.precision != "fp32",
            per_device_train_batch_size=shape.MICRO_BATCH,
            gradient_accumulation_steps=micro_batches // options.minibatches,
            steps_per_generation=micro_batches,
            num_generations=shape.GROUP,
            max_completion_length=shape.NEW_IDS,
            num_iterations=1,
            beta=0.0,
            loss_type="dapo",
            epsilon_high=0.28,
            gradient_checkpointing=False,
            use_transformers_continuous_batching=options.paged,
            learning_rate=shape.LR,
            lr_scheduler_type="constant",
            max_steps=10_000,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        words = [" ".join(f"w{i}" for i in ids) for ids in islice(shape.prompts(), 1000)]
        trainer = Timed(
            model=model,
            reward_funcs=lambda completions, **_: list(islice(scores, len(completions))),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": words}),
            processing_class=tokenizer(),
            callbacks=[steps],
        )
        steps.trainer = trainer
        try:
            trainer.train()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
