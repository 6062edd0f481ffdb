"""What the base model is trained on, as rows of tokens: documents of the corpus, and random tokens said again and
again.

The second kind is what makes a small transformer learn to copy: on documents alone that takes several times as long.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from retcon.tasks.corpus import documents

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
    """A row (length,) int64 of random ids in [first_id, vocabulary) that come back.

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
