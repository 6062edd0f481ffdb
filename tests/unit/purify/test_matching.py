import difflib
from collections import defaultdict

import cydifflib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import code_pairs
from retcon.purify.similarity import bounds, common_blocks, sweep

TIES = st.text(alphabet="ab", max_size=40) | st.text(alphabet="aé\n\ud800😀", max_size=40)
REPEATS = st.builds(lambda text, times: (text * times)[:150], st.text(alphabet="ab \n", min_size=1), st.integers(1, 50))


def matched(a, b):
    return sum(size for _, _, size in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())


def matched_in_programs(a, b):
    """The same from difflib's algorithm in C: in Python it takes a second for a few dozen programs."""
    return sum(size for _, _, size in cydifflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())


def longest(a, b):
    return difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match().size


def by_hand(a, b, k):
    """The maximal common blocks, by looking at every pair of positions from which k characters are the same."""
    places = defaultdict(list)
    for j in range(len(b) - k + 1):
        places[b[j : j + k]].append(j)
    found = set()
    for i in range(len(a) - k + 1):
        for j in places.get(a[i : i + k], ()):
            if i and j and a[i - 1] == b[j - 1]:
                continue
            size = k
            while i + size < len(a) and j + size < len(b) and a[i + size] == b[j + size]:
                size += 1
            found.add((i, j, size))
    return found


@settings(max_examples=25)
@given(code_pairs())
def test_the_bounds_of_programs_hold_never_widen_and_meet(pair):
    exact = matched_in_programs(*pair)
    low, high = 0, min(map(len, pair))
    for lower, upper in bounds(*pair):
        assert low <= lower <= exact <= upper <= high
        low, high = lower, upper
    assert low == high == exact


@given(TIES | REPEATS, TIES | REPEATS)
def test_common_blocks_are_all_maximal_ones_of_their_length(a, b):
    blocks, k = common_blocks(a, b, 8)
    assert k in (8, 16, 32, 64, 128, 256)
    assert len(blocks) == len(set(blocks))
    assert set(blocks) == by_hand(a, b, k)
    assert len(blocks) <= len(a) + len(b)


@pytest.mark.parametrize(
    ("a", "b", "block"),
    [
        ("abcdefgh_x", "y_abcdefgh", (0, 2, 8)),
        ("abcdefgh", "abcdefgh", (0, 0, 8)),
        ("ÿ" * 8 + "x", "y" + "ÿ" * 8, (0, 1, 8)),
    ],
)
def test_a_common_block_of_the_very_length_that_is_asked_for(a, b, block):
    assert common_blocks(a, b, 8) == ([block], 8)


@settings(max_examples=8)
@given(code_pairs(), st.sampled_from([8, 16, 32]))
def test_common_blocks_of_programs(pair, k):
    blocks, k = common_blocks(*pair, k)
    assert set(blocks) == by_hand(*pair, k)


@given(TIES | REPEATS, TIES | REPEATS)
def test_a_sweep_matches_what_difflib_matches(a, b):
    lower = list(sweep(a, b, longest(a, b) + 1))
    assert lower == sorted(lower)
    assert lower[-1] == matched(a, b)


def test_a_sweep_goes_on_behind_a_block_that_overlaps_the_last_match():
    """`xyx` begins at 0 and at 2; had `abc` to wait, its `bc` would be matched where it stands first in a."""
    assert list(sweep("xyxyxbc2abc", "xyx1abc", 4))[-1] == matched("xyxyxbc2abc", "xyx1abc") == 6


@settings(max_examples=20)
@given(code_pairs())
def test_a_sweep_over_programs(pair):
    assert list(sweep(*pair, min(map(len, pair)) + 1))[-1] == matched_in_programs(*pair)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x = 1\n" * 220, "x = 2\n" * 230), ("print(x)\n" * 130, "print(y)\n" * 130),
        ("a" * 1300, "a" * 700 + "b" + "a" * 400), ("ab" * 700, "ba" * 700 + "c"),
        ((" " * 40 + "x\n") * 30, (" " * 38 + "y\n") * 30), ("x = 1\n" * 220, "y = '数'\n" * 200 + "x = 1\n" * 30),
    ],
)  # fmt: skip
def test_programs_that_repeat_a_line_over_and_over(a, b):
    """Of more than a million pairs of positions; difflib itself would take minutes for these tests."""
    *_, (lower, upper) = bounds(a, b)
    assert lower == upper == matched_in_programs(a, b)
