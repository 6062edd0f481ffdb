"""Learn from a chat template how a model writes calls, and check what was learnt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retcon.chat.chat import Chat
from retcon.chat.checks import ChatCheck, check_chat
from retcon.chat.family import Framing
from retcon.chat.formats import (
    CDATA,
    ID,
    IDS,
    KEY,
    KEYS,
    NAMED,
    NAMES,
    VALUES,
    Arguments,
    CallFormat,
    UnknownFormat,
    common_end,
    common_start,
    from_json,
    read_python,
    whole_tags,
)  # fmt: skip
from retcon.chat.jsons import read_value
from retcon.chat.learned import OUTPUT, OUTPUT_END, CodeBlockFraming, CodeBlocks, LearnedFamily
from retcon.chat.template import DIALECTS, PROBED, ROLES, Message, Refused, Template, Templated
from retcon.chat.thoughts import THOUGHTS, before_thought, without_thought
from retcon.chat.types import REASONING, Answer, Tokenizer
from retcon.core.errors import RecipeError
from retcon.core.types import ToolSpec

WORDS = "zqwords"
_NUMBER = 917
_PROBE = ToolSpec(
    "zqprobe",
    "zqdescription",
    {"type": "object", "properties": {k: {"type": "string", "description": k} for k in ("zqfirst", "zqsecond")}},
)
_TAG = r"[<\[][^<>\[\]]*[>\]][^\s<>\[\]]*"
"""A tag, and a word after it."""
_QUESTION, _RESULT, _AFTER = "zqquestion", "zqresult", "zqafter"


@dataclass(frozen=True, slots=True)
class Learned:
    """A chat by a template, how it was checked, and why its calls are code blocks, if they are."""

    chat: Chat
    check: ChatCheck
    why_blocks: str = ""


class _Turns:
    """Renders the turns that learning compares."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.thoughts = _thoughts(template)
        self._opened = template.render([{"role": "user", "content": _QUESTION}], [_PROBE.as_function()])
        try:
            reply = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": WORDS}]
            said = template.render(reply, [_PROBE.as_function()], opening=False)
        except Refused:
            said = ""
        followed = self._conversation(WORDS, ())
        said = said if WORDS in said else followed
        at = said.find(WORDS)
        if at < 0 or WORDS not in followed:
            raise UnknownFormat("the template leaves out what the assistant says")
        self.header = whole_tags(common_start(self._opened, said[:at]))
        if not self._opens_calls():
            self.header = whole_tags(common_start(before_thought(self._opened, self.thoughts), said[:at]))
        self.before_words = without_thought(said[len(self.header) : at], self.thoughts)
        self.within = "".join((self.before_words, *(marker for pair in self.thoughts for marker in pair)))
        self.answer_tail = followed[followed.find(WORDS) + len(WORDS) : followed.find(_AFTER)]

    def _opens_calls(self) -> bool:
        """Whether a turn with a call begins as the prompt ends."""
        try:
            return self._conversation("", [("zqprobe", {"zqfirst": "1"}, "zqcallid1")]).startswith(self.header)
        except UnknownFormat:
            return True

    @property
    def opening_rest(self) -> str:
        """What the prompt opens a turn with beyond its header, such as `<think>`."""
        return self._opened[len(self.header) :]

    @property
    def shows_tools(self) -> bool:
        return _PROBE.description in self._opened

    def turn(self, content: str, calls: Sequence[tuple[str, Mapping[str, object], str]]) -> str:
        whole = self._conversation(content, calls)
        if not whole.startswith(self.header):
            raise UnknownFormat("the template writes calls into a message of another kind than words")
        body = without_thought(whole[len(self.header) :], self.thoughts)
        at = body.find(_RESULT)
        if at < 0:
            raise UnknownFormat("the template leaves out what a tool answers")
        return body[:at]

    def _conversation(self, content: str, calls: Sequence[tuple[str, Mapping[str, object], str]]) -> str:
        made = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            for name, arguments, id in calls
        ]
        reply: dict[str, object] = {"role": "assistant", "content": content}
        results = [{"role": "tool", "content": _RESULT, "name": c[0], "tool_call_id": c[2]} for c in calls]
        after = [] if calls else [{"role": "user", "content": _AFTER}]
        messages: list[Message] = [
            {"role": "user", "content": _QUESTION},
            reply | ({"tool_calls": made} if made else {}),
            *results,
            *after,
        ]
        try:
            return self._template.render(messages, [_PROBE.as_function()], opening=bool(calls))
        except Refused as error:
            raise UnknownFormat(str(error)) from error


def _tags_after(text: str) -> str:
    """The text without the end of a tag at its beginning."""
    return text[match.end() :] if (match := re.match(r"[^<>\[\]{}(]*[>\]]", text)) else text


def _call_of(n: int, arguments: Mapping[str, object]) -> tuple[str, Mapping[str, object], str]:
    return NAMES[n], arguments, IDS[n]


def learn_format(turns: _Turns, words: str) -> CallFormat:
    """The format of the calls that a template renders.

    words: what a turn says before its calls, in probes. Raises UnknownFormat.
    """
    one_argument = {KEYS[0]: VALUES[0]}
    one = turns.turn("", [_call_of(0, one_argument)])
    span = _object_span(one, NAMES[0], one_argument)
    try:
        two: str | None = turns.turn("", [_call_of(0, one_argument), _call_of(1, one_argument)])
        if NAMES[1] not in (two or ""):
            two = None
    except ValueError:
        two = None
    if span is not None:
        return _object_format(turns, one, two, span, one_argument, words)
    arguments = one.find(KEYS[0])
    at = one.rfind(
        NAMES[0], 0, arguments if arguments >= 0 else None
    )  # the last before them: a marker may have it, too
    if at < 0:
        raise UnknownFormat("it shows no calls of tools")
    json_span = _json_span(one, at + len(NAMES[0]), one_argument)
    if json_span is not None:
        return _named_format(turns, one, two, at, json_span, words)
    return _tags_format(turns, one, two, at, words)


def _marked(text: str) -> str:
    for marker, probes in ((ID, IDS), (NAMED, NAMES)):
        for one in probes:
            text = text.replace(one, marker)
    return text


def _object_span(text: str, name: str, arguments: Mapping[str, object]) -> tuple[int, int] | None:
    """Where the outermost JSON object stands that holds a call's name and its arguments."""
    at = text.find(name)
    for start in (match.start() for match in re.finditer(r"\{", text[: max(at, 0)])):
        try:
            value, end = read_value(text, start, None)
        except (ValueError, RecursionError):
            continue
        if end > at and isinstance(value, dict) and _names(value, name, arguments) is not None:
            return start, end
    return None


def _names(value: Mapping[str, Any], name: str, arguments: Mapping[str, object]) -> tuple[str | None, str, str] | None:
    """Keys of name and arguments in an object, and the key that both stand under."""
    if list(value) == [name] and value[name] == arguments:
        return None, "", ""
    for wrapped, inner in [("", value), *((k, v) for k, v in value.items() if isinstance(v, dict))]:
        keys = [k for k, v in inner.items() if v == name]
        given = [k for k, v in inner.items() if v == arguments or (isinstance(v, str) and from_json(v) == arguments)]
        if keys and given:
            return keys[0], given[0], wrapped
    return None


def _json_span(text: str, start: int, arguments: Mapping[str, object]) -> tuple[int, int] | None:
    for at in (match.start() for match in re.finditer(r"\{", text)):
        if at < start:
            continue
        try:
            value, end = read_value(text, at, None)
        except (ValueError, RecursionError):
            continue
        if value == arguments:
            return at, end
    return None


def _around(pre: str, tail: str, between: str | None) -> tuple[str, str, str, str, str]:
    """begin, opening, closing, between, end: from what stands before the first call, after the last, between two."""
    if between is None:
        return "", pre, tail, "", ""
    closing = whole_tags(common_start(tail, between))
    opening = _tags_after(common_end(pre, between[len(closing) :]))
    return (
        pre[: len(pre) - len(opening)],
        opening,
        closing,
        between[len(closing) : len(between) - len(opening)],
        tail[len(closing) :],
    )


def _after_words(turns: _Turns, words: str, marker: str, around: tuple[str, str, str, str, str]) -> str:
    """What stands between a turn's words and its first call's opening; as without words where a turn has none.

    marker: what follows the opening.
    """
    begin, opening, _, between, _ = around
    marked = (begin + opening).strip().rstrip("[,").strip()
    alone = begin if marked else f"\n{begin.lstrip()}"  # a call without a marker begins a line
    if turns.before_words:  # words are a message of their own
        alone = between + begin
    try:
        text = _marked(turns.turn(words, [_call_of(0, {KEYS[0]: VALUES[0]})]))
    except ValueError:
        return alone
    at = text.find(words)
    first = text.find(opening + marker, at)
    found = text[at + len(words) : first]
    return found if 0 <= at < first and (marked or "\n" in found) else alone


def _object_format(
    turns: _Turns, one: str, two: str | None, span: tuple[int, int], arguments: Mapping[str, object], words: str
) -> CallFormat:
    value, _ = read_value(one, span[0], None)
    keys = _names(value, NAMES[0], arguments)
    assert keys is not None
    between = None
    if two is not None:
        second = _object_span(two[span[1] :], NAMES[1], arguments)
        first = _object_span(two, NAMES[0], arguments)
        if second is not None and first is not None:
            between = two[first[1] : span[1] + second[0]]
    around = _around(one[: span[0]], one[span[1] :], between)
    after_words = _after_words(turns, words, _marked(one[span[0] : span[1]]), around)
    return CallFormat(
        "object", *around, after_words=after_words, name_key=keys[0], arguments_key=keys[1], wrapped=keys[2],
        parallel=between is not None, shows_id=IDS[0] in one, probe=one[span[0] : span[1]],
    )  # fmt: skip


def _named_format(turns: _Turns, one: str, two: str | None, at: int, span: tuple[int, int], words: str) -> CallFormat:
    after = _marked(one[at + len(NAMES[0]) : span[0]])
    between = None
    numbered = False
    if two is not None:
        second = two.find(NAMES[1])
        first = _json_span(two, two.find(NAMES[0]), {KEYS[0]: VALUES[0]})
        if first is not None and second > first[1]:
            between = _marked(two[first[1] : second])
            own = _json_span(two, second, {KEYS[0]: VALUES[0]})
            if own is not None:
                later = _marked(two[second + len(NAMES[1]) : own[0]])
                numbered = later != after and re.sub(r"\d+", "", later) == re.sub(r"\d+", "", after)
    around = _around(_marked(one[:at]), _marked(one[span[1] :]), between)
    after_words = _after_words(turns, words, NAMED, around)
    return CallFormat(
        "named", *around, after_words=after_words, after_name=after, parallel=between is not None,
        shows_id=IDS[0] in one, numbered=numbered,
    )  # fmt: skip


def _tags_format(turns: _Turns, one: str, two: str | None, at: int, words: str) -> CallFormat:
    name, key, value = NAMES[0], KEYS[0], VALUES[0]
    pre = _marked(one[:at])
    rest = one[at + len(name) :]
    if re.match(rf"\s*\(\s*{key}\s*=", rest):
        return _python_format(turns, one, two, at, words)
    first, then = rest.find(key), rest.find(value)
    if not 0 <= first < then:
        raise UnknownFormat("the template shows arguments in no order of key and value")
    pair = turns.turn("", [_call_of(0, {key: value, KEYS[1]: VALUES[1]})])
    number = turns.turn("", [_call_of(0, {key: _NUMBER, KEYS[1]: _NUMBER})])
    rest2 = pair[at + len(name) :]
    k1, v1 = rest2.find(key), rest2.find(value)
    k2, v2 = rest2.find(KEYS[1], v1), rest2.find(VALUES[1], v1)
    if not k1 < v1 < k2 < v2:
        raise UnknownFormat("the template shows two arguments in no order of key and value")
    middle, tail = rest[first + len(key) : then], rest[then + len(value) :]
    across = rest2[v1 + len(value) : k2]
    across = across.replace(f"/{key}", f"/{KEY}")
    tail = tail.replace(f"/{key}", f"/{KEY}")
    head = rest[:first]
    rest3 = number[at + len(name) :]
    n1 = rest3.find(key)
    w1 = rest3.find(str(_NUMBER), n1)
    m1 = rest3.find(KEYS[1], w1)
    middle_other = rest3[n1 + len(key) : w1]
    across_other = rest3[w1 + len(str(_NUMBER)) : m1].replace(f"/{key}", f"/{KEY}")
    quote = ""
    if middle != middle_other and middle.startswith(middle_other):
        quote = middle[len(middle_other) :]
        if across != quote + across_other:
            raise UnknownFormat(f"the template writes {middle!r} before a string and {across!r} after it")
        across, tail = across_other, tail.removeprefix(quote)
    json_strings = quote == '"'
    if json_strings:
        quote, middle = "", middle_other
    opening = common_end(head, across).removeprefix(">")  # of the tag before it
    closing = common_start(tail, across[: len(across) - len(opening)] if opening else across)
    between = across[len(closing) : len(across) - len(opening)]
    cdata = ""
    if not quote and CDATA in turns.turn("", [_call_of(0, {key: "<&\n"})]):
        cdata = "".join(c for c in "<&\n" if CDATA in turns.turn("", [_call_of(0, {key: c})]))
    tags = Arguments(opening, middle, closing, between, middle_other, quote, json_strings, cdata)
    after_name, tail = head[: len(head) - len(opening)], _marked(tail[len(closing) :])
    joined = None
    if two is not None:
        second = two.rfind(NAMES[1])
        end_of_first = two.find(value) + len(value)
        joined = _marked(two[end_of_first:second].replace(f"/{key}", f"/{KEY}"))
        joined = joined.removeprefix('"' if json_strings else quote).removeprefix(closing)
    around = _around(pre, tail, joined)
    after_words = _after_words(turns, words, NAMED, around)
    return CallFormat(
        "tags", *around, after_words=after_words, after_name=_marked(after_name), tags=tags,
        parallel=joined is not None, shows_id=IDS[0] in one,
    )  # fmt: skip


def _python_format(turns: _Turns, one: str, two: str | None, at: int, words: str) -> CallFormat:
    close = one.find(")", one.find(VALUES[0])) + 1
    between = None
    if two is not None:
        between = two[two.find(")", two.find(VALUES[0])) + 1 : two.find(NAMES[1])]
    around = _around(one[:at], one[close:], between)
    quote, after_words = one[one.find(VALUES[0]) - 1], _after_words(turns, words, NAMED, around)
    hard = {KEYS[0]: "'\"\n"}
    try:
        written = turns.turn("", [_call_of(0, hard)])
        readable = read_python(written[written.find(NAMES[0]) : written.rfind(")") + 1]) == [(NAMES[0], hard)]
    except (SyntaxError, ValueError):
        readable = False
    return CallFormat(
        "python", *around, after_words=after_words, parallel=two is not None, readable=readable, probe=quote
    )


def learn_chat(
    template: Template, tokenizer: Tokenizer, ends: Sequence[str], *, system: str | None, tools: Sequence[ToolSpec]
) -> Learned:
    """The chat of a model by its template alone, checked against what the template renders.

    Calls are as the template writes them; where it writes none, or none that can be read back, they are code blocks
    which a system prompt explains. ends: control tokens that end a text by the model's own configuration. Raises
    RecipeError, which says what of the template cannot be followed.
    """
    reasons: list[str] = []
    for build in (_native_chat, _code_block_chat):
        for dialect in DIALECTS:
            template.dialect = dialect
            try:
                chat = build(template, tokenizer, ends)
                check = check_chat(chat, template)
            except (UnknownFormat, Refused, RecipeError) as error:
                reasons.append(str(error))
                continue
            if check.trains:
                asked = Chat(tokenizer, system=system, tools=tools, framing=chat.framing, family=chat.family)
                return Learned(asked, check, _distinct(reasons, template)[0] if build is _code_block_chat else "")
            reasons += check.differs
    why = "; ".join(_distinct(reasons, template)[:4])
    raise RecipeError(f"{template.where}: this chat template cannot be followed: {why}")


def _distinct(reasons: Sequence[str], template: Template) -> list[str]:
    return list(dict.fromkeys(reason.replace(f"{template.where}: ", "") for reason in reasons))


def _end_of_turn(tail: str, tokenizer: Tokenizer, ends: Sequence[str], within: str) -> str:
    """The control token that ends a turn: one of the model's own, else the first, of those that do not stand in it.

    tail: what follows words or calls. within: what stands in the turn before it.
    """
    if own := [(tail.find(end), end) for end in ends if end and end in tail]:
        return min(own)[1]
    found = [(c in within, tail.find(c), -len(c), c) for c in tokenizer.controls if c in tail]
    if not found:
        raise UnknownFormat("the template ends a turn with no control token")
    return min(found)[3]


def _native_chat(template: Template, tokenizer: Tokenizer, ends: Sequence[str]) -> Chat:
    turns = _Turns(template)
    form = learn_format(turns, WORDS)
    answer_end = _end_of_turn(turns.answer_tail, tokenizer, ends, turns.within)
    tail = form.end if form.parallel else form.closing
    between = form.opening + form.closing + form.between if form.parallel else form.opening
    call_end = _end_of_turn(tail, tokenizer, [answer_end, *ends], between)
    if not turns.shows_tools:
        raise UnknownFormat("the chat template does not show the model any tools")
    cut = tail[: tail.find(call_end)]
    form = replace(form, end=cut) if form.parallel else replace(form, closing=cut)
    family = _family(LearnedFamily, form, turns, tuple(dict.fromkeys((answer_end, call_end))), call_end, ends)
    framing = Templated(template, family)
    family = replace(family, observed_between=_around_observation(framing))
    framing = Templated(template, family)
    return Chat(tokenizer, framing=framing, family=family)


def _code_block_chat(template: Template, tokenizer: Tokenizer, ends: Sequence[str]) -> Chat:
    turns = _Turns(template)
    answer_end = _end_of_turn(turns.answer_tail, tokenizer, ends, turns.within)
    form = CallFormat("object", "", "", "", "", "")
    family = _family(CodeBlocks, form, turns, (answer_end,), answer_end, ends)
    family = replace(family, observed_between=(OUTPUT, OUTPUT_END))
    framing = CodeBlockFraming(Templated(template, family, ROLES[:3]))
    return Chat(tokenizer, framing=framing, family=family)


def _family(
    kind: type[LearnedFamily], form: CallFormat, turns: _Turns, own: tuple[str, ...], call_end: str,
    stops: Sequence[str],
) -> LearnedFamily:  # fmt: skip
    thoughts = turns.thoughts
    rest = turns.opening_rest.strip()
    opens = bool(rest) and any(rest == opening for opening, _ in thoughts)
    thoughts = tuple(sorted(thoughts, key=lambda pair: pair[0] != rest)) if opens else thoughts
    after_words = turns.answer_tail[: turns.answer_tail.find(own[0])]
    stops = tuple(stop for stop in stops if stop not in own)
    return kind(form, own, call_end, thoughts, opens, turns.before_words, after_words, stops=stops)


def _thoughts(template: Template) -> tuple[tuple[str, str], ...]:
    """What a model thinks between: as the template shows reasoning, and as most models write it."""
    found = []
    for key in REASONING:
        reply = {"role": "assistant", "content": WORDS, key: "zqthought"}
        try:
            text = template.render([{"role": "user", "content": _QUESTION}, reply], opening=False)
        except Refused:
            continue
        before, thought, rest = text.partition("zqthought")
        between, words, _ = rest.partition(WORDS)
        openings = (re.search(rf"(?:{_TAG}){{{n}}}\s*\Z", before) for n in (1, 2, 3))
        closings = (re.match(rf"\s*(?:{_TAG}){{{n}}}", between) for n in (1, 2, 3))
        opening, closing = (
            next((tag for match in tags if match and text.count(tag := match[0].strip()) == 1), "")
            for tags in (openings, closings)
        )
        if thought and words and opening and closing:
            found.append((opening, closing))
    return tuple(dict.fromkeys([*found, *THOUGHTS]))


def _around_observation(framing: Framing) -> tuple[str, str]:
    """What stands right before and after an observation."""
    pieces = framing.observed([Answer(PROBED.name, "zqresult", "")], ())
    at = next(n for n, piece in enumerate(pieces) if piece.sort == "observation")
    before = "".join(piece.text for piece in pieces[:at])
    after = "".join(piece.text for piece in pieces[at + 1 :])
    return before[-24:], after[:24]
