#!/usr/bin/env python
"""Make the base model inside the package anew: `make base`.

A Qwen3 configuration of 0.68 M parameters, trained from scratch on synthetic text (`parts/corpus.py`) and on
repeated random ids. Seeded; under an hour on 2 cores; continues where it was. What it saw and what it can do stands in
`docs/models/base.md`.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from parts.corpus import documents, vocabulary
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import retcon
from retcon.chat.families.markdown import FAMILY
from retcon.chat.types import CONTROLS, END_OF_TEXT, TURN_END
from retcon.core.seeds import derive

# What the base model is trained on, as rows of tokens: documents of the corpus, and random tokens repeated and
# again.
#
# The second kind is what makes a small transformer learn to copy: on documents alone that takes several times as long.

Row = NDArray[np.int64]
PERIODIC = 0.8  # share of repeated rows with one segment alone
PERIOD = (4, 48)  # ids of that segment
SEGMENT = (2, 16)  # ids of a segment where there are several


def document_rows(tokenizer: Tokenizer, length: int, separator: int, seed: int) -> Iterator[Row]:
    """An endless stream of rows, (length,) int64: documents one after the other, `separator` before each."""
    stream = documents(seed)
    ids: list[int] = []
    while True:
        while len(ids) < length:
            ids.append(separator)
            ids.extend(tokenizer.encode(next(stream)).ids)
        yield np.array(ids[:length], np.int64)
        ids = ids[length:]


def repeated_row(rng: random.Random, length: int, first_id: int, vocabulary: int) -> Row:
    """Make a row (length,) of repeated random ids from [first_id, vocabulary).

    Most rows are periodic, which is what teaches copying first; the others string a few segments together in an order
    drawn again and again, so that what follows an id depends on which segment it is in.
    """

    def drawn(count: int) -> list[int]:
        return [rng.randrange(first_id, vocabulary) for _ in range(count)]

    if rng.random() < PERIODIC:
        segments = [drawn(rng.randint(*PERIOD))]
    else:
        segments = [drawn(rng.randint(*SEGMENT)) for _ in range(rng.randint(2, 6))]
    ids: list[int] = []
    while len(ids) < length:
        ids.extend(rng.choice(segments))
    return np.array(ids[:length], np.int64)


# The base model's tokenizer: words, numbers in groups of one to three digits, bytes for everything else; lossless.
#
# Numbers in groups, not digits: a small model copies two ids more surely than four.

PIECES = r"```|\p{N}{1,3}| ?_?[A-Za-z]+|\n *| ?[^\sA-Za-z\p{N}]|\s+"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose vocabulary is a list: a piece of text that is in it is one id, else its bytes."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = (to_bytes.pre_tokenize_str(piece)[0][0] for piece in vocabulary())
    names = dict.fromkeys((*CONTROLS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces))
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROLS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END_OF_TEXT, chat_template=FAMILY.template
    )


SAVE_EVERY = 250


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """How the base model is made; steps × batch × length ids in all."""

    seed: int = 0
    steps: int = 6000
    batch: int = 16
    length: int = 256
    lr: float = 2e-3
    warmup: float = 0.05
    weight_decay: float = 0.01
    repeated_first: float = 0.5  # share of rows of repeated ids in the first `repeated_until` of the steps
    repeated_then: float = 0.2
    repeated_until: float = 0.5
    threads: int = 1  # so that it repeats bit for bit


def base_config(vocabulary: int) -> Qwen3Config:
    """Width 128, 2 layers, head size 32: small enough to train on a laptop, shaped so that serving engines take it."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )


def batches(recipe: BaseRecipe, tokenizer: PreTrainedTokenizerFast) -> Iterator[Tensor]:
    """One (batch, length) int64 a step."""
    separator = int(tokenizer.pad_token_id)
    rows = document_rows(tokenizer.backend_tokenizer, recipe.length, separator, recipe.seed)
    for step in range(recipe.steps):
        rng = random.Random(derive("base", recipe.seed, step))
        share = recipe.repeated_first if step < recipe.repeated_until * recipe.steps else recipe.repeated_then
        count = round(share * recipe.batch)
        chosen: list[Row] = [repeated_row(rng, recipe.length, 3, len(tokenizer)) for _ in range(count)]
        chosen += [next(rows) for _ in range(recipe.batch - count)]
        yield torch.from_numpy(np.stack(chosen))


def make_base(recipe: BaseRecipe, out: Path, work: Path) -> Path:
    """Train with checkpoints in `work`; write the Hugging Face folder `out`."""
    torch.set_num_threads(recipe.threads)
    torch.manual_seed(recipe.seed)
    tokenizer = build_tokenizer()
    model = Qwen3ForCausalLM(base_config(len(tokenizer)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.lr, total_steps=recipe.steps, pct_start=recipe.warmup, anneal_strategy="linear"
    )
    work.mkdir(parents=True, exist_ok=True)
    state = work / "state.pt"
    done = _restore(state, recipe, model, optimiser, schedule)
    started = time.monotonic()
    columns = (TextColumn("base model"), BarColumn(), TextColumn("{task.fields[status]}"), TimeRemainingColumn())
    with Progress(*columns) as progress, (work / "metrics.jsonl").open("a") as metrics:
        bar = progress.add_task("", total=recipe.steps, completed=done, status="")
        for step, ids in enumerate(batches(recipe, tokenizer)):
            if step < done:
                continue
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            progress.update(bar, completed=step + 1, status=f"step {step + 1} loss {loss.item():.2f}")
            if (step + 1) % SAVE_EVERY == 0:
                line = {"step": step + 1, "loss": loss.item(), "seconds": time.monotonic() - started}
                metrics.write(json.dumps(line | {"copied": copy_accuracy(model, len(tokenizer))}) + "\n")
                metrics.flush()
                _save(state, recipe, step + 1, model, optimiser, schedule)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@torch.inference_mode()
def copy_accuracy(model: Qwen3ForCausalLM, vocabulary: int, rows: int = 16, length: int = 24) -> float:
    """Return the share of tokens copied right after one showing, greedily."""
    random_ids = torch.randint(3, vocabulary, (rows, length), generator=torch.Generator().manual_seed(0))
    logits = model(input_ids=torch.cat([random_ids, random_ids], 1)).logits
    right = logits[:, length:-1].argmax(-1) == random_ids[:, 1:]
    found: float = right.double().mean().item()
    return found


def _save(path: Path, recipe: BaseRecipe, step: int, *parts: object) -> None:
    temporary = path.with_suffix(".tmp")
    states = [part.state_dict() for part in parts]  # type: ignore[attr-defined]
    torch.save({"recipe": asdict(recipe), "step": step, "states": states}, temporary)
    temporary.replace(path)


def _restore(path: Path, recipe: BaseRecipe, *parts: object) -> int:
    """The step to go on from; 0 where there is nothing, or another recipe's."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    if saved["recipe"] != asdict(recipe):
        return 0
    for part, state in zip(parts, saved["states"], strict=True):
        part.load_state_dict(state)  # type: ignore[attr-defined]
    return int(saved["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description="make the base model that comes with the package")
    parser.add_argument("--out", type=Path, default=Path(retcon.__file__).parent / "assets" / "base")
    parser.add_argument("--work", type=Path, default=Path("runs/base"))
    parser.add_argument("--threads", type=int, default=BaseRecipe().threads)
    arguments = parser.parse_args()
    console = Console()
    try:
        out = make_base(BaseRecipe(threads=arguments.threads), arguments.out, arguments.work)
    except KeyboardInterrupt:
        console.print(f"stopped; what is done is in {arguments.work}: run the same command to go on")
        raise SystemExit(130) from None
    console.print(f"the base model is in {out}; try it: make quickstart")


if __name__ == "__main__":
    main()
