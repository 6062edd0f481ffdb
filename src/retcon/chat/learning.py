"""Learn the syntax of calls from a chat template, and check it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from retcon.chat.chat import Chat
from retcon.chat.checks import ChatCheck, Comparison
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
    read_quoted,
    whole_tags,
)  # fmt: skip
from retcon.chat.jsons import read_value
from retcon.chat.learned import OUTPUT, OUTPUT_END, CodeBlockFraming, CodeBlocks, LearnedFamily
from retcon.chat.template import DIALECTS, PROBED, ROLES, RenderError, Template, TemplateFraming, message, tool_call
from retcon.chat.thoughts import THOUGHTS, strip_empty_thought, strip_opened_thought
from retcon.chat.types import REASONING, Answer, Tokenizer
from retcon.core.errors import RecipeError
from retcon.core.types import ToolSpec

_WORDS, _QUESTION, _RESULT, _AFTER, _NUMBER = "zqwords", "zqquestion", "zqresult", "zqafter", 917
_PROBE = ToolSpec(
    "zqprobe",
    "zqdescription",
    {"type": "object", "properties": {k: {"type": "string", "description": k} for k in KEYS}},
)
_ONE = {KEYS[0]: VALUES[0]}
_TAG = r"[<\[][^<>\[\]]*[>\]][^\s<>\[\]]*"
"""Pattern of a tag and a word after it."""


@dataclass(frozen=True, slots=True)
class LearnedChat:
    """Chat by a template, its check, and any reason for code blocks."""

    chat: Chat
    check: ChatCheck
    why_blocks: str = ""


class _Turns:
    """Renderer of the turns that learning compares."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self.thoughts = _thoughts(template)
        self._opened = template.render([message("user", _QUESTION)], [_PROBE.as_function()])
        followed = shown = self._conversation(_WORDS, ())
        try:
            reply = [message("user", _QUESTION), message("assistant", _WORDS)]
            last = template.render(reply, [_PROBE.as_function()], opening=False)
            shown = last if _WORDS in last else shown
        except RenderError:
            pass
        if _WORDS not in followed:
            raise UnknownFormat("the template leaves out what the assistant says")
        before = shown[: shown.find(_WORDS)]
        self.header = whole_tags(common_start(self._opened, before))
        if not self._opens_calls():
            self.header = whole_tags(common_start(strip_opened_thought(self._opened, self.thoughts), before))
        self.before_words = strip_empty_thought(before[len(self.header) :], self.thoughts)
        self.answer_tail = followed[followed.find(_WORDS) + len(_WORDS) : followed.find(_AFTER)]
        self.opening_rest = self._opened[len(self.header) :]  # such as `<think>`
        self.shows_tools = _PROBE.description in self._opened

    def _opens_calls(self) -> bool:
        """Return whether a turn with a call begins as the prompt ends."""
        try:
            return self._conversation("", [_ONE]).startswith(self.header)
        except UnknownFormat:
            return True

    def turn(self, *calls: Mapping[str, object], words: str = "") -> str:
        """Render a turn with words and calls, up to the first answer."""
        whole = self._conversation(words, calls)
        if not whole.startswith(self.header):
            raise UnknownFormat("the template writes calls into a message of another kind than words")
        body, found, _ = strip_empty_thought(whole[len(self.header) :], self.thoughts).partition(_RESULT)
        if not found:
            raise UnknownFormat("the template leaves out what a tool answers")
        return body

    def _conversation(self, words: str, calls: Sequence[Mapping[str, object]]) -> str:
        made = [tool_call(NAMES[n], arguments, IDS[n]) for n, arguments in enumerate(calls)]
        reply = message("assistant", words) | ({"tool_calls": made} if made else {})
        results = [message("tool", _RESULT, NAMES[n], IDS[n]) for n in range(len(calls))]
        messages = [message("user", _QUESTION), reply, *(results or [message("user", _AFTER)])]
        try:
            return self._template.render(messages, [_PROBE.as_function()], opening=bool(calls))
        except RenderError as error:
            raise UnknownFormat(str(error)) from error


_Span = tuple[int, int]
_Find = Callable[[str, int], _Span | None]
"""Where the n-th call stands in a turn: from its object or its name on, to the end of its arguments."""


def learn_format(turns: _Turns) -> CallFormat:
    """Learn the format of the calls that a template renders. Raises UnknownFormat."""
    one = turns.turn(_ONE)
    if span := _object_span(one, 0):
        found = one[slice(*span)]
        name_key, arguments_key = _keys(read_value(found, 0)[0], NAMES[0]) or ("", "")
        about = {"name_key": name_key, "arguments_key": arguments_key, "probe": found}
        return _format(turns, "object", _object_span, _marked(found), **about)
    at = _name_start(one, 0)
    if at < 0:
        raise UnknownFormat("it shows no calls of tools")
    rest = one[at + len(NAMES[0]) :]
    if _named_span(one, 0):
        after = _marked(rest[: _json_span(rest)[0]])
        form = _format(turns, "named", _named_span, NAMED, after_name=after)
        two = turns.turn(_ONE, _ONE) if form.parallel else ""
        rest = two[_name_start(two, 1) + len(NAMES[1]) :]
        later = _marked(rest[: _json_span(rest)[0]])
        counted = form.parallel and later != after and re.sub(r"\d+", "", later) == re.sub(r"\d+", "", after)
        return replace(form, numbered=counted)
    if quoted := re.match(rf"{{{KEYS[0]}:(\S+){VALUES[0]}\1}}", rest):
        return _format(turns, "named", lambda text, n: _quoted_span(text, n, quoted[1]), NAMED, quote=quoted[1])
    if re.match(rf"\s*\(\s*{KEYS[0]}\s*=", rest):
        return _python_format(turns, one)
    return _tags_format(turns)


def _format(
    turns: _Turns, syntax: Literal["object", "named", "tags", "python"], find: _Find, follows: str, **about: Any
) -> CallFormat:
    """Learn the text around calls from turns with one, two, and words before. follows: an opening."""
    one, between = turns.turn(_ONE), None
    try:
        two = turns.turn(_ONE, _ONE)
        first, second = find(two, 0), find(two, 1)
        if first and second and NAMES[1] in two:
            between = _marked(two[first[1] : second[0]])
    except ValueError:
        pass
    start, end = find(one, 0) or (0, 0)
    begin, opening, closing, end_of_all = "", _marked(one[:start]), _marked(one[end:]), ""
    if between is not None:
        pre, tail = opening, closing
        closing = whole_tags(common_start(tail, between))
        opening = re.sub(r"\A[^<>\[\]{}(]*[>\]]", "", common_end(pre, between[len(closing) :]))  # whole tags
        begin, end_of_all = pre[: len(pre) - len(opening)], tail[len(closing) :]
        between = between[len(closing) : len(between) - len(opening)]
    return CallFormat(
        syntax, begin, opening, closing, between or "", end_of_all, parallel=between is not None,
        after_words=_after_words(turns, begin, opening, between or "", follows), shows_id=IDS[0] in one, **about,
    )  # fmt: skip


def _after_words(turns: _Turns, begin: str, opening: str, between: str, follows: str) -> str:
    """Return the text between a turn's words and its first call's opening."""
    marked = (begin + opening).strip().rstrip("[,").strip()
    alone = begin if marked else f"\n{begin.lstrip()}"  # a call without a marker begins a line
    if turns.before_words:  # words are a message of their own
        alone = between + begin
    try:
        text = _marked(turns.turn(_ONE, words=_WORDS))
    except ValueError:
        return alone
    at = text.find(_WORDS)
    first = text.find(opening + follows, at)
    found = text[at + len(_WORDS) : first]
    return found if 0 <= at < first and (marked or "\n" in found) else alone


def _marked(text: str) -> str:
    for marker, probes in ((ID, IDS), (NAMED, NAMES)):
        for one in probes:
            text = text.replace(one, marker)
    return text


def _values(text: str, start: int = 0) -> list[tuple[Any, int, int]]:
    """Find the JSON objects in a text, with where each begins and ends."""
    found = []
    for match in re.finditer(r"\{", text[start:]):
        try:
            value, end = read_value(text, start + match.start())
        except (ValueError, RecursionError):
            continue
        found.append((value, start + match.start(), end))
    return found


def _object_span(text: str, n: int) -> _Span | None:
    """Find the outermost JSON object with a call's name and arguments."""
    return next(((begin, end) for value, begin, end in _values(text) if _keys(value, NAMES[n])), None)


def _keys(value: Mapping[str, Any], name: str) -> tuple[str | None, str] | None:
    """Find the keys of name and arguments in an object, also under `function`."""
    if list(value) == [name] and value[name] == _ONE:
        return None, ""
    for inner in (value, value.get("function")):
        if isinstance(inner, dict):
            keys = [k for k, v in inner.items() if v == name]
            given = [k for k, v in inner.items() if v == _ONE or (isinstance(v, str) and from_json(v) == _ONE)]
            if keys and given:
                return keys[0], given[0]
    return None


def _name_start(text: str, n: int) -> int:
    """Find a call's name, the last before its arguments: a marker may have it, too."""
    arguments = text.find(KEYS[0], text.find(NAMES[n]))
    return text.rfind(NAMES[n], 0, arguments if arguments >= 0 else None)


def _json_span(text: str) -> _Span:
    return next(((begin, end) for value, begin, end in _values(text) if value == _ONE), (0, 0))


def _named_span(text: str, n: int) -> _Span | None:
    at = _name_start(text, n)
    return None if at < 0 or not (end := _json_span(text[at:])[1]) else (at, at + end)


def _quoted_span(text: str, n: int, quote: str) -> _Span | None:
    at = _name_start(text, n)
    return None if at < 0 else (at, read_quoted(text, at + len(NAMES[n]), quote)[1])


def _python_format(turns: _Turns, one: str) -> CallFormat:
    def span(text: str, n: int) -> _Span:
        at = _name_start(text, n)
        return at, text.find(")", text.find(VALUES[0], at)) + 1

    hard = {KEYS[0]: "'\"\n"}
    try:
        written = turns.turn(hard)
        readable = read_python(written[written.find(NAMES[0]) : written.rfind(")") + 1]) == [(NAMES[0], hard)]
    except (SyntaxError, ValueError):
        readable = False
    return _format(turns, "python", span, NAMED, readable=readable, probe=one[one.find(VALUES[0]) - 1])


def _tags_format(turns: _Turns) -> CallFormat:
    key, value = KEYS[0], VALUES[0]
    head, middle, between, _, tail = _around_arguments(turns, VALUES)
    middle_other = _around_arguments(turns, (_NUMBER, _NUMBER))[1]
    opening = common_end(head, between).removeprefix(">")  # of the tag before it
    closing = common_start(tail, between[: len(between) - len(opening)] if opening else between)
    cdata = "".join(c for c in "<&\n" if CDATA in turns.turn({key: c}))
    tags = Arguments(opening, middle, closing, middle_other, cdata)

    def span(text: str, n: int) -> _Span:
        at = _name_start(text, n)
        return at, text.find(value, at) + len(value) + len(closing.replace(KEY, key))

    return _format(turns, "tags", span, NAMED, after_name=_marked(head[: len(head) - len(opening)]), tags=tags)


def _around_arguments(turns: _Turns, values: Sequence[object]) -> list[str]:
    """Return the texts around keys and values, after the name, of a call with two arguments."""
    text = turns.turn(dict(zip(KEYS, values, strict=True)))
    around, rest = [], text[_name_start(text, 0) + len(NAMES[0]) :]
    for one in (KEYS[0], str(values[0]), KEYS[1], str(values[1])):
        before, found, rest = rest.partition(one)
        if not found:
            raise UnknownFormat("the template shows arguments in no order of key and value")
        around.append(before)
    return [re.sub(f"/(?:{'|'.join(KEYS)})", f"/{KEY}", one) for one in (*around, rest)]


def learn_chat(
    template: Template, tokenizer: Tokenizer, ends: Sequence[str], *, system: str | None, tools: Sequence[ToolSpec]
) -> LearnedChat:
    """Learn a model's chat from its template, and check it against that.

    Calls are as the template writes them, or code blocks, explained in the system prompt, where it writes none that can
    be parsed. ends: control tokens that end a text by the model's own configuration. Raises RecipeError.
    """
    reasons: dict[str, None] = {}
    for build in (_native_chat, _code_block_chat):
        for dialect in DIALECTS:
            template.dialect = dialect
            try:
                chat = build(template, tokenizer, ends)
                check = Comparison(chat, template).run()
            except (UnknownFormat, RenderError, RecipeError) as error:
                reasons[str(error).replace(f"{template.where}: ", "")] = None
                continue
            if check.trains:
                asked = Chat(tokenizer, system=system, tools=tools, framing=chat.framing, family=chat.family)
                return LearnedChat(asked, check, next(iter(reasons)) if build is _code_block_chat else "")
            reasons |= dict.fromkeys(check.differs)
    raise RecipeError(f"{template.where}: this chat template cannot be followed: {'; '.join([*reasons][:4])}")


def _native_chat(template: Template, tokenizer: Tokenizer, ends: Sequence[str]) -> Chat:
    turns = _Turns(template)
    form = learn_format(turns)
    answer_end = _end_of_turn(turns, turns.answer_tail, tokenizer, ends)
    tail = form.end if form.parallel else form.closing
    written = form.opening + form.closing + form.between if form.parallel else form.opening
    call_end = _end_of_turn(turns, tail, tokenizer, [answer_end, *ends], written)
    if not turns.shows_tools:
        raise UnknownFormat("the chat template does not show the model any tools")
    cut = tail[: tail.find(call_end)]
    form = replace(form, end=cut) if form.parallel else replace(form, closing=cut)
    family = LearnedFamily(form, tuple(dict.fromkeys((answer_end, call_end))), call_end, **_about(turns, answer_end))
    family = replace(family, stops=tuple(end for end in ends if end not in family.ends))
    pieces = TemplateFraming(template, family).render_results([Answer(PROBED.name, _RESULT)], ())
    at = next(n for n, piece in enumerate(pieces) if piece.sort == "observation")
    before, after = ("".join(piece.text for piece in some) for some in (pieces[:at], pieces[at + 1 :]))
    family = replace(family, observed_between=(before[-24:], after[:24]))
    return Chat(tokenizer, framing=TemplateFraming(template, family), family=family)


def _code_block_chat(template: Template, tokenizer: Tokenizer, ends: Sequence[str]) -> Chat:
    turns = _Turns(template)
    end = _end_of_turn(turns, turns.answer_tail, tokenizer, ends)
    form, stops = CallFormat("object", "", "", "", "", ""), tuple(one for one in ends if one != end)
    family = CodeBlocks(form, (end,), observed_between=(OUTPUT, OUTPUT_END), stops=stops, **_about(turns, end))
    return Chat(tokenizer, framing=CodeBlockFraming(template, family, ROLES[:3]), family=family)


def _about(turns: _Turns, end: str) -> dict[str, Any]:
    """Return a family's fields that depend on turns alone. end: of a turn without calls."""
    rest = turns.opening_rest.strip()
    opens = any(rest == opening for opening, _ in turns.thoughts)
    return {
        "thoughts": tuple(sorted(turns.thoughts, key=lambda pair: pair[0] != rest)) if opens else turns.thoughts,
        "opens_thought": opens,
        "before_words": turns.before_words,
        "after_words": turns.answer_tail[: turns.answer_tail.find(end)],
    }


def _end_of_turn(turns: _Turns, tail: str, tokenizer: Tokenizer, ends: Sequence[str], written: str = "") -> str:
    """Return the control token that ends a turn: one of the model's own, else the first that the turn does not contain.

    tail: the text after words or calls. written: the text of a turn with calls before that.
    """
    if own := [(tail.find(end), end) for end in ends if end and end in tail]:
        return min(own)[1]
    within = written or turns.before_words + "".join(map("".join, turns.thoughts))
    found = [(c in within, tail.find(c), -len(c), c) for c in tokenizer.controls if c in tail]
    if not found:
        raise UnknownFormat("the template ends a turn with no control token")
    return min(found)[3]


def _thoughts(template: Template) -> tuple[tuple[str, str], ...]:
    """Return the markers of reasoning: those that the template shows, and the usual ones."""
    found = []
    for key in REASONING:
        reply = message("assistant", _WORDS) | {key: "zqthought"}
        try:
            text = template.render([message("user", _QUESTION), reply], opening=False)
        except RenderError:
            continue
        before, thought, rest = text.partition("zqthought")
        between, words, _ = rest.partition(_WORDS)
        openings = (re.search(rf"(?:{_TAG}){{{n}}}\s*\Z", before) for n in (1, 2, 3))
        closings = (re.match(rf"\s*(?:{_TAG}){{{n}}}", between) for n in (1, 2, 3))
        opening, closing = (
            next((tag for match in tags if match and text.count(tag := match[0].strip()) == 1), "")
            for tags in (openings, closings)
        )
        if thought and words and opening and closing:
            found.append((opening, closing))
    return tuple(dict.fromkeys([*found, *THOUGHTS]))
