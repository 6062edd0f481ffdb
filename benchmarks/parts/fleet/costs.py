"""What a replica can do: keys and values that fit, and how long a forward takes."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """capacity: tokens of keys and values. base, row, context, prefill: seconds of a forward, of each sequence that it
    decodes, of each token that these attend to, and of each token of a history that it computes. chunk: tokens of a
    forward at most. rows: sequences side by side at most."""

    capacity: int
    base: float
    row: float
    context: float
    prefill: float
    chunk: int = 8192
    rows: int = 256

    def steps(self, count: int, rows: int, context: int) -> float:
        """Return the seconds of `count` decoding forwards of `rows` sequences. context: tokens before the first."""
        attended = count * context + rows * count * (count - 1) / 2
        return count * (self.base + self.row * rows) + self.context * attended

    def steps_within(self, seconds: float, rows: int, context: int) -> int:
        """How many whole forwards it takes to fill so many seconds: the least count whose `steps` are as long."""
        square = self.context * rows / 2
        line = self.base + self.row * rows + self.context * context - square
        if seconds <= 0:
            return 0
        count = seconds / line if square == 0 else (math.sqrt(line**2 + 4 * square * seconds) - line) / (2 * square)
        least = max(1, math.floor(count))
        while self.steps(least, rows, context) < seconds - 1e-9:
            least += 1
        return least


PUBLISHED = Costs(capacity=240_000, base=12.0e-3, row=80e-6, context=50e-9, prefill=1 / 16_000)
"""Qwen3-14B in bfloat16 on one H100 with vLLM; where the figures are from stands in docs/models/scale.md."""

MEASURED = (
    (8, 700, 12.54), (16, 700, 13.34), (32, 700, 15.01), (64, 700, 18.94), (128, 700, 26.16), (192, 700, 33.37),
    (253, 700, 38.40), (8, 4000, 14.42), (16, 4000, 17.34), (32, 4000, 21.55), (59, 4000, 28.07),
)  # fmt: skip
"""(sequences, tokens of each, median ms between tokens) of that model, GPU and server: ml.energy's leaderboard, its
tasks lm-arena-chat (answers of 615 tokens) and gpqa (7,000). The tokens are ours: length-biased means, for gpqa as many
as make the 59 sequences at which the server's memory was full fill it."""


def misfit() -> float:
    """The largest share by which `PUBLISHED` is off one of `MEASURED`."""
    return max(abs(1e3 * PUBLISHED.steps(1, rows, rows * each) / ms - 1) for rows, each, ms in MEASURED)
