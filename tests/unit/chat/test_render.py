"""Transcripts through the model's template: the ids of a rollout, and the mask on what the model wrote."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import foreign
from retcon.chat.chat import Chat, render
from retcon.chat.families.hermes import render_call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.core.types import Observation, Sample, Segment, ToolCall, Trajectory, Turn, history_ids, to_sample
from retcon.store import jsonl
from retcon.train.datasets.demonstrations import read_samples

TOKENIZER = ByteTokenizer()
CODE = "print(1)"
pytestmark = pytest.mark.torch


def chat(style: str = "markdown") -> Chat:
    return Chat(TOKENIZER, style=style)


def written(style: str) -> str:
    return (
        f"I try.\n```python\n{CODE}\n```" if style == "markdown" else f"I try.\n{render_call('python', {'code': CODE})}"
    )


def shown(sample: Sample) -> str:
    """The sample's text, what is learnt in brackets."""
    text, inside = "", 0
    for id, learnt in zip(sample.ids, sample.mask, strict=True):
        text += ("[" if learnt else "]") * (learnt != inside) + TOKENIZER.decode([id])
        inside = learnt
    return text + "]" * inside


@pytest.mark.parametrize("style", ["markdown", "hermes"])
def test_a_transcript_has_the_ids_of_a_rollout_that_went_the_same_way(style):
    mine = chat(style)
    call, seen = (
        ToolCall("0.0", "python", {"code": CODE}, written(style).index("I try.") + 7),
        Observation("0.0", "1", "ok"),
    )
    rolled = Trajectory(
        "t", "t", mine.prompt("what?", "be brief"),
        (
            Turn((mine.render_turn(written(style)), *mine.observations([call], [seen])), (call,), (seen,), "call"),
            Turn((mine.render_turn("one"),)),
        ),
    )  # fmt: skip
    text = Trajectory(
        "t", "t", (Segment("prompt", "be brief"), Segment("prompt", "what?")),
        (
            Turn((Segment("sampled", written(style)), Segment("observation", "1")), (call,), (seen,), "call"),
            Turn((Segment("sampled", "one"),)),
        ),
    )  # fmt: skip
    found = render(text, mine, [("system", "be brief"), ("user", "what?")])
    assert history_ids(found) == history_ids(rolled)
    assert to_sample(found, scored=False) == to_sample(rolled, scored=False)


def read(tmp_path: Path, *records: object, style: str = "markdown", **how: int) -> list[str]:
    file = tmp_path / "clean.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in records))
    return [shown(s) for s in read_samples(file, chat(style), vocabulary=TOKENIZER.size, **how)]


def message(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


CALL = {"id": "c", "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": CODE})}}
OPENAI = {"messages": [message("system", "S"), message("user", "U"), message("assistant", "I try.", tool_calls=[CALL]),
                       message("tool", "1", tool_call_id="c"), message("assistant", "one"), message("user", "why?"),
                       message("assistant", "so")]}  # fmt: skip
SHAREGPT = {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "U"},
                              {"from": "gpt", "value": f"I try.\n{render_call('python', {'code': CODE})}"},
                              {"from": "tool", "value": "<tool_response>\n1\n</tool_response>"},
                              {"from": "gpt", "value": "one"}, {"from": "human", "value": "why?"},
                              {"from": "gpt", "value": "so"}]}  # fmt: skip
EXECUTE = {"messages": [message("system", "S"), message("user", "U"),
                        message("assistant", f"I try.\n<execute>\n{CODE}\n</execute>"), message("tool", "1"),
                        message("assistant", "one"), message("user", "why?"), message("assistant", "so")]}  # fmt: skip
MARKDOWN = {"messages": [message("system", "S"), message("user", "U"),
                         message("assistant", f"I try.\n```python\n{CODE}\n```"), message("tool", "1"),
                         message("assistant", "one"), message("user", "why?"), message("assistant", "so")]}  # fmt: skip
FORMATS = {"openai": OPENAI, "sharegpt": SHAREGPT, "execute": EXECUTE, "markdown": MARKDOWN}
AROUND = {
    "markdown": ("<|im_start|>tool\n1", "<|im_end|>"),
    "hermes": ("<|im_start|>user\n<tool_response>\n1", "\n</tool_response><|im_end|>"),
}


@pytest.mark.parametrize("style", ["markdown", "hermes"])
@pytest.mark.parametrize("record", FORMATS.values(), ids=FORMATS)
def test_every_format_is_learnt_in_the_models_own_words(tmp_path, record, style):
    observed, closed = AROUND[style]
    assert read(tmp_path, record, style=style) == [
        f"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
        f"[{written(style)}<|im_end|>]\n{observed}{closed}\n<|im_start|>assistant\n[one<|im_end|>]\n"
        f"<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n[so<|im_end|>]"
    ]


def test_what_has_no_calls_is_learnt_too(tmp_path):
    talk = {"messages": [message("user", "U"), message("assistant", "It is 4.")]}
    asked, answered = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n", "[It is 4.<|im_end|>]"
    assert read(tmp_path, talk, {"prompt": "U", "completion": "It is 4."}) == [asked + answered] * 2
    assert read(tmp_path, talk, {"messages": []}) == [asked + answered]


@pytest.mark.parametrize(
    "name",
    ["responses", "openhands", "openhands_sdk", "autogen", "langchain", "traces",
     "gemini", "adk", "pydantic_ai", "bedrock", "atif"],
)  # fmt: skip
def test_what_has_no_calls_is_learnt_from_items_too(tmp_path, name):
    asked, answered = "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n", "[A<|im_end|>]"
    assert read(tmp_path, foreign.FORMATS[name]((foreign.user("U"), foreign.answer("A")))) == [asked + answered]


def test_the_roles_of_a_prompt_that_is_kept_apart_stay(tmp_path):
    apart = {"prompt": OPENAI["messages"][:2], "completion": OPENAI["messages"][2:]}
    assert read(tmp_path, apart) == read(tmp_path, OPENAI)


def test_demonstrations_that_all_do_without_a_tool_are_warned_of(tmp_path):
    talk = {"messages": [message("user", "U"), message("assistant", "A")]}
    with pytest.warns(TaskWarning, match="of 2 demonstrations none calls a tool"):
        read(tmp_path, talk, talk)
    with pytest.warns(
        TaskWarning, match="if these are problems with their answers, `retcon demos` writes demonstrations"
    ):
        read(tmp_path, {"question": "What is 1 plus 1?", "answer": "2"})
    with pytest.warns(TaskWarning, match="the model learns to do without$"):
        read(tmp_path, {"messages": [*talk["messages"], *talk["messages"]]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path, talk, OPENAI)


def test_markup_that_somebody_wrote_is_no_control(tmp_path):
    (shown,) = read(tmp_path, {"messages": [message("user", "<|im_end|>"), message("assistant", "A")]})
    assert shown.count("<|im_end|>") == 3
    (sample,) = read_samples(tmp_path / "clean.jsonl", chat(), vocabulary=TOKENIZER.size)
    assert sample.ids.count(TOKENIZER.special_id("<|im_end|>")) == 2


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ({"neither": 1}, "line 2: no transcript of any known format"),
        ([1, 2], "line 2: no transcript"),
    ],
)
def test_what_is_no_transcript_is_refused_by_line(tmp_path, record, part):
    with pytest.raises(RecordError, match=part):
        read(tmp_path, OPENAI, record)
    (tmp_path / "broken.jsonl").write_text(json.dumps(OPENAI) + "\n{no JSON\n")
    with pytest.raises(RecordError, match=r"broken\.jsonl, line 2: not JSON"):
        read_samples(tmp_path / "broken.jsonl", chat(), vocabulary=TOKENIZER.size)


def test_a_folder_that_purify_wrote_is_read_without_its_audit(tmp_path):
    (tmp_path / "clean/sub").mkdir(parents=True)
    for name in ("a.jsonl", "sub/a.jsonl", "retcon.audit.jsonl", "notes.md"):
        (tmp_path / "clean" / name).write_text(json.dumps(OPENAI) + "\n")
    (tmp_path / "clean/skipped.json").touch()
    samples = read_samples(tmp_path / "clean", chat(), vocabulary=TOKENIZER.size)
    assert len(samples) == 2
    (tmp_path / "notes").mkdir()
    with pytest.raises(RecordError, match="notes: no file in this folder or below"):
        read_samples(tmp_path / "notes", chat(), vocabulary=TOKENIZER.size)


def test_ids_of_another_model_and_text_without_ids_are_refused_by_line(tmp_path):
    file = tmp_path / "ours.jsonl"
    jsonl.write(file, [Trajectory("t", "t", chat().prompt("U"), (Turn((chat().render_turn("A"),)),))])
    (sample,) = read_samples(file, chat(), vocabulary=TOKENIZER.size)
    assert shown(sample).endswith("assistant\n[A<|im_end|>]"), "ours go by their ids"
    with pytest.raises(RecordError, match=r"ours\.jsonl, line 1: id \d+, and the model has 50"):
        read_samples(file, chat(), vocabulary=50)
    padded = Segment("sampled", "A", (-100, 1), None)
    jsonl.write(file, [Trajectory("t", "t", chat().prompt("U"), (Turn((padded,)),))])
    with pytest.raises(RecordError, match=r"ours\.jsonl, line 1: id -100, and the model has"):
        read_samples(file, chat(), vocabulary=TOKENIZER.size)
    jsonl.write(file, [Trajectory("t", "t", (Segment("prompt", "U"),), (Turn((Segment("sampled", "A"),)),))])
    with pytest.raises(RecordError, match=r"ours\.jsonl, line 1: .*has no ids"):
        read_samples(file, chat(), vocabulary=TOKENIZER.size)


def test_what_is_longer_than_the_model_is_counted_and_left_out(tmp_path):
    short = {"messages": [message("user", "U"), message("assistant", "A")]}
    with pytest.warns(TaskWarning, match=r"clean\.jsonl: 1 of 2 demonstrations are longer than the model.s 80 "):
        assert len(read(tmp_path, OPENAI, short, max_tokens=80)) == 1
    with pytest.raises(RecordError, match="none is left"):
        read(tmp_path, OPENAI, max_tokens=80)
