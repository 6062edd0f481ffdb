"""What holds for the offline purifier in every format, over random transcripts with random failures."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreign import FORMATS, NAMES, REPAIRED, Step, fails, works
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.store.records import Record
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks
from retcon.transcripts.verdicts import judge
from strategies import json_values

CODES = (
    "x = 1\nprint(x)", "y = x + 1\nprint(y)", "import math\ny = math.sqrt(x)\nprint(y)",
    "import math\ny = math.sqroot(x)\nprint(y)", "total = sum(range(10))\nassert total == 45\nprint(total)",
    "total = sum(range(9))\nassert total == 45\nprint(total)",
    "try:\n    z = 1 / 0\nexcept ZeroDivisionError:\n    z = 0\nprint(z)", "pass", "def broken(:\n    pass",
    "open('f', 'w').write('1')\nprint(1)",
)  # fmt: skip
SAID = ("Sorry, an error. Now we go on to the sum.", "I fixed it.", "Let me try again. We take all of it then.")
words = st.text("abc .é\n", min_size=1, max_size=12).map(lambda t: f"w{t}w") | st.sampled_from(SAID)
calls = st.builds(
    works, st.sampled_from(CODES), st.sampled_from(["1", "", "Out[1]: 2\n3", "no Error: here"]), words
) | st.builds(
    fails,
    st.sampled_from(CODES),
    st.sampled_from(["NameError", "AssertionError", "TimeoutError"]),
    st.integers(1, 3),
    words,
)
steps = st.lists(calls | calls | calls | st.builds(Step, st.sampled_from(["user", "answer"]), words), max_size=9).map(
    lambda inner: [Step("user", "question"), works("start = 0"), *inner]
)
every_format = pytest.mark.parametrize("name", list(FORMATS))


def purified(record: dict[str, Any], **options: Any) -> tuple[dict[str, Any], Count]:
    count = Count()
    purifier = RecordRepairer(Repairer(**options), "auto", Sinks(), count)
    out = purifier(Record(msgspec.json.encode(record), 1, "f.jsonl"))
    assert out is not None
    return msgspec.json.decode(out), count


def trajectories(record: dict[str, Any]) -> list[Any]:
    found = Detector().format_of(record)
    assert found is not None
    return list(found.read(record, "t").trajectories)


@every_format
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_purifying_twice_equals_once_and_leaves_its_input_alone(name: str, steps: list[Step]) -> None:
    record = FORMATS[name](steps)
    before = copy.deepcopy(record)
    once, _ = purified(record)
    assert record == before
    twice, again = purified(once)
    assert twice == once
    assert not again.shallow
    assert not again.deep


@every_format
def test_what_speaks_against_a_fix_is_not_taken_out_by_the_repair_of_what_follows(name: str) -> None:
    """Without the second repair the words after it doubt the first; with it nothing is left to doubt it."""
    first = [fails(CODES[0], "NameError", 1, "waw"), works(CODES[0], "1", "waw")]
    second = [fails(CODES[3], "NameError", 1, SAID[0]), works(CODES[1], "1", "waw")]
    before = [Step("user", "question"), works("start = 0"), works(CODES[0], "1", "waw"), works(CODES[0], "1", "waw")]
    once, _ = purified(FORMATS[name]([*before, *first, *second]))
    assert purified(once)[0] == once


ALIKE = [f"def twice(n):\n    return n + {by}\n\nfour = twice(4)\nassert four == 8" for by in ("2", "n", "m", "n + 0")]
PLANS = (
    "", "So.", "We add two to the number.", "We add the number to itself.", "Let us try a different approach.",
    "Oops, that was an error. We write twice anew.", "We need to rethink our strategy.", "Four is what twice gives.",
)  # fmt: skip
attempts = st.builds(
    fails, st.sampled_from(ALIKE), st.sampled_from(["NameError", "AssertionError"]), st.just(4), st.sampled_from(PLANS)
)
runs = st.lists(attempts, min_size=1, max_size=4).flatmap(
    lambda tried: st.builds(
        lambda fix, said: [*tried, fix, Step("answer", said)],
        st.builds(works, st.sampled_from(ALIKE), st.just("8"), st.sampled_from(PLANS)),
        st.sampled_from(PLANS[1:]),
    )
)


@settings(max_examples=40, deadline=None)
@given(first=runs, second=runs)
def test_purifying_twice_equals_once_where_the_plan_was_given_up(first: list[Step], second: list[Step]) -> None:
    once, _ = purified(FORMATS["mint"]([Step("user", "question"), *first, Step("user", "next"), *second]))
    assert purified(once)[0] == once


@every_format
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_nothing_that_a_user_said_is_lost(name: str, steps: list[Step]) -> None:
    record = FORMATS[name](steps)
    out, _ = purified(record)

    def said(value: Any) -> list[str]:
        return [s.text for t in trajectories(value) for s in t.segments if s.kind == "prompt"]

    assert said(out) == said(record)
    assert out.get("question") == record.get("question")


@every_format
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_every_call_that_is_kept_has_its_own_result(name: str, steps: list[Step]) -> None:
    record = FORMATS[name](steps)
    out, count = purified(record)

    def results(value: Any) -> list[tuple[str, str]]:
        return [(c.code, o.text) for t in trajectories(value) for turn in t.turns for c, o in _pairs(turn)]

    def _pairs(turn: Any) -> Any:
        assert len(turn.calls) == len(turn.observations)
        return zip(turn.calls, turn.observations, strict=True)

    had, has = results(record), results(out)
    assert len(had) == count.calls
    rest = iter(had)
    assert all(pair in rest for pair in has)  # in their order, none made up
    assert len(had) - len(has) == count.attempts_removed
    worked = [pair for pair in had if "Traceback" not in pair[1] and pair[0] != "pass"]
    assert [pair for pair in has if "Traceback" not in pair[1] and pair[0] != "pass"] == worked


@every_format
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_the_output_has_the_same_format_and_unknown_fields_survive(name: str, steps: list[Step]) -> None:
    record = FORMATS[name](steps)
    out, _ = purified(record)
    found = Detector().format_of(out)
    assert found is not None
    assert found.name == NAMES.get(name, name)
    assert out["x-meta"] == record["x-meta"]
    assert list(out) == list(record) or name == "ours"
    if name == "mint":
        assert out["state"]["x-in"] == 1
    for key in ("messages", "conversations", "debug_result"):
        for item in out.get(key, ()):
            assert any(set(item) == set(old) for old in record[key])


@every_format
@settings(max_examples=20, deadline=None)
@given(steps=steps)
def test_the_cheap_look_never_misses_what_the_full_one_finds(name: str, steps: list[Step]) -> None:
    record = FORMATS[name](steps)
    found = Detector().format_of(record)
    assert found is not None
    clean = found.clean(record)
    read = trajectories(record)
    if clean is not None:
        assert clean == sum(t.calls for t in read)
        assert not any(t.failures for t in read)


HERMES_CALL = '<tool_call>{"name": "python", "arguments": {"code": "1 < 2"}}</tool_call>'
FRAGMENTS = (
    "```python\n", "```output\n", "```\n", "\n```", "```", "`", "```stdout\n", "```output \n", "```PYTHON\n",
    "<tool_response>", "</tool_response>", "<tool_response>\n", "\n</tool_response>", "<tool_call>", "</tool_call>",
    HERMES_CALL, '{"name": "python"}', "<execute>", "</execute>", "Observation:\n", "Output: ",
    "print(1)", "x", "\n", " ", "<", "NameError: no", "Exit code: 1", "\x1b[31m", '{"exit_code": 1}',
    "Traceback (most recent call last):\n  File", "NameError    Traceback (most recent call last)",
    "  File a.py, line 1\n    f(\nSyntaxError: no", "Timed out after 3 s",
)  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("".join)
WELL_FORMED = st.sampled_from(("```python\nprint(1)\n```\n", HERMES_CALL, "<execute>1</execute>"))


@settings(max_examples=150, deadline=None)
@given(told=st.lists(st.tuples(st.sampled_from(["assistant", "user", "tool"]), texts | WELL_FORMED), max_size=5))
def test_the_cheap_look_counts_what_the_full_one_reads_in_any_text(told: list[tuple[str, str]]) -> None:
    said = [("user", "question"), ("assistant", "I think"), *told]
    for record in (
        {"messages": [{"role": role, "content": text} for role, text in said]},
        {"conversations": [{"from": role, "value": text} for role, text in said]},
        {"completion": "".join(text for _, text in said)},
    ):
        for name in ("auto", "hermes", "mint", "markdown", "sharegpt"):
            try:
                found = Detector(name).format_of(record)
            except RecordError:
                continue
            clean = None if found is None else found.clean(record)
            if found is not None and clean is not None:
                read = found.read(record, "t").trajectories
                assert clean == sum(t.calls for t in read)
                assert not any(t.failures for t in read)


@settings(max_examples=150, deadline=None)
@given(output=texts)
def test_the_cheap_look_at_an_output_agrees_with_all_rules(output: str) -> None:
    assert judge(output) == judge("\x1b[0m" + output)  # what is coloured is always read in full, without its colours


@every_format
def test_the_cheap_look_is_enough_for_a_clean_transcript(name: str) -> None:
    record = FORMATS[name]([Step("user", "question"), works("x = 1"), works("y = 2", "2\n3"), Step("answer", "done")])
    found = Detector().format_of(record)
    assert found is not None
    assert found.clean(record) == 2


@every_format
def test_a_failure_and_its_fix_become_one_turn(name: str) -> None:
    # A shell's effects cannot be told from its text: left alone unless that is asked for.
    options = {"state": "ignore"} if name == "swe_agent" else {}
    out, count = purified(FORMATS[name](REPAIRED), **options)
    assert (count.calls, count.failed, count.shallow, count.deep, count.attempts_removed) == (2, 1, 1, 0, 1)
    (trajectory,) = trajectories(out)
    assert [c.code for t in trajectory.turns for c in t.calls] == [REPAIRED[2].code]
    (seen,) = [o.text.strip() for t in trajectory.turns for o in t.observations]
    assert seen == "4.0" or (name == "smolagents" and "\n4.0\n" in seen)
    assert "let me see" in trajectory.text or name == "sharegpt_functions"
    assert "sqrt it is" not in trajectory.text


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for key, item in inner for p in places(item, (*path, key)))]


@every_format
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_record_with_anything_in_any_place_is_read_or_refused(name: str, data: st.DataObject) -> None:
    record = copy.deepcopy(FORMATS[name](REPAIRED))
    place = data.draw(st.sampled_from(places(record)[1:]))
    inside: Any = record
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = data.draw(json_values | st.sampled_from(["{", "<tool_call>", "```python\n", "<execute>"]))
    purifier = RecordRepairer(Repairer(), "auto", Sinks(audit=lambda _: None, pairs=lambda _: None), Count())
    with contextlib.suppress(RecordError):
        purifier(Record(msgspec.json.encode(record), 7, "f.jsonl"))
        assert purifier.count.transcripts == 1
