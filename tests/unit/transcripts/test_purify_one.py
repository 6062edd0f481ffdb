"""A transcript at hand, purified without files."""

import pytest

from retcon.core.errors import RecordError
from retcon.transcripts.purifying.one import purify_transcript


def transcript(*steps: tuple[str, str]) -> dict:
    turns = [
        message
        for code, output in steps
        for message in (
            {"role": "assistant", "content": f"```python\n{code}\n```"},
            {"role": "user", "content": f"```output\n{output}\n```"},
        )
    ]
    return {"messages": [{"role": "user", "content": "q"}, *turns, {"role": "assistant", "content": "It is 2."}]}


def test_what_has_nothing_to_repair_comes_back_as_it_is() -> None:
    value = transcript(("print(2)", "2"))
    clean, count = purify_transcript(value)
    assert clean is value
    assert (count.calls, count.failed) == (1, 0)


def test_what_is_no_number_of_json_is_refused() -> None:
    with pytest.raises(RecordError):
        purify_transcript("no transcript")
