import difflib
import string

from hypothesis import given
from hypothesis import strategies as st

from retcon.purify.similarity import similarity

program = st.text(alphabet=string.ascii_lowercase[:4] + " ()\n", max_size=60)


@given(program, program)
def test_similarity_is_the_standard_librarys_ratio(a, b):
    assert similarity(a, b) == difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def test_frequent_characters_of_long_programs_count():
    long = "x = 1\n" * 60
    assert similarity(long, "y" + long) > 0.99
    assert difflib.SequenceMatcher(None, long, "y" + long).ratio() == 0


def test_bounds():
    assert similarity("", "") == 1
    assert similarity("abc", "abc") == 1
    assert similarity("abc", "xyz") == 0
