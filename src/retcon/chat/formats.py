"""Syntax of a model's tool calls, learnt from its chat template.

A template is asked to render conversations that differ in one thing: a call, its name, one argument, a second call,
words before it. What differs in the text says where calls begin and end, where name and arguments stand, and in which
syntax. llama.cpp reads templates in the same way.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from retcon.chat.jsons import as_json, read_arguments, read_value, space_end
from retcon.chat.thoughts import THOUGHTS, calls_outside_thoughts
from retcon.chat.types import FoundCall

ID = "\ue010"
"""Stands in a format for a call's id."""
KEY = "\ue011"
"""Stands in a format for an argument's name where that is part of a tag."""
NAMED = "\ue012"
"""Stands in a format for the call's name where a marker before it has that, too."""
CDATA, CDATA_END = "<![CDATA[", "]]>"
NAME_PATTERN = r"[\w.\-/]+"
NAMES, KEYS, VALUES = ("zqprobe", "zqother"), ("zqfirst", "zqsecond"), ("zqvalue", "zqthird")
IDS = ("zqcallid1", "zqcallid2")
"""Names, arguments and ids of the calls by which a template is learnt."""
_STYLES: tuple[dict[str, Any], ...] = ({}, {"indent": 4}, {"indent": 2}, {"separators": (",", ":")})
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
UNREADABLE = 100
"""Malformed calls after which a text is not read on."""
CLOSINGS = 8
"""Closing markers tried within the strings of a call in Python."""
_UNMARKED = re.compile(r"(?:^[ \t]*|(?=<\|python_tag\|>))(?P<call>(?:<\|python_tag\|>\s*)?)(?=[\[{])", re.MULTILINE)
"""Where a call without a marker begins: a line, or the tag that Llama 3 may write before it."""
_FILLER = re.compile(r"[\s,;]*")


class UnknownFormat(ValueError):
    """A template's calls follow no known syntax."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Syntax of arguments in tags: `opening` key `middle` value `closing`.

    middle_other: before a value that is no string. cdata: characters for which a string stands in CDATA.
    """

    opening: str
    middle: str
    closing: str
    middle_other: str
    cdata: str = ""


@dataclass(frozen=True)
class CallFormat:
    """Syntax of one model's calls.

    syntax: `object` (JSON that holds name and arguments), `named` (a name, then JSON), `tags` (a name, then arguments
    in tags) or `python` (`name(key=value)`). A turn's calls are `begin`, then for each `opening`, the call, `closing`,
    with `between` two of them, then `end`. after_words: in place of `begin` where the turn has words. after_name: from
    the name to the arguments. name_key, arguments_key: of an object; name_key None: the name is the key. parallel:
    whether a turn may have several calls. shows_id: whether calls have ids. numbered: whether what follows the name
    counts the calls of a turn. readable: whether the template writes strings so that they can be read back. quote:
    around the strings of a JSON object that has no other quotes (Gemma 4).
    """

    syntax: Literal["object", "named", "tags", "python"]
    begin: str
    opening: str
    closing: str
    between: str
    end: str
    after_words: str = ""
    after_name: str = ""
    name_key: str | None = "name"
    arguments_key: str = "arguments"
    tags: Arguments | None = None
    parallel: bool = True
    shows_id: bool = False
    numbered: bool = False
    readable: bool = True
    quote: str = ""
    probe: str = ""
    """An object as the template wrote it, of which `written_object` takes keys and style; the quote of `python`."""

    def find_calls(self, text: str) -> Iterator[tuple[FoundCall, int]]:
        """Find the calls in a text with their ends; malformed ones keep their text."""
        return _Reader(self, text).calls()

    def written_object(self, name: str, arguments: Mapping[str, object], n: int, label: str) -> str:
        """Render a call, the n-th of its turn, as the template's JSON."""
        if not self.probe:
            return as_json({"name": name, "arguments": arguments})
        value = _filled(read_value(self.probe, 0)[0], name, arguments, n, label)
        given = {KEYS[0]: VALUES[0]}
        shown = _filled(read_value(self.probe, 0)[0], NAMES[0], given, 0, IDS[0])
        for style in _STYLES:
            for margin in ("", "    "):
                if json.dumps(shown, ensure_ascii=False, **style).replace("\n", "\n" + margin) == self.probe:
                    return json.dumps(value, ensure_ascii=False, **style).replace("\n", "\n" + margin)
        return as_json(value)

    @cached_property
    def anchors(self) -> tuple[str, ...]:
        """Markers before a call, without brackets and space; a turn's first comes first."""
        markers = (self.begin + self.opening, self.opening)
        return tuple(dict.fromkeys(one for marker in markers if (one := marker.strip().rstrip("[,").strip())))

    @cached_property
    def head(self) -> re.Pattern[str]:
        """Pattern of a call's marker, `call`, and of a name after it."""
        if self.syntax in ("object", "python"):
            return re.compile("(?P<call>" + "|".join(map(re.escape, self.anchors)) + ")") if self.anchors else _UNMARKED
        markers = [self.begin + self.opening, self.opening]
        if self.inner:
            markers.append(self.inner)  # models forget the tag around a function
        markers = list(dict.fromkeys(marker.lstrip() for marker in markers if marker.strip()))
        either = "|".join(_flex(marker, label=f"label{n}") for n, marker in enumerate(markers))
        after = _flex(self.after_name, label="label", numbers=True)
        named = rf"(?P<call>{either})(?P<name>{NAME_PATTERN}){after}"
        tag = first_tag(self.opening.lstrip())
        return re.compile(f"{named}|{re.escape(tag)}" if re.search("call|tool|function", tag.lower()) else named)

    @cached_property
    def inner(self) -> str:
        """Inner tag of a function, where another encloses it."""
        inside = self.tags and NAMED not in self.opening and "<" in self.opening[1:]
        return self.opening[self.opening.rindex("<") :] if inside else ""

    @cached_property
    def closer(self) -> re.Pattern[str] | None:
        """Pattern of the end of a call, or of a turn's calls."""
        text = self.closing.strip().lstrip("]>}").strip() or self.end.strip().lstrip("]>}").strip()
        if text and (tag := re.search(r"<[^<>]*>\Z", text)) and tag.start():
            return re.compile(f"(?:{_flex(text[: tag.start()])})?{_flex(tag[0])}")
        return re.compile(_flex(text)) if text else None

    def call_of(self, value: object, raw: str, char: int) -> FoundCall | None:
        """Return the call that an object holds, if any."""
        if not isinstance(value, dict):
            return None
        label = next((str(value[key]) for key in ("id", "tool_call_id", "call_id") if key in value), "")
        if self.name_key is None:
            name, given = next(iter(value.items())) if len(value) == 1 else (None, None)
        else:
            inner = value["function"] if isinstance(value.get("function"), dict) else value
            name = inner.get(self.name_key, inner.get("name"))
            key = next((k for k in (self.arguments_key, "arguments", "parameters") if k in inner), None)
            given = inner.get(key, {}) if key or self.anchors else None
        if not isinstance(name, str) or given is None:
            return None
        arguments = read_arguments(given)
        return FoundCall(name, raw if arguments is None else arguments, char, label)

    @cached_property
    def tag_patterns(self) -> tuple[re.Pattern[str], str, str]:
        """Patterns: an argument's opening, the text after its closing, the call's end."""
        tags = self.tags
        assert tags is not None
        middle = _flex(tags.middle.rstrip()) if tags.middle == tags.middle_other else _typed_middle(tags)
        middle += _optional(tags.middle[len(tags.middle.rstrip()) :])
        key = r"(?P<key>[^/<>\s\"'=:,{}\[\]|][^<>\s\"'=:,{}\[\]|]*)"
        opening = _flex(tags.opening.lstrip())
        argument = re.compile(rf"\s*{opening}{key}{middle}")
        end = _flex(self.closing.lstrip()) if self.closing.strip() else (_flex(self.end.lstrip()) or r"\Z")
        if self.inner and (own := first_tag(self.closing.lstrip())):  # and the end of the tag around it
            end = f"{_flex(own)}(?:{_flex(self.closing.lstrip()[len(own) :])})?"
        return argument, rf"(?:\s*{opening}\S|\s*{end})", end


def malformed_call(raw: str, char: int) -> FoundCall:
    """Return a malformed call, by the name in its text, if any."""
    found = _NAME.search(raw)
    return FoundCall(found[1] if found else "python", raw, char)


class MatchIndex:
    """Index of a pattern's matches in a text."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._all = list(pattern.finditer(text))
        self._starts = [found.start() for found in self._all]

    def first(self, start: int) -> re.Match[str] | None:
        n = bisect_left(self._starts, start)
        return self._all[n] if n < len(self._all) else None


class _Reader:
    """Parser of the calls of one text, in linear time."""

    def __init__(self, form: CallFormat, text: str) -> None:
        self._form, self._text = form, text
        self._heads = MatchIndex(form.head, text)
        self._closers = MatchIndex(form.closer, text) if form.closer else None
        self._read = {"object": self._objects, "python": self._python}.get(form.syntax, self._named)

    def calls(self) -> Iterator[tuple[FoundCall, int]]:
        at, malformed = 0, 0
        while malformed < UNREADABLE and (head := self._heads.first(at)) is not None:
            found, at = self._read(head)
            malformed += not found or isinstance(found[-1].arguments, str)
            yield from ((call, at) for call in found)

    def _malformed(self, head: re.Match[str], call: Callable[[str], FoundCall]) -> tuple[list[FoundCall], int]:
        """Return a malformed call up to its end, or nothing where another call begins before that."""
        following = self._heads.first(head.end())
        close = self._closers.first(head.end()) if self._closers else None
        stop, end = close.span() if close else (len(self._text), len(self._text))
        if following is not None and _begin(following) < stop:
            stop = end = _begin(following)
            if self._form.syntax != "named":
                return [], end
        return [call(self._text[head.end() : stop].strip())], end

    def _objects(self, head: re.Match[str]) -> tuple[list[FoundCall], int]:
        """Read JSON values one after the other, or in a list."""
        form, text = self._form, self._text
        calls: list[FoundCall] = []
        char, at, inside = _begin(head), head.end(), False
        while (values := self._values(at)) is not None:
            items, end = values
            made = [form.call_of(value, text[begin:stop], begin) for value, begin, stop in items]
            if not items or not all(made):
                break
            for n, call in enumerate(filter(None, made)):
                where = call.char if n or inside else char
                calls.append(FoundCall(call.name, call.arguments, where, call.label, bool(n) or inside))
            closing = form.closer.match(text, space_end(text, end)) if form.closer else None
            at = closing.end() if closing else end
            beyond = _FILLER.match(text, at)
            char = beyond.end() if beyond else at
            if form.anchors and text.startswith(form.anchors[-1], char) and form.opening.strip():
                at, inside = char + len(form.anchors[-1]), False
            elif text[char : char + 1] in ("{", "[") and not closing:
                at, inside = char, bool(form.anchors)
            else:
                break
        if calls:
            return calls, at
        if not form.anchors:
            return [], head.end() + 1  # prose
        listed = "[" if (form.begin + form.opening).rstrip().endswith("[") else ""
        return self._malformed(head, lambda raw: malformed_call(raw.removeprefix(listed).strip(), _begin(head)))

    def _values(self, at: int) -> tuple[list[tuple[Any, int, int]], int] | None:
        """Read the values of a list, or one value, with their spans; return them and their end.

        A list may end with a comma, and need not be closed where the turn or its calls end.
        """
        text = self._text
        at = space_end(text, at)
        listed = text.startswith("[", at)
        at += listed
        values: list[tuple[Any, int, int]] = []
        while True:
            space = _FILLER.match(text, at) if listed else None
            begin = space.end() if space else at
            try:
                value, at = read_value(text, begin)
            except (ValueError, RecursionError):
                if not listed:
                    return None
                if text.startswith("]", begin):
                    return values, begin + 1
                whole = begin == len(text) or (self._form.closer is not None and self._form.closer.match(text, begin))
                return (values, begin) if whole else None
            values.append((value, begin, at))
            if not listed:
                return values, at

    def _named(self, head: re.Match[str]) -> tuple[list[FoundCall], int]:
        form, char = self._form, _begin(head)
        if head["name"] is None:  # objects, such as other models have in these tags, or what cannot be read
            return self._objects(head)
        label = next((v for k, v in head.groupdict().items() if k.startswith("label") and v), "")
        if form.numbered and not label:  # the model itself names the call by what stands around its name
            label = "".join(re.findall(rf"[\w.]*{re.escape(head['name'])}:\d+", head[0])[:1])
        whole = self._tagged(head.end()) if form.tags else self._json_arguments(head.end())
        if whole is not None:
            return [FoundCall(head["name"], whole[0], char, label)], whole[1]
        if form.anchors and not any(head[0].startswith(one[:6]) for one in form.anchors):
            return [], head.end()  # a function without the tag around it, not whole: prose
        return self._malformed(head, lambda raw: FoundCall(head["name"], raw, char, label))

    def _json_arguments(self, at: int) -> tuple[dict[str, object], int] | None:
        quote = self._form.quote
        try:
            value, end = read_quoted(self._text, at, quote) if quote else read_value(self._text, at)
        except (ValueError, RecursionError):
            return None
        return (value, end) if isinstance(value, dict) else None

    def _tagged(self, at: int) -> tuple[dict[str, object], int] | None:
        text, tags = self._text, self._form.tags
        assert tags is not None
        argument, following, end = self._form.tag_patterns
        values: dict[str, object] = {}
        while (found := argument.match(text, at)) is not None and found["key"] not in values:
            closing, begin = tags.closing.replace(KEY, found["key"]), found.end()
            core = closing.lstrip()
            space = _optional(closing[: len(closing) - len(core)])
            cdata = text.startswith(CDATA, begin)
            begin += len(CDATA) * cdata
            ending = re.escape(CDATA_END) * cdata + space + _flex(core)
            close_at = re.compile(rf"{ending}(?={following})").search(text, begin)
            if close_at is None:
                return None
            raw = text[begin : close_at.start()]
            if not cdata and "<" in tags.opening and any(argument.match(line) for line in raw.splitlines()[1:]):
                return None  # its end is missing
            plain = tags.middle == tags.middle_other or tags.middle.strip() in found[0]
            values[found["key"]] = raw if plain or cdata else from_json(raw)
            at = close_at.end()
        done = re.compile(rf"\s*{end}").match(text, at)
        return None if done is None else (values, done.end())

    def _python(self, head: re.Match[str]) -> tuple[list[FoundCall], int]:
        """Read calls in Python, in a list or alone; their strings may hold the closing marker."""
        text, char = self._text, _begin(head)
        begin, at = head.end(), head.end()
        for _ in range(CLOSINGS):
            close = self._closers.first(at) if self._closers else None
            stop, at = close.span() if close else (len(text), len(text))
            source = text[begin:stop].strip()
            try:
                found = read_python(source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                found = []
            if found:
                calls = enumerate(found)
                return [FoundCall(name, arguments, char, inside=bool(n)) for n, (name, arguments) in calls], at
            if close is None:
                break
        if not self._form.anchors:
            return [], head.end() + 1
        return self._malformed(head, lambda raw: malformed_call(raw, char))


FUNCTION = "<function="
TAGGED = CallFormat(
    "tags", "", f"<tool_call>\n{FUNCTION}", "</function>\n</tool_call>", "\n", "", after_name=">\n",
    tags=Arguments("<parameter=", ">\n", "\n</parameter>\n", ">\n"),
)  # fmt: skip
"""Qwen3-Coder's and its successors'."""


def find_tagged(text: str) -> Iterator[FoundCall]:
    """Find calls in Qwen3-Coder's `<function=NAME><parameter=NAME>` tags; arguments stay text."""
    return calls_outside_thoughts(text, TAGGED.find_calls(text), THOUGHTS, opened=False)


def _begin(head: re.Match[str]) -> int:
    """Return where a call begins."""
    return max(head.start(), head.start("call"))


def _filled(probe: Any, name: str, arguments: Mapping[str, object], n: int, label: str) -> Any:
    """Fill a probe's object with another call's name, arguments, number and id."""
    if isinstance(probe, dict):
        if probe == {KEYS[0]: VALUES[0]}:
            return dict(arguments)
        return {
            (name if key == NAMES[0] else key): _filled(value, name, arguments, n, label)
            for key, value in probe.items()
        }
    if probe == NAMES[0]:
        return name
    if probe == IDS[0]:
        return label
    if isinstance(probe, str) and VALUES[0] in probe:
        return as_json(arguments)
    return str(n) if probe == "0" else n if probe == 0 and probe is not False else probe


def read_python(source: str) -> list[tuple[str, dict[str, object]]]:
    """Parse names and arguments of Python calls, in a list or alone.

    Raises SyntaxError, ValueError, RecursionError, MemoryError.
    """
    tree = ast.parse(source if source.startswith("[") else f"[{source.removesuffix(']')}]", mode="eval").body
    return [_python_call(node) for node in getattr(tree, "elts", ())]


def _python_call(node: ast.expr) -> tuple[str, dict[str, object]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    return ast.unparse(node.func), {str(k.arg): ast.literal_eval(_Literals().visit(k.value)) for k in node.keywords}


class _Literals(ast.NodeTransformer):
    """Transformer of JSON's constants to Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = {"true": True, "false": False, "null": None}
        return ast.Constant(known[node.id]) if node.id in known else node


def from_json(raw: str) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return raw


def read_quoted(text: str, at: int, quote: str) -> tuple[Any, int]:
    """Read the value at `at`, with strings between `quote`, and its end.

    Keys are bare. Raises ValueError, RecursionError.
    """
    token = rf"{re.escape(quote)}(.*?){re.escape(quote)}|([^\s{{}}\[\],:]+)(?=\s*:)|([{{}}\[\],:])|[^{{}}\[\],:]+"
    parts, depth = "", 0
    for found in re.compile(token, re.DOTALL).finditer(text, at):
        string, key, mark = found.groups()
        if mark in ("{", "[") and parts[-1:] not in ("", ":", ",", "["):
            raise ValueError(f"{mark} stands after {parts[-20:]}")
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        bare = from_json(found[0].strip()) if key is None else key
        parts += mark or json.dumps(bare if string is None else string)
        if not depth:
            break
    return read_value(parts, 0)[0], found.end()


def _flex(text: str, label: str = "", *, numbers: bool = False) -> str:
    """Return a pattern of a marker with any space, id and, where calls are counted, number."""
    out: list[str] = []
    for part in re.split(rf"(\s+|{ID}|{KEY}|{NAMED}|\d+|(?<=[>\w])(?=<))", text):
        if not part:
            out += [r"\s*"] if out and (out[-1][-1] in "+>" or out[-1][-1].isalnum()) else []
            continue
        if part.isspace():
            out.append(r"\s*")
        elif part == ID:
            out.append(rf"(?P<{label}>[\w.:-]*)" if label and f"(?P<{label}>" not in "".join(out) else r"[\w.:-]*")
        elif part == NAMED:
            out.append(NAME_PATTERN)
        elif numbers and part.isdigit():
            out.append(r"\d+")
        else:
            out.append(re.escape(part))
    return "".join(out)


def first_tag(text: str) -> str:
    """Return the tag that a text begins with."""
    return found[0] if (found := re.match(r"<[^<>\s]+>|\[[A-Z_]+\]", text)) else ""


def _optional(space: str) -> str:
    """Return a pattern of optional space; space beyond it belongs to the value."""
    return f"(?:{re.escape(space)})?" if space else ""


def _typed_middle(tags: Arguments) -> str:
    """Return the pattern between key and value that may name the value's type."""
    one, other = tags.middle, tags.middle_other
    head = common_start(one, other)
    tail = common_end(one[len(head) :], other[len(head) :])
    return rf"{_flex(head)}[^<>]{{0,20}}?{_flex(tail)}"


def common_end(one: str, other: str) -> str:
    """Return the common suffix of two texts."""
    return common_start(one[::-1], other[::-1])[::-1]


def common_start(one: str, other: str) -> str:
    """Return the common prefix of two texts."""
    n = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:n]


def whole_tags(text: str) -> str:
    """Strip the beginning of a tag from a text's end."""
    return text[: match.start()] if (match := re.search(r"[<\[][^<>\[\]\s]{0,24}\Z", text)) else text
