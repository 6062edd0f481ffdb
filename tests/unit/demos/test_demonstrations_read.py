"""What is read of demonstrations at the edges: the last position and the last id that a model has, texts that are cut,
what is asked beside a list of messages, and what is warned of."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES
from retcon.chat.template import Template, TemplateFraming
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecipeError, RecordError, TaskWarning
from retcon.core.types import Segment, Trajectory, Turn
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.lengths import count_prompt_ids
from retcon.store import jsonl
from retcon.tasks.registry import task_set
from retcon.tasks.types import Task
from retcon.train.datasets.demonstrations import (
    UNREADABLE,
    check_ids,
    check_texts,
    drop_too_long,
    read_rendered,
    read_samples,
)
from retcon.train.demos.engine import EngineSource
from retcon.train.demos.rolling import LazyList, Roller

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER, style="markdown")
ASKED, SAID = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


def written(file: Path, *records: object) -> Path:
    file.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return file


def test_what_just_fits_is_learnt() -> None:
    with pytest.warns(
        TaskWarning, match=r"1 of 3 demonstrations are longer than the model's 5 positions \(the longest"
    ):
        assert drop_too_long([4, 5, 6], lambda length: length, 5, Path("d.jsonl"), "demonstrations") == [4, 5]
    assert drop_too_long([5], lambda length: length, 5, Path("d.jsonl"), "demonstrations") == [5]


def test_the_first_and_the_last_id_of_a_model_are_its_own() -> None:
    check_ids([0, 9], 10, "here")
    check_ids([], 1, "here")
    for ids, wrong in (([0, 10], 10), ([-1, 3], -1)):
        with pytest.raises(RecordError, match=f"^here: id {wrong}, and the model has 10, from 0 on"):
            check_ids(ids, 10, "here")


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        (f"a{UNREADABLE}b{UNREADABLE}c", True),
        (f"a{UNREADABLE}c{UNREADABLE}b{UNREADABLE}c", False),  # not in this order
        (f"a{UNREADABLE}bb{UNREADABLE}c", False),
        (f"a{UNREADABLE}b{UNREADABLE}x{UNREADABLE}c", False),
        (f"b{UNREADABLE}c", False),
        (f"a{UNREADABLE}b", False),
        (f"{UNREADABLE}a{UNREADABLE}xbyc", True),
        (f"axb{UNREADABLE}xb{UNREADABLE}c", False),  # each stands for itself, and once
    ],
)
def test_a_text_whose_characters_were_cut_is_compared_by_what_is_left(text: str, alike: bool) -> None:
    said = [(text, TOKENIZER.encode("axbyc"))]
    if alike:
        check_texts(said, TOKENIZER, "here")
        return
    with pytest.raises(RecordError, match=r"^here: the ids of"):
        check_texts(said, TOKENIZER, "here")


@pytest.mark.parametrize("history", [[["a"]], [["a", "b", "c"]], [["a", ""]], ["ab"], [["a", "b"], ["c"]]])
def test_what_is_no_pair_of_turns_is_no_history(history: object, tmp_path: Path) -> None:
    file = written(tmp_path / "d.jsonl", {"instruction": "Q", "output": "A", "history": history})
    ((_, one),) = read_rendered(file, CHAT)
    assert "".join(segment.text for segment in one.prompt) == "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"


ALTERNATING = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- if messages[0].role == 'tool' %}{{ raise_exception('a tool speaks first') }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' and not loop.first and loop.previtem.role == 'assistant' %}
{{- raise_exception('roles must alternate') }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + (m.tool_calls | tojson if m.tool_calls else '') }}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""


def templated() -> Chat:
    """By a template that, as many do, looks at the first message and lets the assistant speak once at a time."""
    framing = TemplateFraming(Template(ALTERNATING, where="the file"), FAMILIES.find("hermes"))
    return Chat(TOKENIZER, style="hermes", framing=framing)


def test_text_that_nobody_asked_for_is_learnt_also_where_a_template_looks_at_the_first_message(tmp_path: Path) -> None:
    file = written(tmp_path / "d.jsonl", {"text": "I multiply."})
    (sample,) = read_samples(file, templated(), vocabulary=TOKENIZER.size)
    assert TOKENIZER.decode(sample.ids) == "<|im_start|>assistant\nI multiply.<|im_end|>"


def test_the_first_id_of_all_is_not_learnt_as_nothing_predicts_it(tmp_path: Path) -> None:
    for text, learnt in (("AB", [(0, 1)]), ("A", [])):
        said = Turn((Segment("sampled", text, tuple(TOKENIZER.encode(text))),))
        jsonl.write(tmp_path / "d.jsonl", [Trajectory("t", "t", (), (said,))])
        if learnt:
            samples = read_samples(tmp_path / "d.jsonl", CHAT, vocabulary=TOKENIZER.size)
            assert [sample.mask for sample in samples] == learnt
        else:
            with pytest.raises(RecordError, match=r"d\.jsonl holds no trajectory to learn from"):
                read_samples(tmp_path / "d.jsonl", CHAT, vocabulary=TOKENIZER.size)


def test_a_task_that_the_models_template_refuses_is_named() -> None:
    task = Task("t7", "Q", "A", before=(("user", "Hi."), ("assistant", "Hello.")))
    assert count_prompt_ids(templated(), task) > 0
    with pytest.raises(RecipeError, match=r"^task t7: the file: the template refuses a conversation: roles must"):
        count_prompt_ids(templated(), replace(task, before=(*task.before, task.before[1])))


def test_a_task_that_the_learners_template_refuses_is_named_before_another_model_is_asked() -> None:
    teacher = ScriptedEngine(TOKENIZER, ["A"])
    roller = Roller(RolloutContext(teacher, CHAT, {}, RolloutLimits(500, 1)), task_set("numbers"), 0)
    tasks = LazyList(
        iter([Task("t7", "Q", "A", before=(("user", "Hi."), ("assistant", "Yes?"), ("assistant", "So?")))])
    )
    source = EngineSource(tasks, roller, teacher, into=templated(), tries=1, inputs={})
    with pytest.raises(RecipeError, match=r"^task t7: the file: the template refuses a conversation: roles must"):
        asyncio.run(source.make(0, 1, 0))
    assert not teacher.seen


def test_a_pattern_is_no_file_of_demonstrations(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", {"messages": [ASKED, SAID]})
    with pytest.raises(RecordError, match="does not exist"):
        read_samples(tmp_path / "*.jsonl", CHAT, vocabulary=TOKENIZER.size)


def test_a_completion_is_named_after_its_file_and_line(tmp_path: Path) -> None:
    ((_, one),) = read_rendered(file := written(tmp_path / "d.jsonl", {"prompt": "Q", "completion": "A"}), CHAT)
    assert one.id == one.task == f"{file}, line 1"
