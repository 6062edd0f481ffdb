"""Which format a file has: by all that was looked at, in any order; and what is said of what nothing reads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foreign import FORMATS, NAMES, REPAIRED, answer, hermes, markdown, messages, mint, user, works
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.report.purification import remarks, shorten_names
from retcon.store.jsonl import read
from retcon.transcripts import detector
from retcon.transcripts.detector import Detector, nearest_format
from retcon.transcripts.formats.messages import Messages
from retcon.transcripts.formats.notations import Markdown
from retcon.transcripts.purification import Assignment, FileJob, JobStopped
from retcon.transcripts.purifier import Count
from retcon.transcripts.registry import find_formats, formats

CLEAN = (user("?"), works("x = 1"), answer("1"))
TAGS = "<search>{}</search>\n<information>{}</information>\n<answer>4</answer>"
UNKNOWN = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": TAGS}]}


def run(folder: Path, data: bytes, name: str = "in.jsonl", **options: Any) -> tuple[bytes, Count]:
    source, out = folder / name, folder / f"out-{name}"
    source.write_bytes(data)
    assignment = Assignment([source], out, False, [source.name], Repairer(), audit=folder / "audit.jsonl", **options)
    (count,) = FileJob(assignment)(lambda *_: None, lambda: False)
    return out.read_bytes(), count


def lines(records: Sequence[object]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def both_ways() -> dict[str, Any]:
    """A record of two formats: a program in `<execute>` that an "Observation:" answers, and a fence in its words."""
    record = mint(REPAIRED)["state"]["history"]
    record[1]["content"] = "```python\nplanned()\n```\n" + record[1]["content"]
    return {"messages": record}


def test_the_order_of_records_is_nothing(tmp_path: Path) -> None:
    records = [both_ways(), markdown(CLEAN), markdown(REPAIRED), mint(CLEAN), hermes(REPAIRED)]
    seen = set()
    for n, order in enumerate(itertools.permutations(range(len(records)))):
        if n % 7:
            continue
        folder = tmp_path / str(n)
        folder.mkdir()
        out, count = run(folder, lines([records[i] for i in order]))
        written = out.splitlines()
        seen.add((count.shallow, count.calls, tuple(written[order.index(i)] for i in range(len(records)))))
    assert len(seen) == 1


def test_a_harness_s_feedback_is_no_output_in_markdown(tmp_path: Path) -> None:
    record = markdown(CLEAN)
    feedback = {"role": "user", "content": "Observation:\nYour answer is wrong.\nYou have 2 steps left"}
    said = {"role": "assistant", "content": "so\n```python\nprint(2)\n```"}
    record["messages"] += [said, feedback]
    _, count = run(tmp_path, lines([record]))
    assert count.calls == 1
    assert Detector("markdown").format_of(record) is not None


def test_a_mixed_file_is_said_so(tmp_path: Path) -> None:
    _, count = run(tmp_path, lines([messages(CLEAN), hermes(CLEAN), messages(CLEAN)]))
    assert dict(count.formats) == {"messages": 2, "hermes": 1}
    (remark,) = remarks([Path("in.jsonl")], [count])
    assert remark.startswith("in.jsonl: mixed formats: messages 2, hermes 1")


def test_tool_use_that_nothing_reads_is_an_error_with_the_nearest_format(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no call can be read, though 2 of 2 records.*the tag <information>"):
        run(tmp_path, lines([UNKNOWN, UNKNOWN]))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    out, count = run(tmp_path, lines([UNKNOWN, UNKNOWN]), skip_bad=True)
    assert (out, count.unread) == (lines([UNKNOWN, UNKNOWN]), 2)
    steps = {"steps": [{"step_number": 1, "model_outputs": "x", "code_actions": "1", "observation": "1"}]}
    with pytest.raises((RecordError, JobStopped), match="nearest format: 'smolagents'"):
        run(tmp_path, lines([steps]))


@pytest.mark.parametrize("name", ["dialogue", "sample.messages"])
def test_messages_that_stand_elsewhere_are_told_where(name: str, tmp_path: Path) -> None:
    made: Any = messages(CLEAN)["messages"]
    for part in reversed(name.split(".")):
        made = {part: made}
    with pytest.raises((RecordError, JobStopped), match=f"messages under '{name}' are not looked for: put them"):
        run(tmp_path, lines([made, made]))


def test_messages_that_are_a_text_are_told_so(tmp_path: Path) -> None:
    written = {"dialogue": json.dumps(messages(CLEAN)["messages"])}
    with pytest.raises((RecordError, JobStopped), match="'dialogue' is the text of a list of messages: write the list"):
        run(tmp_path, lines([written]))


def test_the_nearest_format_is_looked_for_only_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def seen(record: Any, known: Sequence[Any]) -> str:
        asked.append(record)
        return nearest_format(record, known)

    monkeypatch.setattr(detector, "nearest_format", seen)
    with pytest.raises(JobStopped, match="no transcript of any known format"):
        run(tmp_path, lines([{"id": n, "note": "nothing"} for n in range(9)]))
    assert asked == [{"id": 0, "note": "nothing"}]


def test_the_nearest_format_is_the_one_that_has_more_of_its_own_words(tmp_path: Path) -> None:
    program = "\nprint('</code>')\n"
    text = f"<code>{program}</code>\n<interpreter>\n</code>\n</interpreter>\n<answer>4</answer>"
    with pytest.raises(RecordError, match="nearest format: 'retool'"):
        run(tmp_path, lines([{"text": text}]))


@pytest.mark.parametrize("exit_code", ["0 (execution succeeded)", "1 (execution failed)"])
@pytest.mark.parametrize("name", ["messages", "hermes"])
def test_a_tool_that_gives_its_exit_code_as_autogen_does_is_of_the_format_of_its_call(
    tmp_path: Path, name: str, exit_code: str
) -> None:
    record = FORMATS[name]((user("?"), works("f()"), answer("1")))
    record["messages"][2] = {"role": "tool", "content": f"exitcode: {exit_code}\nCode output: 1"}
    _, count = run(tmp_path, lines([record, messages(CLEAN)]))
    assert (count.calls, count.failed, count.unread) == (2, exit_code.startswith("1"), 0)
    assert "autogen" not in count.formats


@pytest.mark.parametrize(
    "item",
    [
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "<|python_tag|>print(4)"},
        {"role": "assistant", "content": "<function=python><parameter=code>print(4)</parameter></function>"},
        {"role": "user", "content": "EXECUTION RESULT of [python]:\n4"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_call": {"name": "python"}},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "toolCall": {"name": "python"}},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": []}}]},
    ],
)
def test_signs_of_tool_use(tmp_path: Path, item: dict[str, Any]) -> None:
    record = {"messages": [{"role": "user", "content": "?"}, item]}
    with pytest.raises(RecordError, match="no call can be read"):
        run(tmp_path, lines([record]))


def test_transcripts_without_tools_pass_and_are_said_to_have_none(tmp_path: Path) -> None:
    plain = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "```python\nf()\n```"}]}
    data = lines([plain, plain])
    out, count = run(tmp_path, data)
    assert out == data
    assert "no calls in 2 transcripts" in next(remarks([Path("in.jsonl")], [count]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_transcript_without_calls_passes_in_every_format(tmp_path: Path, name: str) -> None:
    plain = FORMATS[name]((user("?"), answer("4")))
    for others in ([], [FORMATS[name](CLEAN)]):
        folder = tmp_path / str(len(others))
        folder.mkdir()
        data = lines([*others, plain])
        out, count = run(folder, data)
        assert out == data
        assert (count.transcripts, count.without_calls, count.unread) == (1 + len(others), 1, 0)


def test_of_several_lists_the_one_with_calls_is_read_and_of_those_without_the_last() -> None:
    (format,) = find_formats("langchain")
    asked = {"before": FORMATS["langchain_flat"]((user("?"), answer("4")))["messages"]}
    assert format.find({**asked, **FORMATS["langchain_flat"](CLEAN)}).path == ("messages",)
    (format,) = find_formats("responses")
    said = [{"role": "assistant", "content": "4"}]
    assert format.find({"input": [{"role": "user", "content": "?"}, *said], "output": said}).path == ("output",)


@pytest.mark.parametrize("record", [{"messages": []}, {"prompt": [{"role": "user", "content": "?"}], "completion": []}])
def test_a_transcript_of_nothing_passes(tmp_path: Path, record: dict[str, Any]) -> None:
    data = lines([record, messages(CLEAN)])
    out, count = run(tmp_path, data)
    assert out == data
    assert (count.transcripts, count.without_calls) == (2, 1)


def test_some_records_that_nothing_reads_are_counted_and_named(tmp_path: Path) -> None:
    data = lines([messages(CLEAN), UNKNOWN, messages(CLEAN), UNKNOWN])
    out, count = run(tmp_path, data)
    assert out == data
    assert (count.unread, count.unread_at) == (2, [2, 4])
    assert "2 of 4 transcripts have no call that can be read" in next(remarks([Path("in.jsonl")], [count]))
    data = lines([messages(CLEAN), {"no": 1}, {"no": 2}])
    with pytest.raises(JobStopped, match=r"line 2: no transcript.*so are 2 of the first 3 records: 2, 3"):
        run(tmp_path, data)
    (tmp_path / "out-in.jsonl.partial.json").unlink()
    _, count = run(tmp_path, data, skip_bad=True)
    assert (count.bad, count.bad_at) == (2, [2, 3])


@pytest.mark.parametrize(
    "name",
    ["langchain_flat", "smolagents", "openhands", "openhands_sdk", "autogen", "responses",
     "gemini", "adk", "pydantic_ai", "bedrock", "atif"],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_items_may_be_all_of_a_file(tmp_path: Path, name: str, indent: int | None) -> None:
    record = FORMATS[name](REPAIRED)
    lists = ("messages", "steps", "history", "input", "contents", "events")
    items = next(record[key] for key in lists if key in record)
    out, count = run(tmp_path, json.dumps(items, indent=indent).encode(), "in.json")
    assert (count.transcripts, count.shallow) == (1, 1)
    assert len(json.loads(out)) < len(items)
    assert (b"\n  " in out) is (indent is not None)


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
def test_a_repaired_record_keeps_the_style_of_its_file(tmp_path: Path, indent: int | str | None) -> None:
    records = [messages((user("é?"), *REPAIRED[1:])), messages(CLEAN)]
    for data in (json.dumps(records, indent=indent), json.dumps(records, indent=indent, ensure_ascii=False)):
        out, _ = run(tmp_path, data.encode(), "in.json")
        wanted = json.dumps(json.loads(out), indent=indent, ensure_ascii="\\u" in data)
        assert out.decode() == wanted
        assert json.loads(out)[0] != records[0]


def test_nan_stops_nothing_and_stays(tmp_path: Path) -> None:
    repaired, clean = messages(REPAIRED), messages(CLEAN)
    clean["score"] = float("nan")
    repaired["score"] = float("inf")
    repaired["messages"][1]["logprob"] = float("-inf")
    out, count = run(tmp_path, lines([repaired, clean]), pairs=tmp_path / "pairs.jsonl")
    first, second = out.splitlines(keepends=True)
    assert count.shallow == 1
    assert second == lines([clean])
    assert b'"score": Infinity' in first
    assert b'"logprob": -Infinity' in first
    (trajectory,) = read(tmp_path / "audit.jsonl")
    assert json.loads(str(trajectory.origin.record))["messages"][0] == repaired["messages"][0]
    (pair,) = (tmp_path / "pairs.jsonl").read_text().splitlines()
    assert "NaN" not in pair
    assert "Infinity" not in pair


def test_a_format_is_one_file_that_registers_itself_or_is_named_by_its_place() -> None:
    names = {f.name for f in formats()}
    assert {NAMES.get(name, name) for name in FORMATS} <= names
    (found,) = find_formats("retcon.transcripts.formats.notations:MINT")
    assert found.name == "mint"
    with pytest.raises(RecordError, match=r"transcript format 'no\.such:THING' cannot be imported"):
        find_formats("no.such:THING")


def test_what_repeats_a_repaired_transcript_in_another_form_is_emptied(tmp_path: Path) -> None:
    out, _ = run(tmp_path, lines([FORMATS["retool_text"](REPAIRED)]))
    record = json.loads(out)
    assert (record["tokens"], record["loss_mask"], record["response_length"]) == ([], [], 0)
    out, _ = run(tmp_path, lines([FORMATS["smolagents"](REPAIRED)]))
    steps = [step for step in json.loads(out)["steps"] if "step_number" in step]
    assert [step["model_input_messages"] for step in steps] == [None, None]
    prime = messages(REPAIRED)
    prime = {"prompt": prime["messages"][:1], "completion": prime["messages"][1:], "trajectory": [{"tokens": [1]}]}
    out, _ = run(tmp_path, lines([prime]))
    assert json.loads(out)["trajectory"] == []


def test_ids_and_a_rendered_text_beside_the_messages_are_emptied_and_what_is_none_stays(tmp_path: Path) -> None:
    record = messages(REPAIRED)
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in record["messages"])
    ids = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "attention_mask": [1, 1, 1]}
    out, _ = run(tmp_path, lines([{**record, **ids, "text": rendered}]))
    repaired = json.loads(out)
    assert [repaired[name] for name in (*ids, "text")] == [[], [], [], ""]
    for own in ({"labels": ["math", "easy"], "text": "What is the root of 16?"}, {"input_ids": "3", "labels": [1]},
                {"input_ids": [1, 2], "labels": [0, 1, 2], "input_ids_of": [1]}):  # fmt: skip
        out, _ = run(tmp_path, lines([{**record, **own}]))
        emptied = {"input_ids": []} if isinstance(own.get("input_ids"), list) else {}
        assert {name: json.loads(out)[name] for name in own} == {**own, **emptied}


def test_another_list_of_the_same_messages_is_repaired_with_them_or_emptied(tmp_path: Path) -> None:
    record = messages(REPAIRED)
    whole = record["messages"]
    more = {"history": whole, "completion": whole[1:], "chat_history": whole[:3], "transcript": [{"role": "user"}]}
    out, _ = run(tmp_path, lines([{**record, **more}]))
    new = json.loads(out)
    assert new["history"] == new["messages"] != whole
    assert new["completion"] == new["messages"][1:]
    assert (new["chat_history"], new["transcript"]) == ([], more["transcript"])
    again, _ = run(tmp_path, out)
    assert again == out
    events = [{"event": "info"}, {"event": "model", "input": whole[:1]}, {"event": "tool", "result": whole[2]}]
    out, _ = run(tmp_path, lines([{**record, "events": events}]))
    assert json.loads(out)["events"] == []
    out, _ = run(tmp_path, lines([{**record, "events": ["a fair"]}]))
    assert json.loads(out)["events"] == ["a fair"]


def test_the_weight_of_a_message_goes_with_its_call_and_log_probs_of_other_tokens_go(tmp_path: Path) -> None:
    record = messages(REPAIRED)
    failed, fixed = (m for m in record["messages"] if m.get("tool_calls"))
    failed |= {"weight": 0, "logprobs": {"content": []}, "refusal": None}
    for weight in ({"weight": 1}, {}):
        new, _ = run(tmp_path, lines([{"messages": [m | weight if m is fixed else m for m in record["messages"]]}]))
        (made,) = (m for m in json.loads(new)["messages"] if m.get("tool_calls"))
        assert (made.get("weight"), made["logprobs"], made["content"]) == (weight.get("weight"), None, "let me see")
        assert made["tool_calls"] == fixed["tool_calls"]


def test_swe_agent_s_history_follows_its_steps(tmp_path: Path) -> None:
    record = FORMATS["swe_agent"](REPAIRED)
    source, out = tmp_path / "a.traj", tmp_path / "b.traj"
    source.write_text(json.dumps(record, indent=2))
    FileJob(Assignment([source], out, False, ["a.traj"], Repairer(state="ignore")))(lambda *_: None, lambda: False)
    new = json.loads(out.read_text())
    assert [s["thought"] for s in new["trajectory"]] == ["let me see", "4"]
    assert [m["content"] for m in new["history"] if m["role"] == "assistant"] == [
        s["response"] for s in new["trajectory"]
    ]
    assert len(new["history"]) == 1 + 2 * len(new["trajectory"])
    assert [s["query"] for s in new["trajectory"]] == [[], []]
    assert "sqroot" not in out.read_text()


def test_names_in_a_report_stay_apart() -> None:
    long = [f"math-python--gpt-4.1-mini__{n}__51672ba2.jsonl" for n in ("25f52552", "578769a7", "dbaac595")]
    assert shorten_names(long, 30) == ["…25f52552…", "…578769a7…", "…dbaac595…"]
    assert shorten_names(["a.jsonl", "b.jsonl"], 30) == ["a.jsonl", "b.jsonl"]
    alike = [f"{'x' * 20}{n}{'y' * 20}" for n in (1, 2)]
    for names in (alike, [*alike, "z"], [*long, "other.jsonl"], ["a/" + long[0], "b/" + long[0]]):
        assert len(set(shorten_names(names, 30))) == len(names)


@pytest.mark.parametrize("after", ["no\n", "python\n"])
def test_a_fence_with_words_behind_it_closes_no_output(after: str) -> None:
    """So that what follows belongs to the output: the cheap look leaves it to the full reading."""
    text = "```python\nx = 1\n```\n```output\n1\n```"
    assert Markdown().clean_inside(text) == 1
    assert Markdown().clean_inside(f"{text}{after}NameError: name 'x' is not defined") is None


def test_what_a_tool_says_after_a_users_word_answers_no_call() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "python", "arguments": "{}"}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "user", "content": "Stop."}]
    record = {"messages": [*said, {"role": "tool", "content": "1"}]}
    (read,) = Messages().read(record, "t").trajectories
    assert Messages().clean(record) == sum(len(turn.observations) for turn in read.turns) == 0
