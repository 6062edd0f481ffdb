"""The random stream of one request."""

from __future__ import annotations

import numpy as np

BLOCK = 64


class Draws:
    """Uniforms in [0, 1), one an id. Philox is counter-based: the stream depends on the seed alone, never on what else
    is in the batch, and is drawn in blocks, however many will be needed."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._block: list[float] = []

    def next(self) -> float:
        if not self._block:
            self._block = self._generator.random(BLOCK).astype(np.float32).tolist()[::-1]
        return self._block.pop()
