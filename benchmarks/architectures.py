#!/usr/bin/env python
"""Serve and train tiny random models of transformers' causal architectures.

    python benchmarks/architectures.py [NAME …] [--markdown]

Of each key of `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES` a model below 5 M parameters is made from its configuration class.
Seven requests share an engine over four turns of greedy and sampled ids: observations of several lengths are appended,
one request is rolled back in each turn, one forked, one scored; then the same with LoRA adapters. Compared are
the engine's log-probs with those of the model's plain forward over the whole history, greedy ids with its most likely
ids, and the log-probs that training computes. --markdown prints the table of docs/models/architectures.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from parts.measure import machine
from parts.tiny_models import VOCAB, make
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from retcon.config.schema import LoraSection
from retcon.core.errors import RetconError
from retcon.core.types import Sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.devices import DEFAULT_COMPUTING
from retcon.models.lora import Adapter, check_lora
from retcon.models.placing import check_logits
from retcon.train.kernels.forward import _packs, forwards

REQUESTS, TURNS, MAX_LEN, TOLERANCE = 7, 4, 128, 1e-4
LENGTHS = (9, 13, 9, 3, 1, 21, 9)


@dataclass(slots=True)
class Row:
    """What came out of one architecture. how: packed, own forward or refused, with the reason. trained, adapted: how it
    is trained, and whether LoRA adapters are. worst: nats. greedy: whether all greedy ids are the most likely ones."""

    name: str
    how: str
    trained: str = ""
    adapted: str = ""
    worst: float = 0.0
    greedy: bool = True

    @property
    def good(self) -> bool:
        return self.greedy and self.worst < TOLERANCE

    def cells(self) -> str:
        worst = f"{self.worst:.0e}" if not self.how.startswith(("refused", "no ")) else ""
        equal = ("yes" if self.greedy else "**no**") if worst else ""
        return f"| `{self.name}` | {self.how} | {self.trained} | {self.adapted} | {worst} | {equal} |"


class Deviations:
    """A model's own log-probs beside the engine's."""

    def __init__(self, model: Any) -> None:
        self.model, self.worst, self.greedy = model, 0.0, True

    def check(self, ids: Sequence[int], start: int, logprobs: Sequence[float], *, greedy: bool = False) -> None:
        """The log-probs of ids[start:]; greedy: whether these were the most likely ids."""
        with torch.no_grad():
            logits = (
                self.model(input_ids=torch.tensor([list(ids[:-1])]), use_cache=False).logits[0, start - 1 :].float()
            )
        nexts = torch.tensor(list(ids[start:]))
        own = logits.log_softmax(-1).gather(1, nexts[:, None])[:, 0]
        self.worst = max(self.worst, float((own - torch.tensor(logprobs)).abs().max()))
        self.greedy &= not greedy or torch.equal(logits.argmax(-1), nexts)


async def converse(model: Any, engine: LocalEngine, turns: int) -> Deviations:
    """Seven requests over so many turns; see above."""
    draw, found = random.Random(1), Deviations(model)

    def some(count: int) -> list[int]:
        return [draw.randrange(3, VOCAB) for _ in range(count)]

    histories = {str(n): some(length) for n, length in enumerate(LENGTHS)}
    for turn in range(turns):
        params = {n: SamplingParams(temperature=float(int(n) % 2), max_tokens=5, seed=turn) for n in histories}
        made = await asyncio.gather(*(engine.generate(n, ids, params[n]) for n, ids in histories.items()))
        for (n, ids), one in zip(histories.items(), made, strict=True):
            found.check([*ids, *one.ids], len(ids), one.logprobs, greedy=params[n].temperature == 0)
        whole = {n: [*ids, *one.ids] for (n, ids), one in zip(histories.items(), made, strict=True)}
        fork, back, scored = (str((turn + k) % REQUESTS) for k in (0, 2, 4))
        forked = [*whole[fork][:-3], *some(4)]
        engine.fork(f"fork {turn}", fork, len(whole[fork]) - 3)
        histories = {n: [*ids, *some(1 + 3 * (int(n) % 3))] for n, ids in whole.items()}
        histories[back] = [*whole[back][:-4], *some(2)]
        asked = {f"fork {turn}": (forked, len(forked) - 4), scored: (histories[scored], len(whole[scored]) - 2)}
        values = await asyncio.gather(*(engine.score(n, *what) for n, what in asked.items()))
        for (ids, start), logprobs in zip(asked.values(), values, strict=True):
            found.check(ids, start, logprobs)
    return found


def training(model: Any) -> tuple[str, float]:
    """Return how training computes log-probs, and their largest deviation."""
    draw = random.Random(2)
    prompt = [draw.randrange(3, VOCAB) for _ in range(7)]
    rows = [(*prompt, *(draw.randrange(3, VOCAB) for _ in range(count))) for count in (4, 9, 30)]
    samples = [Sample(ids, (0,) * 7 + (1,) * (len(ids) - 7), (None,) * len(ids), (0,) * len(ids)) for ids in rows]
    found = Deviations(model)
    check_logits(model, "it")
    pairs: list[tuple[Sample, list[float]]] = []
    with forwards(model, samples, DEFAULT_COMPUTING) as parts:
        for part in parts:
            part.logprobs.sum().backward()
            pairs += zip(part.samples, part.logprobs.tolist(), strict=True)
    for sample, logprobs in pairs:
        found.check(sample.ids, 7, logprobs[7 : len(sample.ids)])
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if not grads or not all(bool(grad.isfinite().all()) for grad in grads):
        return "no finite gradient", found.worst
    model.zero_grad()
    return "packed" if _packs(model, samples) else "padded", found.worst


def row_of(key: str) -> Row:
    """Make, serve and train a model of the architecture."""
    try:
        model = make(key)
    except Exception as error:  # noqa: BLE001 - whatever a configuration class objects to
        return Row(key, f"no tiny model: {_brief(error)}")
    try:
        engine = LocalEngine(model, max_len=MAX_LEN)
        plain = asyncio.run(converse(model, engine, TURNS))
    except RetconError as error:
        return Row(key, f"refused: {_brief(error)}")
    row = Row(key, _how(engine.decoding), worst=plain.worst, greedy=plain.greedy)
    try:
        row.trained, worst = training(model)
        row.worst = max(row.worst, worst)
    except RetconError as error:
        row.trained = f"refused: {_brief(error)}"
    except Exception as error:  # noqa: BLE001 - so that the others are tried too
        row.trained = f"**{_brief(error)}**"
    try:
        check_lora(LoraSection(rank=2), model.config)
        Adapter(model, LoraSection(rank=2), seed=0)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        adapted = asyncio.run(converse(model, LocalEngine(model, max_len=MAX_LEN), 2))
    except (RetconError, ValueError) as error:
        row.adapted = f"refused: {_brief(error)}"
        return row
    row.adapted, row.worst, row.greedy = "yes", max(row.worst, adapted.worst), row.greedy and adapted.greedy
    return row


def _how(decoding: str) -> str:
    kind, _, reason = decoding.partition(": ")
    if kind != "the model's own forward":
        return "packed"
    return f"own forward: {reason.rpartition('; ')[2]}"


def _brief(error: Exception) -> str:
    words = str(error) if isinstance(error, RetconError) else f"{type(error).__name__}: {error}"
    text = " ".join(words.split())
    return text.replace("|", "\\|")[:160]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="keys of the mapping; all by default")
    parser.add_argument("--markdown", action="store_true", help="print a table")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    rows = []
    for key in options.names or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        rows.append(row_of(key))
        print(rows[-1].cells(), flush=True, file=sys.stderr if options.markdown else sys.stdout)
    if options.markdown:
        print("| architecture | decodes | trains | LoRA | greatest difference, nats | greedy ids equal |")
        print("|---|---|---|---|---|---|")
        print("\n".join(row.cells() for row in rows))
    counts = {kind: sum(row.how.startswith(kind) for row in rows) for kind in ("packed", "own", "refused", "no tiny")}
    print(f"\n{counts}, wrong: {[row.name for row in rows if not row.good]}\n{machine()}", file=sys.stderr)
    raise SystemExit(any(not row.good for row in rows))
