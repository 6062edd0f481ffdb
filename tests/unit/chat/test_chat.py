"""Rendering to ids and back, over a tokenizer of bytes and a trained one that merges across markers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import retcon
from conversing import ids_of, text_of
from retcon.chat import markdown
from retcon.chat.chat import Chat
from retcon.chat.families import hermes
from retcon.chat.tokenizer import ByteTokenizer, HubTokenizer, load_tokenizer
from retcon.chat.types import CONTROLS, TURN_END
from retcon.core.errors import CheckpointError, RecipeError
from retcon.core.types import Observation, ToolCall
from retcon.engine.openai.messages import SurrogateTokenizer

CORPUS = [
    "Let me compute it.\n```python\nprint(1)\n```\n",
    'x = "é€😀"\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>',
    "so ```python\nimport math\n``` it is <tool_call> and <|im_end|> <|im_start|>assistant",
] * 20


def definition(**changes: object) -> str:
    """A small byte-level BPE; spaces and line ends may merge with what follows, markers among it."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(CONTROLS), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return json.dumps(json.loads(bpe.to_str()) | changes)


@functools.cache
def tokenizer(name: str) -> ByteTokenizer | HubTokenizer:
    return ByteTokenizer() if name == "bytes" else HubTokenizer(definition())


both = pytest.mark.parametrize("name", ["bytes", "bpe"])
either_style = pytest.mark.parametrize("style", ["markdown", "hermes"])
pieces = st.sampled_from(
    [
        *(
            "```",
            "```python\n",
            "\n```\n",
            "<tool_call>",
            "</tool_call>",
            '{"name": "python", ',
            '"arguments": ',
            "{}",
            "}",
        ),
        *(*CONTROLS, '"', "\\", "\n", "é", "😀", " ", "\ud800", "print(1)"),
    ]
)
texts = st.lists(pieces | st.text(max_size=4), max_size=8).map("".join)
clean_texts = texts.map(lambda text: text.encode("utf-8", "replace").decode())


@both
@given(text=texts, data=st.data())
def test_encoding_is_lossless_and_plain_text_holds_no_control_id(name: str, text: str, data: st.DataObject) -> None:
    t = tokenizer(name)
    for special in (False, True):
        assert t.decode(t.encode(text, special=special)) == text.encode("utf-8", "replace").decode()
    assert not {t.special_id(c) for c in CONTROLS} & set(t.encode(text))
    assert t.special_id(TURN_END) in t.encode(f"{text}{TURN_END}", special=True)


@both
@either_style
@given(question=texts, system=st.none() | texts, shown=st.lists(texts, min_size=1, max_size=3), ended=st.booleans())
def test_what_users_and_tools_write_cannot_open_or_close_a_turn(
    name: str, style: str, question: str, system: str | None, shown: list[str], ended: bool
) -> None:
    t = tokenizer(name)
    chat = Chat(t, style=style)
    end, start = t.special_id(TURN_END), t.special_id("<|im_start|>")
    prompt = chat.prompt(question, system)
    calls = [ToolCall(f"0.{n}", "python", {"code": ""}, 0) for n in range(len(shown))]
    observed = [Observation(f"0.{n}", text, "ok") for n, text in enumerate(shown)]
    after = chat.observations(calls, observed, last_id=end if ended else chat.stop_ids[1])
    for segments in (prompt, after):
        ids = [i for s in segments for i in s.ids]
        assert t.decode(ids) == "".join(s.text for s in segments)
        assert all(t.decode(s.ids) == s.text for s in segments)
    ids = [i for s in prompt for i in s.ids]
    blocks = 1 if system is None else 2
    assert (ids.count(start), ids.count(end)) == (blocks + 1, blocks)
    ids = [i for s in after for i in s.ids]
    blocks = len(shown) if style == "markdown" else 1
    assert (ids.count(start), ids.count(end)) == (blocks + 1, blocks + (not ended))
    said = "".join(s.text for s in after if s.kind == "observation")
    assert said == "".join(shown).encode("utf-8", "replace").decode()


@both
@either_style
@given(data=st.data())
def test_parsing_never_raises_and_start_splits_the_ids_at_char(name: str, style: str, data: st.DataObject) -> None:
    t = tokenizer(name)
    chat = Chat(t, style=style)
    random_ids = st.lists(st.integers(0, t.size + 2), max_size=12)  # ids beyond the vocabulary too
    encoded = texts.map(lambda text: t.encode(text, special=True))
    ids = [i for part in data.draw(st.lists(random_ids | encoded, max_size=4)) for i in part]
    parsed = chat.parse(ids, prefix="3")
    assert parsed.text == t.decode(ids)
    marker = "```" if style == "markdown" else "<tool_call>"
    for n, call in enumerate(parsed.calls):
        assert call.id == f"3.{n}"
        assert parsed.text.startswith(marker, call.char)
        if call.start is not None:
            assert t.decode(ids[: call.start]) == parsed.text[: call.char]
            assert t.decode(ids[call.start :]) == parsed.text[call.char :]
        else:
            assert not any(t.decode(ids[:n]) == parsed.text[: call.char] for n in range(len(ids) + 1))


@both
@given(code=clean_texts.filter(lambda code: "```" not in code), before=st.sampled_from(["", "é\n", "let me see: "]))
def test_a_markdown_call_is_read_back(name: str, code: str, before: str) -> None:
    t = tokenizer(name)
    ids = t.encode(before) + t.encode(markdown.render_call(code)) + [t.special_id(TURN_END)]
    (call,) = Chat(t).parse(ids, prefix="0").calls
    assert (call.code, call.malformed, call.char, call.start) == (code, False, len(before), len(t.encode(before)))


@both
@given(code=clean_texts, before=st.sampled_from(["", "é\n", "I use <tool_call> now: "]))
def test_a_hermes_call_is_read_back_whatever_the_program_holds(name: str, code: str, before: str) -> None:
    t = tokenizer(name)
    ids = t.encode(before) + t.encode(hermes.render_call("python", {"code": code})) + [t.special_id(TURN_END)]
    (call,) = Chat(t, style="hermes").parse(ids, prefix="0").calls
    assert (call.name, call.arguments, call.char) == ("python", {"code": code}, len(before))
    assert call.start == len(t.encode(before))


def test_a_marker_inside_a_token_has_no_start() -> None:
    t = tokenizer("bpe")
    ids = t.encode("so ```python\n1\n```")
    assert " ```" in [t.decode([i]) for i in ids]
    (call,) = Chat(t).parse(ids, prefix="0").calls
    assert (call.char, call.start) == (3, None)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("```python\n1\n```", ["1"]),
        ("a ```py\n1\n\n2\n``` \nb", ["1\n\n2"]),
        ("```Python \r\n1\n```", ["1"]),
        ("```python\n```", [""]),
        ("````python\n'''\n```\n'''\n````", ["'''\n```\n'''"]),
        ("```python\nprint('```')\n```", ["print('```')"]),
        ("```python\n1\n```\nand\n```python\n2\n```", ["1", "2"]),
        ("I write ```python\nlike this:\n```python\n1\n```", ["1"]),
        ("```text\n1\n```", []),
        ("```\n1\n```", []),
        ("```python blocks are calls", []),
        ("no call", []),
    ],
)
def test_markdown_blocks(text: str, codes: list[str]) -> None:
    calls = Chat(ByteTokenizer()).parse_text(text, prefix="0").calls
    assert [c.arguments for c in calls] == [{"code": code} for code in codes]


@pytest.mark.parametrize("text", ["a\n```python\nprint(1", "a\n```python\nprint(1<|im_end|>"])
def test_an_unclosed_block_is_malformed(text: str) -> None:
    parsed = Chat(ByteTokenizer()).parse_text(text, prefix="0")
    assert [(c.arguments, c.char, c.start) for c in parsed.calls] == [("print(1", 2, None)]
    assert parsed.text == text


@pytest.mark.parametrize(
    ("inner", "name", "arguments"),
    [
        ('{"name": "python", "arguments": {"code": "1"}}', "python", {"code": "1"}),
        ('{"name": "search", "arguments": "{\\"q\\": 1}"}', "search", {"q": 1}),
        ('{"name": "python", "arguments": {"code": "</tool_call><tool_call>"}}', "python", None),
        ('{"name": "search", "arguments": {"q": "\\u001f<tool_call>"}}', "search", None),
        ('{"name": "search", "arguments": {"q": 1}', "search", "raw"),
        ('{"arguments": {"code": "1"}}', "python", "raw"),
        ('{"name": 3, "arguments": {"code": "1"}}', "python", "raw"),
        ('{"name": "search", "arguments": [1]}', "search", "raw"),
        ('{"name": "search", "arguments": "[1]"}', "search", "raw"),
        ('{"arguments": [{"name": "x"}], "name": "search"}', "search", "raw"),
        ('{"name": "python", "arguments": {"x": NaN}}', "python", "raw"),
        ('{"name": "python", "arguments": {"x": 1e999}}', "python", "raw"),
        ('{"name": "python", "arguments": {"code": "\\ud800"}}', "python", "raw"),
        ('{"name": "python", "arguments": "{\\"code\\": \\"\\\\ud800\\"}"}', "python", "raw"),
        ("[" * 20_000, "python", "raw"),
        ("print(1)", "python", "raw"),
        ("", "python", "raw"),
    ],
)
def test_hermes_calls(inner: str, name: str, arguments: object) -> None:
    chat = Chat(ByteTokenizer(), style="hermes")
    (call,) = chat.parse_text(f"so\n<tool_call>\n{inner}\n</tool_call>", prefix="0").calls
    expected = json.loads(inner)["arguments"] if arguments is None else inner if arguments == "raw" else arguments
    assert (call.name, call.arguments, call.char) == (name, expected, 3)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "python", "arguments": {"code": "1"}}', [{"code": "1"}]),
        ('<tool_call>{"name": "python", "arguments": {"cod', ['{"name": "python", "arguments": {"cod']),
        ("a <tool_call> b", ["b"]),
        ("<tool_call>1</tool_call><tool_call>2</tool_call>", ["1", "2"]),
        ("<tool_call> is how, so <tool_call>2</tool_call>", ["2"]),
        ("</tool_call>", []),
        ("```python\n1\n```", []),
    ],
)
def test_hermes_tags(text: str, arguments: list[str]) -> None:
    calls = Chat(ByteTokenizer(), style="hermes").parse_text(text, prefix="0").calls
    assert [c.arguments for c in calls] == arguments


def test_the_glue_of_each_style() -> None:
    calls = [ToolCall("0.0", "python", {}, 0), ToolCall("0.1", "python", {}, 0)]
    observed = [Observation("0.0", "3", "ok"), Observation("0.1", "", "error")]

    def glue(style: str) -> str:
        return "".join(s.text for s in Chat(ByteTokenizer(), style=style).observations(calls, observed))

    assert glue("markdown") == (
        "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert glue("hermes") == (  # the template that Qwen3 ships
        "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with pytest.raises(ValueError, match=r"\['0.0'\] do not answer calls \['0.0', '0.1'\]"):
        Chat(ByteTokenizer()).observations(calls, observed[:1])


def test_system_prompts_and_stop_ids() -> None:
    chat = Chat(ByteTokenizer(), system="be brief")
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(s.text for s in chat.prompt("hi")) == f"<|im_start|>system\nbe brief<|im_end|>\n{asked}"
    assert "".join(s.text for s in chat.prompt("hi", "")) == f"<|im_start|>system\n<|im_end|>\n{asked}"
    assert {s.kind for s in chat.prompt("hi")} == {"prompt"}
    assert chat.stop_ids == (258, 256)


def test_text_that_spells_a_stop_token_is_no_stop() -> None:
    t = ByteTokenizer()
    (call,) = Chat(t).parse(t.encode("```python\n1<|im_end|>"), prefix="0").calls
    assert call.arguments == "1<|im_end|>"


def test_a_style_that_is_not_there() -> None:
    with pytest.raises(RecipeError, match=r"no chat family 'hermès' \(did you mean 'hermes'\?\); there are: auto, "):
        Chat(ByteTokenizer(), style="hermès")
    here = "retcon.chat.families.hermes"
    for place, why in (
        ("no_such:X", "No module named"),
        (f"{here}:X", "has no 'X'"),
        (f"{here}:OPEN", "is not an instance of retcon.chat.family.Family"),
        ("harmony", "harmony frames messages by the model's own chat template alone: set style to 'auto'"),
    ):
        with pytest.raises(RecipeError, match=why):
            Chat(ByteTokenizer(), style=place)


def test_other_added_tokens_are_vocabulary_and_controls_need_no_mark() -> None:
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokens = [t | {"special": False} for t in json.loads(definition())["added_tokens"]]
    t = HubTokenizer(definition(added_tokens=[*tokens, base | {"id": 999, "content": "<tool_call>"}]))
    (tag,) = t.encode("<tool_call>")
    assert t.encode("<tool_call>", special=True) == [tag]
    assert t.encode(TURN_END, special=True) == [t.special_id(TURN_END)] != t.encode(TURN_END)


def test_a_tokenizer_that_cuts_pads_and_begins_texts_does_so_to_none_of_ours() -> None:
    """As files of published models say, which were written after they had been used for something else."""
    made = tokenizers.Tokenizer.from_str(definition())
    made.enable_truncation(4)
    made.enable_padding(length=16)
    first = CONTROLS[0]
    made.post_processor = processors.TemplateProcessing(single=f"{first} $A", special_tokens=[(first, 0)])
    t = HubTokenizer(made.to_str())
    for text in ("", "x", "let me compute it. " * 9, f"so{TURN_END}"):
        for special in (False, True):
            assert t.decode(t.encode(text, special=special)) == text


def test_a_tokenizer_that_changes_text_stands_in_for_no_servers() -> None:
    """The server would be told something else than was said. Qwen's put letters and their accents together."""
    with pytest.raises(RecipeError, match=r"mine cannot stand in .* it changes text \('e\u0301 .* model\.path = "):
        SurrogateTokenizer(HubTokenizer(definition(normalizer={"type": "NFC"})), "mine")
    for t in (tokenizer("bytes"), tokenizer("bpe")):
        mine = SurrogateTokenizer(t, "mine")
        assert mine.decode(mine.encode("e\u0301<|im_end|>")) == "e\u0301<|im_end|>"


def test_tokenizers_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not exist: a model folder needs its tokenizer\.json"):
        load_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    for broken in ("{", "[]", "{}", '{"added_tokens": [{}]}'):
        file.write_text(broken)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
            load_tokenizer(tmp_path)
    file.write_text(definition())
    t = load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"no control token '<\|im_ends\|>' \(did you mean '<\|im_end\|>'\?\)"):
        t.special_id("<|im_ends|>")
    whole = models.WordLevel({text: n for n, text in enumerate([*CONTROLS, "?"])}, unk_token="?")
    words = tokenizers.Tokenizer(whole)
    words.add_special_tokens(list(CONTROLS))
    file.write_text(words.to_str())
    with pytest.raises(CheckpointError, match="encodes to its control token"):
        load_tokenizer(tmp_path)


DIGESTS = {
    ("bytes", "markdown"): "603f7c05f96f6c29d4f6b24aed22fb336b9394d1281b2a96562df2144fb04837",
    ("bytes", "hermes"): "85b37b4cb7bfda1caa3bd0f501cde3d8dda728564e2d4cf34ba2f5ffce01da23",
    ("base", "markdown"): "c68474e285b77271843c3f7eb0219b5805cf9494d3a558309f9f254a3417b298",
    ("base", "hermes"): "05c3118d8e4184599a19c7e91a859ee429941d64a69a97bf699fd6c4690ab15c",
}


@pytest.mark.parametrize(("name", "style"), DIGESTS)
def test_the_ids_of_the_first_styles_do_not_change(name: str, style: str) -> None:
    """Runs, demonstrations and the shipped model hold them."""
    base = Path(retcon.__file__).parent / "assets" / "base"
    chat = Chat(ByteTokenizer() if name == "bytes" else load_tokenizer(base), style=style)
    said = ["", "x", "it.\n", "\n x", "<|im_end|> é", "```python\n1\n```", "<tool_call>", '{"a": "\\n"}']
    digest = hashlib.sha256()
    for text, system in itertools.product(said, [None, *said]):
        calls = [ToolCall(f"0.{n}", "python", {"code": ""}, 0) for n in range(2)]
        observed = [Observation("0.0", text, "ok"), Observation("0.1", system or "", "error")]
        for segments in (
            chat.prompt(text, system),
            chat.observations(calls[:1], observed[:1], last_id=chat.stop_ids[-1]),
            chat.observations(calls, observed, messages=[("user", text)]),
            chat.render_messages([("user", text)]),
            [chat.render_turn(text)],
        ):
            observed_alone = [s.text for s in segments if s.kind == "observation"]
            digest.update(repr((text_of(segments), ids_of(segments), observed_alone)).encode())
        parsed = chat.parse(chat.tokenizer.encode(f"{system}\n{text}"), prefix="0")
        digest.update(repr([(c.id, c.name, c.arguments, c.char, c.start) for c in parsed.calls]).encode())
    assert digest.hexdigest() == DIGESTS[name, style]
