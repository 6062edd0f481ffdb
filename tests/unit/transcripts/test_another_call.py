"""A later call is a fix only if it tries again what failed, and if nothing that stays relies on what goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript


def record(tool: str, first: dict[str, Any], error: str, second: dict[str, Any], *, said: str = "") -> dict[str, Any]:
    """A transcript of two calls of a tool, the first of which failed."""
    steps: list[dict[str, Any]] = [{"role": "user", "content": "Please look after it."}]
    for n, (arguments, output) in enumerate(((first, error), (second, '{"done": true}'))):
        function = {"name": tool, "arguments": json.dumps(arguments)}
        called = [{"id": str(n), "type": "function", "function": function}]
        steps.append({"role": "assistant", "content": "Next.", "tool_calls": called})
        steps.append({"role": "tool", "tool_call_id": str(n), "content": output, "is_error": not n})
    return {"messages": [*steps, {"role": "assistant", "content": said or "It is done."}]}


@pytest.mark.parametrize(
    ("tool", "first", "error", "second", "repaired"),
    [
        ("get_order", {"id": "W5"}, "Error: no order W5", {"id": "W6"}, 0),
        ("get_user", {"id": "ann7"}, "Error: no user ann7", {"id": "ann_7"}, 0),
        ("search_docs", {"query": "sum of a list", "limit": 900}, "limit is at most 50", {"query": "sum"}, 0),
        ("search_docs", {"query": "sum of rows"}, "Error: nothing found", {"query": "sum of columns"}, 0),
        (
            "read_file", {"path": "app.log", "lines": "1-50"}, "Error: lines 1-50",
            {"path": "app.log", "lines": "9-9"}, 0,
        ),
        ("read_file", {"path": "src/app.py"}, "Error: no file", {"path": "/repo/src/app.py"}, 1),
        ("read_file", {"path": "src/app.py"}, "Error: no file", {"path": "lib/app.py"}, 0),
        ("read_file", {"path": "a", "view": 0}, "`view` is not allowed", {"path": "a"}, 1),
        ("read_file", {"path": "a", "part": 0}, "not now", {"path": "a"}, 0),
        ("read_file", {"path": "a"}, "Error: busy", {"path": "a"}, 1),
        ("get_page", {"number": "5"}, "number has to be an int", {"number": 5}, 1),
        ("set_unit", {"place": "roof", "unit": "k"}, "unit k is unknown", {"place": "roof", "unit": "c"}, 1),
        ("set_unit", {"place": "roof", "unit": "k"}, "Error: busy", {"place": "roof", "unit": "c"}, 0),
        ("set_unit", {"unit": "k"}, "unit k is unknown", {"unit": "c"}, 0),
        ("cancel", {"order_id": "W5", "why": "late"}, "no order W5", {"order_id": "W6", "why": "late"}, 0),
        ("cancel", {"q": "W5", "why": "late"}, "q is no argument, but order_id", {"order_id": "W5", "why": "late"}, 1),
        ("run_sql", {"sql": "selct a from t where n = 17"}, "syntax", {"sql": "select a from t where n = 17"}, 1),
        ("run_sql", {"sql": "selct a from t where n = 17"}, "syntax", {"sql": "select a from t where n = 18"}, 0),
        ("edit", {"path": "/w/a.py", "old": "x  = 1"}, "none like it", {"path": "/w/a.py", "old": "x = 1"}, 1),
    ],
)  # fmt: skip
def test_a_call_with_other_arguments_is_another_call(
    tool: str, first: Any, error: str, second: Any, repaired: int
) -> None:
    count = purify_transcript(record(tool, first, error, second))[1]
    assert (count.failed, count.shallow, count.left["unrelated"]) == (1, repaired, 1 - repaired)


@pytest.mark.parametrize(
    ("error", "second", "said", "rule"),
    [
        ("amount 290 is too little", {"place": "roof", "amount": 375}, "", None),
        ("amount 290 is not the 375 that it costs", {"place": "roof", "amount": 375}, "", "words"),
        ("amount 290 is refused by Mia Stone", {"place": "roof", "amount": 375}, "Mia has to agree.", "words"),
        ("amount 290 is refused, see R77", {"place": "roof", "amount": 375}, "Her number is R77.", "words"),
        ("amount 290 is refused, see R77", {"place": "roof", "amount": 375}, "It is paid.", None),
    ],
)
def test_what_a_later_message_has_from_the_failed_call_alone_keeps_that_call(
    error: str, second: dict[str, Any], said: str, rule: str | None
) -> None:
    count = purify_transcript(record("pay", {"place": "roof", "amount": 290}, error, second, said=said))[1]
    assert (count.shallow, dict(count.left)) == ((1, {}) if rule is None else (0, {rule: 1}))
