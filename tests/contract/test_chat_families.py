"""What every family of chats must do, over a tokenizer of bytes with its control tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversing import NAMES, SEARCH, TOOLS, Turned, bytes_of, chat_of, conversed, family_of, ids_of, text_of
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES, NamedCall, family_of_template, family_of_tokens
from retcon.chat.template import Template
from retcon.core.types import Observation, ToolSpec

NAMING = [name for name in NAMES if family_of(name).names_calls]
SEVERAL = [name for name in NAMING if name != "bare"]
"""Those of which a turn may have several calls."""
CODE = {"code": "x = '</tool_call> <|im_end|> [TOOL_CALLS]'\nprint(x, \"é\\n\")"}
nasty = st.sampled_from(
    ["<tool_call>", "{", "}", '"', "\\", "\n", " ", "é", "😀", "[TOOL_CALLS]", "```", "x = 1", "{}"]
)
texts = st.lists(nasty | st.text(max_size=3), max_size=6).map(lambda t: "".join(t).encode("utf-8", "replace").decode())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", ["", "I try."])
def test_a_call_is_read_back_and_begins_at_an_id_of_its_own(name: str, words: str) -> None:
    chat = chat_of(name)
    turn = chat.render_turn(words, [("python", CODE)])
    parsed = chat.parse(turn.ids, prefix="3")
    (call,) = parsed.calls
    assert (call.id, call.name, call.arguments) == ("3.0", "python", CODE)
    assert parsed.text == turn.text
    assert chat.tokenizer.decode(turn.ids[call.start :]) == turn.text[call.char :]
    assert chat.tokenizer.decode(turn.ids[: call.start]) == turn.text[: call.char]
    assert words in turn.text[: call.char]


@pytest.mark.parametrize("name", SEVERAL)
def test_several_calls_of_several_tools(name: str) -> None:
    calls = [("python", CODE), ("search", {"query": "b", "top": 2})]
    chat = chat_of(name)
    parsed = chat.parse(chat.render_turn("so", calls).ids, prefix="0")
    assert [(call.name, call.arguments) for call in parsed.calls] == calls
    assert [call.id for call in parsed.calls] == ["0.0", "0.1"]
    assert parsed.calls[0].char <= parsed.calls[1].char


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_call_has_none(name: str) -> None:
    chat = chat_of(name)
    assert chat.parse(chat.render_turn("It is 42: {1, 2} and [3].").ids, prefix="0").calls == ()


@pytest.mark.parametrize("name", NAMING)
@given(data=st.data())
def test_whatever_the_arguments_hold_is_read_back(name: str, data: st.DataObject) -> None:
    query = data.draw(texts)
    chat = chat_of(name)
    parsed = chat.parse(chat.render_turn("", [("search", {"query": query})]).ids, prefix="0")
    assert [(call.name, call.arguments) for call in parsed.calls] == [("search", {"query": query})]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_parsing_never_raises_and_starts_split_the_ids(name: str, data: st.DataObject) -> None:
    chat = chat_of(name)
    t = chat.tokenizer
    marks = st.sampled_from(
        [*t.controls, "to=functions.python", "function", "python", "```json\n", "<tool_call>", "<function="]
    )
    parts = data.draw(st.lists(texts | marks, max_size=10))
    ids = [i for part in parts for i in t.encode(part, special=data.draw(st.booleans()))]
    parsed = chat.parse(ids, prefix="0")
    assert parsed.text == t.decode(ids)
    for call in parsed.calls:
        if call.start is not None:
            assert t.decode(ids[: call.start]) == parsed.text[: call.char]
            assert t.decode(ids[call.start :]) == parsed.text[call.char :]
    assert [c.char for c in parsed.calls] == sorted(c.char for c in parsed.calls)


@pytest.mark.parametrize("name", NAMES)
@given(said=texts, shown=texts)
def test_what_users_and_tools_write_holds_no_control_id(name: str, said: str, shown: str) -> None:
    """Whatever markup they write: as many control ids as when they write none."""
    chat = chat_of(name)
    controls = {chat.tokenizer.special_id(c) for c in chat.tokenizer.controls}
    markup = "".join(chat.tokenizer.controls)

    def counted(said: str, shown: str) -> list[int]:
        parts = conversed(chat, [("try", [("python", CODE)], [shown]), ("so", (), [said])], said)
        return [i for i in ids_of([s for part in parts for s in part]) if i in controls]

    assert counted(said + markup, shown + markup) == counted("x", "x")


@pytest.mark.parametrize("name", NAMES)
def test_each_turn_goes_on_where_the_one_before_ended(name: str) -> None:
    """The history after every turn begins with the one before it, and each turn with what was sampled."""
    chat = chat_of(name)
    turns = [
        ("I try.", [("python", CODE)], ["1"]),
        ("Again.", [("python", {"code": "2"})], ["2"]),
        ("Two.", (), ["Why?"]),
    ]
    parts = conversed(chat, turns)
    for n, (words, calls, _) in enumerate(turns):
        assert conversed(chat, turns[:n]) == parts[: n + 1]
        assert parts[n + 1][0].kind == "sampled"
        assert parts[n + 1][0].ids == chat.render_turn(words, calls).ids
    assert [s.text for part in parts for s in part if s.kind == "observation"] == ["1", "2"]
    assert chat.observations_in(ids_of([s for part in parts for s in part])) == ["1", "2"]


@pytest.mark.parametrize("name", [name for name in FAMILIES.names if FAMILIES.find(name).template])
@pytest.mark.parametrize("system", [None, "Solve it."])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["bare", "tools"])
def test_the_template_of_a_family_says_what_its_framing_does(
    name: str, system: str | None, tools: tuple[ToolSpec, ...]
) -> None:
    """A model that was trained in the framing is asked through the template by every other program."""
    family = FAMILIES.find(name)
    chat = Chat(bytes_of(name), style=name, system=system, tools=tools)
    two: list[NamedCall] = [("python", CODE), ("search", {"query": 'é "b"', "top": 2})]
    turns: list[Turned] = [
        ("I try.", two[:1], ["1\n"]),
        ("", two if family.names_calls else two[:1], ["2", "<3>"] if family.names_calls else ["2"]),
        ("It is 42.", (), ["Why?"]),
    ]
    messages: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "go"})
    for text, calls, answers in turns:
        if family.names_calls:
            called = [{"function": {"name": tool, "arguments": arguments}} for tool, arguments in calls]
            messages.append({"role": "assistant", "content": text, "tool_calls": called})
        else:
            messages.append(
                {"role": "assistant", "content": chat.render_turn(text, calls).text.removesuffix(family.ends[0])}
            )
        messages += [{"role": "tool" if calls else "user", "content": answer} for answer in answers]
    shown = [tool.as_function() for tool in tools]
    said = "".join(text_of(part) for part in conversed(chat, turns, "go"))
    assert Template(family.template).render(messages, shown) == said
    assert Template(family.template).render(messages[:-1], shown, opening=False) + "<|im_start|>" in said
    assert family_of_template(family.template) is family


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_that_was_cut_is_closed(name: str) -> None:
    chat = chat_of(name)
    turn = chat.render_turn("", [("python", CODE)])
    parsed = chat.parse(turn.ids, prefix="0")
    seen = [Observation("0.0", "1", "ok")]
    ended = chat.observations(parsed.calls, seen, last_id=turn.ids[-1], written=parsed.text)
    cut = chat.observations(parsed.calls, seen, last_id=turn.ids[-2], written=parsed.text)
    assert text_of(cut) == chat.family.ends[0] + text_of(ended)
    assert turn.ids[-1] in chat.stop_ids


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("markdown", "hermes", "plain")])
def test_tools_are_shown_by_name_description_and_arguments(name: str) -> None:
    shown = text_of(chat_of(name).prompt("q"))
    for part in ("python", "search", SEARCH.description, "query", "top"):
        assert part in shown
    assert SEARCH.description not in text_of(chat_of(name, None, ()).prompt("q"))


def test_a_tokenizer_without_a_template_is_of_the_family_whose_tokens_it_has() -> None:
    assert family_of_tokens({*FAMILIES.find("qwen").tokens, "<s>"}) is FAMILIES.find("qwen")
    assert family_of_tokens({"<|begin|>"}) is None
