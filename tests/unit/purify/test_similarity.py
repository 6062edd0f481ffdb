import difflib
import math
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from programs import code_pairs
from retcon.purify.similarity import at_least, similarity

program = st.text(alphabet=string.ascii_lowercase[:4] + " ()\n", max_size=60)
characters = st.text(alphabet="ab\né—\ud800\udc00😀", max_size=30)


def ratio(a, b):
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def around(number):
    return math.nextafter(number, -1), number, math.nextafter(number, 2)


@given(program, program)
def test_similarity_is_the_standard_librarys_ratio(a, b):
    assert similarity(a, b) == ratio(a, b)


@given(characters, characters)
@example("\ud83d\ude00", "😀")
@example("\x00a", "a\x00")
def test_similarity_is_of_code_points_whatever_they_are(a, b):
    assert similarity(a, b) == ratio(a, b)


few = st.text(alphabet="ab", max_size=4)


@given(few, st.integers(0, 20), few, few, few, st.integers(0, 20))
@example("ab", 20, "", "a", "", 0)
@example("a", 9, "b", "", "a", 9)
def test_similarity_of_texts_with_equal_ends_that_repeat_themselves(begin, often, mid, other, end, again):
    """Long ends are matched first only where no other block is as long."""
    a, b = (begin * often + inside + end * again for inside in (mid, other))
    assert similarity(a, b) == ratio(a, b)


@given(code_pairs())
def test_similarity_and_the_decision_of_programs_are_the_standard_librarys(pair):
    expected = ratio(*pair)
    assert similarity(*pair) == expected
    for gamma in (*around(expected), 0.25, 0.5, 0.75, expected - 0.1, expected + 0.1):
        assert at_least(*pair, gamma) == (expected >= gamma)


@given(st.one_of(st.tuples(program, program), st.tuples(characters, characters)), st.floats(-0.5, 1.5))
def test_the_decision_is_the_standard_librarys_at_every_gamma(pair, gamma):
    expected = ratio(*pair)
    for asked in (gamma, *around(expected), 0, 0.5, 1):
        assert at_least(*pair, asked) == (expected >= asked)


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_gamma_that_is_a_ratio_is_reached_by_exactly_that_many_characters(matched, more):
    """Of texts that share one block, so that nothing but rounding can go wrong."""
    a, b = "x" * matched, "x" * matched + "y" * more
    gamma = 2.0 * matched / (2 * matched + more)
    assert at_least(a, b, gamma)
    assert at_least(b, a, gamma)
    assert not at_least(a, b, math.nextafter(gamma, 2))
    assert not at_least(a[1:], b, gamma)


@pytest.mark.parametrize("gamma", [-math.inf, -1.0, 0, 0.5, 1, math.nextafter(1, 2), math.inf, math.nan])
@pytest.mark.parametrize(("a", "b"), [("", ""), ("a", ""), ("", "a"), ("a", "a"), ("a", "b"), ("ab", "ba")])
def test_the_decision_on_the_smallest_texts(a, b, gamma):
    assert at_least(a, b, gamma) == (ratio(a, b) >= gamma)


def test_frequent_characters_of_long_programs_count():
    long = "x" * 300
    assert similarity(long, "y" + long) > 0.99
    assert at_least(long, "y" + long, 0.99)


def test_similarity_is_not_symmetric():
    a, b = "tide", "diet"
    assert similarity(a, b) == 0.25
    assert similarity(b, a) == 0.5
    assert at_least(b, a, 0.5)
    assert not at_least(a, b, 0.5)


def test_empty_programs_are_equal():
    assert similarity("", "") == 1
    assert similarity("abc", "abc") == 1
    assert similarity("abc", "xyz") == 0


def test_frequent_characters_of_texts_of_200_and_more_count():
    a, b = "x = 1\n" * 40, "y = 2\n" * 40
    assert similarity(a, b) == ratio(a, b) > 0.6


def test_long_texts_that_have_a_few_characters_in_common():
    a, b = "a" * 400 + "xyz", "b" * 400 + "xqyqz"
    assert similarity(a, b) == ratio(a, b) > 0
    a, b = "y" + "a" * 1100 + "xyz", "xyz" + "b" * 1100 + "y"
    assert similarity(a, b) == ratio(a, b) > 0
