"""The difficulty filter: which tasks a pass rate leaves, and the file that holds the rates."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.errors import RecipeError, RecordError
from retcon.select.filters import filter_by_pass_rate
from retcon.store.pass_rates import PassRate, PassRateFile, read_pass_rates, select_model
from retcon.tasks.types import Task


def tasks(*names: str) -> list[Task]:
    return [Task(name, "", "") for name in names]


def left(names: str, rates: dict[str, float], low: float = 0.01, high: float = 0.99) -> str:
    return "".join(t.id for t in filter_by_pass_rate(tasks(*names), rates, low=low, high=high))


def test_trivial_and_unsolvable_tasks_are_left_out():
    rates = {"a": 0.0, "b": 1 / 8, "c": 1.0, "d": 7 / 8}
    assert left("abcd", rates) == "bd"
    assert left("abcd", rates, low=0) == "abd"
    assert left("abcd", rates, high=1) == "bcd"
    assert left("dcba", rates, low=1 / 8, high=1 / 8) == "b", "both bounds belong to it"


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.integers(0, 8), st.integers(0, 8))
def test_what_is_left_is_what_lies_within_in_order(passed, one, other):
    rates = {str(n): p / 8 for n, p in enumerate(passed)}
    low, high = sorted((one / 8, other / 8))
    names = [t.id for t in filter_by_pass_rate(tasks(*rates), rates, low=low, high=high)]
    assert names == [name for name, rate in rates.items() if low <= rate <= high]


def test_a_task_without_a_rate_is_refused_by_name():
    stream = filter_by_pass_rate(tasks("a", "b"), {"a": 0.5}, low=0, high=1)
    assert next(stream).id == "a"
    with pytest.raises(RecipeError, match="task b has no pass rate"):
        next(stream)


def test_an_endless_stream_of_which_nothing_is_left_is_not_searched_for_ever():
    rates = {"a": 0.0, "b": 1.0, "c": 0.0}
    with pytest.raises(RecipeError, match=r"no task has a pass rate within \[0.01, 0.99\]"):
        next(filter_by_pass_rate(cycle(tasks("a", "b", "c")), rates, low=0.01, high=0.99))
    one = filter_by_pass_rate(cycle(tasks("a", "b", "c")), rates, low=0.99, high=1)
    assert [t.id for t in islice(one, 3)] == ["b"] * 3


def test_twice_as_many_as_there_are_rates_may_be_left_out_except_for_one():
    rates = {"a": 0.5, "b": 1.0, "c": 0.0}
    assert left("a" + "bcbcb" + "a" + "cbcbc" + "a", rates) == "aaa", "counted anew after each one that is kept"
    seen = []
    stream = (seen.append(t) or t for t in cycle(tasks("b", "c")))
    with pytest.raises(RecipeError, match="no task has a pass rate"):
        next(filter_by_pass_rate(stream, rates, low=0.01, high=0.99))
    assert len(seen) == 6


ONE, TWO = PassRate("a", "m", 3, 8), PassRate("b", "m", 0, 8)


def add(path: Path, *rates: PassRate) -> None:
    with PassRateFile(path) as file:
        for rate in rates:
            file.add(rate)
            assert list(read_pass_rates(path))[-1] == rate, "at once"


def test_rates_come_back_as_they_were_added(tmp_path):
    path = tmp_path / "rates.jsonl"
    add(path, ONE)
    add(path, TWO)
    assert list(read_pass_rates(path)) == [ONE, TWO]
    assert path.read_text().splitlines()[0] == '{"task":"a","model":"m","passed":3,"rollouts":8}'
    assert ONE.rate == 0.375


def test_a_line_that_was_cut_off_is_named_and_mended(tmp_path):
    path = tmp_path / "rates.jsonl"
    add(path, ONE, TWO)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        RecordError, match=r"rates\.jsonl, line 2: cut off in the middle .*`retcon difficulty` mends it"
    ):
        list(read_pass_rates(path))
    add(path, TWO)
    assert list(read_pass_rates(path)) == [ONE, TWO]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "not a pass rate"),
        ('{"task": "a", "model": "m", "passed": 3}', "rollouts"),
        ('{"task": "a", "model": "m", "passed": "3", "rollouts": 8}', "passed"),
        ('{"task": "a", "model": "m", "passed": 9, "rollouts": 8}', "9 of 8"),
        ('{"task": "a", "model": "m", "passed": 0, "rollouts": 0}', "0 of 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, part):
    path = tmp_path / "rates.jsonl"
    add(path, ONE)
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(RecordError, match=r"rates\.jsonl, line 3: ") as caught:
        list(read_pass_rates(path))
    assert part in str(caught.value)


def test_nothing_is_removed_from_a_file_that_holds_something_else(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("first\nand last")
    with pytest.raises(RecordError, match="not a file of JSON Lines"):
        PassRateFile(path)
    assert path.read_text() == "first\nand last"
    with pytest.raises(RecordError, match=r"none\.jsonl does not exist; `retcon difficulty` makes one"):
        list(read_pass_rates(tmp_path / "none.jsonl"))


def test_of_a_models_rates_the_one_with_most_rollouts_counts():
    more, newer, other = PassRate("a", "m", 5, 16), PassRate("a", "m", 6, 16), PassRate("a", "x", 1, 99)
    assert select_model(iter([ONE, TWO, more, other]), "m") == {"a": more, "b": TWO}
    assert select_model(iter([more, ONE]), "m") == {"a": more}
    assert select_model(iter([more, newer]), "m") == {"a": newer}
    changed = PassRate("a", "m", 1, 2, "its answer has changed")
    assert select_model(iter([more, changed]), "m") == {"a": changed}
