"""JSON at its edges: lone surrogates, NaN and brackets without end, in records and in the JSON within them."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from foreign import FIXED, FORMATS, REPAIRED, answer, fails, messages, user, works
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.store.parquet import Record
from retcon.store.records import open_source, writer
from retcon.transcripts.purifier import Count, RecordRepairer, Sinks, purify_transcript

DEEP = 100_000
HALF = "\ud83d"
"""Of an emoji that was cut in two."""


def purified(text: str) -> Count:
    count, lines = Count(), list[bytes]()
    repairer = RecordRepairer(Repairer(), "auto", Sinks(lines.append, lines.append), count)
    repairer(Record(text.encode() + b"\n", 1, "in.jsonl"))
    return count


def with_program(format: str, code: str) -> str:
    """A transcript whose second call, which works, runs this code; JSON within it has all letters as they are."""
    record = FORMATS[format]((user("?"), fails("print(x)"), works("a = 1; print(PROGRAM)"), answer("1")))
    return json.dumps(record).replace("PROGRAM", code)


WRITTEN = "len(f'''{'\N{NO-BREAK SPACE}'.join('ab')}''')"
"""What Python before 3.12 can read, and not write."""


@pytest.mark.parametrize(
    "code",
    [r"'\ud83d'", r"'\ud83d') # again (", "[" * DEEP, WRITTEN, f"abs(0x{'f' * 5000})"],
    ids=["half an emoji", "with a comment", "brackets", "an invisible character", "a long number"],
)
@pytest.mark.parametrize("name", FORMATS)
def test_any_text_may_stand_in_a_call(name: str, code: str) -> None:
    assert purified(with_program(name, code)).calls == 2


def test_a_long_text_of_digits_is_no_number() -> None:
    """The code of a contract, say."""
    text = f"code = '0x{'6080604052' * 500}'\n"
    calls = (fails(f"{text}print(size(code))", line=2), works(f"{text}print(len(code))", "5002"))
    assert purified(json.dumps(messages((user("?"), *calls, answer("It is 5002."))))).shallow == 1


@pytest.mark.parametrize("name", ["messages", "hermes", "sharegpt_functions", "responses", "traces"])
def test_arguments_of_brackets_without_end_are_malformed(name: str) -> None:
    text = with_program(name, "1").replace('a = 1; print(1)\\"}', 'a = 1\\", \\"x\\": ' + "[" * DEEP)
    assert purified(text).rules == {"traceback": 1, "malformed": 1}


@pytest.mark.parametrize(
    "output",
    ['{"result": ' * DEEP + "}", f'{{"result": "{HALF}"}}', "{'a', [1]}", "[{'a': {[]: 1}}]"],
    ids=["deep", "half an emoji", "a set of lists", "a list as key"],
)
def test_any_text_may_be_an_output(output: str) -> None:
    assert purified(json.dumps(messages((user("?"), fails("f()"), works("f(2)", output), answer("1"))))).calls == 2


@pytest.mark.parametrize("name", ["messages", "sharegpt"])
def test_an_output_may_be_an_object(name: str) -> None:
    """What a tool's server says of an execution, as it is."""
    record = FORMATS[name](REPAIRED)
    items, key = (record["messages"], "content") if name == "messages" else (record["conversations"], "value")
    failed, worked = (item for item in items if item.get("role", item.get("from")) in ("tool", "observation"))
    failed[key], worked[key] = ({"stdout": "", "stderr": "NameError: f", "exit_code": n} for n in (1, 0))
    count = purified(json.dumps(record))
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1)
    assert count.types == {"NameError": 1}


def test_a_record_that_is_nested_too_deeply_is_refused_by_name(tmp_path: Path) -> None:
    record = json.dumps({"deep": 0, **messages(REPAIRED)}).replace("0", "[" * DEEP + "]" * DEEP, 1)
    with pytest.raises(RecordError, match=r"in.jsonl, line 1: nested too deeply"):
        purified(record)
    deep = "[" * DEEP + "]" * DEEP
    for name, text in (("in.json", f"[{{}}, {deep}]"), ("lists.json", deep), ("lists.jsonl", f"{deep}\n")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(RecordError, match=rf"{name}, item [12]: nested too deeply"):
            list(open_source(path).records)


@pytest.mark.parametrize("odd", [HALF, float("inf")], ids=["half an emoji", "inf"])
def test_a_transcript_at_hand_keeps_what_no_standard_knows(odd: Any) -> None:
    clean, count = purify_transcript({**messages(REPAIRED), "score": odd})
    assert count.shallow == 1
    assert isinstance(clean, dict)
    assert clean["score"] == odd
    assert FIXED in json.loads(clean["messages"][1]["tool_calls"][0]["function"]["arguments"])["code"]


def repaired(data: bytes, kind: str = "line") -> bytes:
    out = RecordRepairer(Repairer(), "auto", Sinks(), Count())(Record(data, 1, "in.jsonl", kind))  # type: ignore[arg-type]
    assert out is not None
    assert out != data
    return out


@pytest.mark.parametrize("number", ["1e400", "-1e999"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_number_beyond_all_floats_stays_a_number_of_json(number: str, indent: int | None) -> None:
    record = {"scores": ["AT", 1.5], **messages(REPAIRED), "said": "1e999"}
    out = repaired(json.dumps(record, indent=indent).replace('"AT"', number).encode() + b"\n").decode()

    def refuse(name: str) -> None:
        raise ValueError(name)

    new = json.loads(out, parse_constant=refuse)
    assert new["scores"] == [float(number), 1.5]
    assert new["said"] == "1e999"


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN"])
def test_what_python_s_own_writer_names_is_named_so_again(number: str) -> None:
    out = repaired(json.dumps({"score": "AT", **messages(REPAIRED)}).replace('"AT"', number).encode() + b"\n")
    assert f'"score": {number}' in out.decode()


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii", [True, False])
def test_a_document_keeps_its_style_whatever_it_begins_with(indent: int | None, ascii: bool) -> None:
    text = json.dumps({"é": "√", **messages(REPAIRED)}, indent=indent, ensure_ascii=ascii)
    marked = repaired(codecs.BOM_UTF8 + text.encode(), "document")
    assert marked.removeprefix(codecs.BOM_UTF8) == repaired(text.encode(), "document")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_as_they_did(end: str, indent: int | None) -> None:
    text = json.dumps(messages(REPAIRED), indent=indent).replace("\n", end) + end
    out = repaired(text.encode(), "line" if indent is None else "document").decode()
    assert out.endswith(end)
    assert out.count("\n") == out.count(end) >= (1 if indent is None else 9)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_lines_of_a_file_end_alike_repaired_or_not(tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "in.jsonl"
    whole, plain = json.dumps(messages(REPAIRED)).encode(), b'{"messages": []}'
    path.write_bytes(whole + end + plain + end)
    out = io.BytesIO()
    source = open_source(path)
    lines = writer(source, out)
    for record in source.records:
        lines.add(record, repaired(record.data) if record.number == 1 else record.data)
    assert out.getvalue() == repaired(whole + end) + plain + end


LONG = "9" * 5000
"""Digits, more than Python makes a number of."""


@pytest.mark.parametrize(
    "output",
    [
        f"Traceback (most recent call last):\n<ipython-input-1> in <module>\n----> {LONG} f()\nNameError: f",
        f"Traceback (most recent call last):\nCell In[1], line {LONG}\n    1 f()\nNameError: f",
        f'Traceback (most recent call last):\n  File "a.py", line {LONG}, in <module>\n    f()\nNameError: f',
    ],
)
def test_an_output_may_have_numbers_without_end(output: str) -> None:
    assert (
        purified(json.dumps(messages((user("?"), works("f()", output), works("f(2)", "1"), answer("1"))))).failed == 1
    )


def test_an_exit_code_of_autogen_without_end_is_none() -> None:
    record = json.dumps(FORMATS["autogen_chat"](REPAIRED))
    assert "exitcode: 1 " in record
    assert purified(record.replace("exitcode: 1 ", f"exitcode: {LONG} ")).failed == 0


@pytest.mark.parametrize("more", [{"value": "1"}, {"tool_calls": ["x"]}, {}], ids=["sharegpt", "messages", "none"])
@pytest.mark.parametrize("format", ["auto", "messages", "mathcoder", "hermes"])
def test_a_role_may_be_anything_where_others_say_from(format: str, more: dict[str, Any]) -> None:
    items = [
        {"from": "human", "value": "?"},
        {"from": "gpt", "role": ["x"], **more},
        {"from": "x", "role": "execution"},
    ]
    with contextlib.suppress(RecordError):  # it may be no transcript
        purify_transcript({"conversations": items}, format=format)


def test_half_an_emoji_in_the_place_of_an_observation_is_refused() -> None:
    record = FORMATS["ours"](REPAIRED)
    record["turns"][0]["observations"][0] = HALF
    with pytest.raises(RecordError, match=r"not Unicode: .* character '.ud83d'"):
        purified(json.dumps(record))
