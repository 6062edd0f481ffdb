"""Where the engine cuts what it feeds: bounded in ids, attention scores and logits, and no oftener than that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from retcon.engine.local.forward import CHUNK_IDS, CHUNK_LOGITS, chunk_end

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("vocabulary", [2_304, 151_936])
def test_a_prompt_whose_last_logits_are_wanted_is_fed_at_once(vocabulary: int) -> None:
    assert chunk_end(0, 1000, 999, vocabulary) == 1000


@given(end=st.integers(1, 20_000), share=st.floats(0, 1), vocabulary=st.sampled_from([97, 2_304, 151_936]))
def test_every_stretch_is_bounded_and_the_last_one_reaches_the_end(end: int, share: float, vocabulary: int) -> None:
    wanted, start = min(int(share * end), end - 1), 0
    while start < end:
        cut = chunk_end(start, end, wanted, vocabulary)
        assert start < cut <= min(end, start + CHUNK_IDS)
        assert cut - max(start, wanted) <= max(16, CHUNK_LOGITS // vocabulary)
        start = cut
