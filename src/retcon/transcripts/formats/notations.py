"""Calls in text as rows of a table: how a call begins and ends, and how its output does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from retcon.transcripts.failures.rules import UNCLEAR, Verdict
from retcon.transcripts.reading.dialects import Dialect, Fragment, is_feedback
from retcon.transcripts.reading.in_messages import InMessages, InText, in_messages
from retcon.transcripts.reading.items import text_of
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.reading.roles import SAID
from retcon.transcripts.registry import dialects
from retcon.transcripts.types import NOT_JSON, Certainty, Json

_FENCED = re.compile(r"\s*```(?:[Pp]ython3?|py)?[ \t]*\r?\n(?P<code>.*?)\r?\n?```\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=(?P<key>[^<>\s]+)>")
_NEXT = re.compile(r"</parameter>\s*(?=<parameter=|\Z)")
_INPUT = re.compile(r"^Action Input(?: \d+)?:", re.MULTILINE)


def program(tool: str, text: str) -> Call:
    """A call whose text is its program, fenced or not."""
    fenced = _FENCED.fullmatch(text)
    return Call(tool, {"code": fenced["code"] if fenced else text.strip("\n")})


def command(tool: str, text: str) -> Call:
    """A call whose text is a command of a shell."""
    return Call(tool, {"command": text.strip("\n")})


def parameters(tool: str, text: str) -> Call:
    """A call with a tag for each of its arguments."""
    found = [(part, _PARAMETER.match(part)) for part in _NEXT.split(text) if part.strip()]
    if any(key is None for _, key in found):
        return Call(tool, text)
    values = [(key["key"], part[key.end() :]) for part, key in found if key is not None]
    return Call(tool, {key: value.removeprefix("\n").removesuffix("\n") for key, value in values})


def action(tool: str, text: str) -> Call:
    """A call of ReAct: a name and its input, `name[input]`, or an object of name and arguments."""
    named = _INPUT.search(text)
    name, given = (text[: named.start()], text[named.end() :]) if named else (text, "")
    whole = name.strip().removeprefix("```json").strip("`\n ")
    read = _decoded(whole) if whole.startswith("{") else None
    if isinstance(read, dict) and not named:
        name = str(read.get("name", read.get("action", tool)))
        inner = read.get("arguments", read.get("action_input"))
        return Call(name, inner if isinstance(inner, dict) else {"input": inner})
    if not named and whole.endswith("]") and "[" in whole:
        name, _, given = whole[:-1].partition("[")
    arguments = _decoded(given.strip().removeprefix("```json").strip("`\n ")) if "{" in given else None
    return Call(name.strip() or tool, arguments if isinstance(arguments, dict) else {"input": given.strip("\n ")})


def _decoded(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except NOT_JSON:
        return None


class Patterns:
    """The compiled patterns of a notation."""

    def __init__(self, *patterns: str) -> None:
        self.opens, self.closes, self.output, self.until = (re.compile(one, re.MULTILINE) for one in patterns)


@dataclass(frozen=True)
class Notation(Dialect):
    """A dialect as data. Its patterns are regular expressions.

    Args:
        hint: what a text with a call has in it.
        opens: how a call begins. A group `tool` is its name; what matches the group `other` is no call.
        closes: how it ends.
        output: how an output begins, after its call or in a message.
        until: how it ends.
        ends: what ends a message that is an output, however it begins; empty: nothing.
        read: what makes a call of its name and the text between.
        tool: the name of a call that has none.
        each: whether each message's last call ran, though its output is not there.
        whole: what a text has that is a whole transcript; none: outputs stand in messages of their own alone.
        unless: tags by which another notation has such calls.
    """

    name: str
    hint: str
    opens: str
    closes: str
    output: str
    until: str = r"\Z"
    ends: str = ""
    read: Callable[[str, str], Call] = program
    tool: str = "python"
    each: bool = False
    whole: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_are", Patterns(self.opens, self.closes, self.output, self.until))

    @property
    def _patterns(self) -> Patterns:
        return self.__dict__["_are"]  # type: ignore[no-any-return]

    def calls_in(self, text: str) -> bool:
        found = self.hint in text and not any(tag in text for tag in self.unless)
        return found and next(self._blocks(text), None) is not None

    def used(self, said: Iterable[str], told: Iterable[str]) -> bool:
        words = [text for text in said if self.hint in text]
        if not words:
            return False
        inside = bool(self.whole) and any(self.whole[-1] in text for text in words)
        answered = inside or any(self._begin(text) is not None for text in told)
        return answered and any(map(self.calls_in, words))

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        found = list(self._joined(text))
        for n, (start, calls, end) in enumerate(found):
            if start < at:
                continue  # it stands in an output
            output = self._patterns.output.match(text, end) if self.whole else None
            last = n + 1 == len(found)
            if output is None and not (last and (answered or self.each)):
                continue
            if start > at:
                cuts.append(Fragment("said", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Fragment("call", text[start:at], calls))
            if output is not None:
                at = self._end(text, output.end())[1]
                cuts.append(Fragment("output", text[end:at], (), self.outputs(text[end:at])))
            elif not answered:
                cuts.append(Fragment("output", "", (), (ToolOutput("", None, Verdict("ok", UNCLEAR), True),)))
        return [*cuts, Fragment("said", text[at:])] if text[at:] or not cuts else cuts

    def _joined(self, text: str) -> Iterator[tuple[int, tuple[Call, ...], int]]:
        """Calls, those with nothing between them together."""
        calls: list[Call] = []
        begin, end = 0, -1
        for start, call, stop in self._blocks(text):
            if calls and text[end:start].strip():
                yield begin, tuple(calls), end
                calls = []
            begin = begin if calls else start
            calls.append(replace(call, char=start - begin))
            end = stop
        if calls:
            yield begin, tuple(calls), end

    def _blocks(self, text: str) -> Iterator[tuple[int, Call, int]]:
        """Closed calls: where each begins, and where what follows it does."""
        patterns, end = self._patterns, 0
        while opening := patterns.opens.search(text, end):
            if (closing := patterns.closes.search(text, opening.end())) is None:
                return
            end = closing.end()
            named = opening.groupdict()
            if not named.get("other"):
                inside = text[opening.end() : closing.start()]
                yield opening.start(), self.read(named.get("tool") or self.tool, inside), end

    def _end(self, text: str, start: int) -> tuple[int, int]:
        """Where the output that begins at `start` ends, and where what follows it begins."""
        found = self._patterns.until.search(text, start)
        return found.span() if found else (len(text), len(text))

    def _begin(self, text: str) -> int | None:
        """Where the output begins that a message is; None where it is the user's own."""
        if (found := self._patterns.output.match(text)) is not None:
            return found.end()
        return 0 if self.ends and text.endswith(self.ends) else None

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        begin = self._begin(text)
        return (ToolOutput(text if begin is None else text[begin : self._end(text, begin)[0]].strip("\n")),)

    def told_end(self, text: str) -> int | None:
        begin = self._begin(text)
        return None if begin is None else self._end(text, begin)[1]

    def clean_calls(self, text: str) -> int | None:
        return None if self.each else super().clean_calls(text) if self.hint in text else 0

    def clean_inside(self, text: str) -> int | None:
        return 0 if not self.whole or self.hint not in text else super().clean_inside(text)


def _tags(name: str, call: str, output: str) -> Notation:
    return Notation(
        name, f"<{call}>", f"<{call}>", f"</{call}>", rf"\s*<{output}>", f"</{output}>",
        whole=(f"<{call}>", f"<{output}>"), marks=(call, output),
    )  # fmt: skip


_SAYS = r"(?:Thought|Action|Final Answer|Observation)(?: \d+)?:"
_SAID_SO = r"OBSERVATION:[ \t]*\n?|(?=Your command ran successfully and did not produce any output)"
"""SWE-agent 1, and SWE-smith."""
_RAN = rf"(?=<returncode>|The last command <command>)|The output of the OS:\n|{_SAID_SO}"
"""mini-swe-agent, AgentInstruct."""
_STATE = r"^\(Open file: [^\n]*\)\n\(Current directory: [^\n]*\)\nbash-\$\s*\Z"
"""SWE-agent before 1 ends an output with the state of its shell."""
NOTATIONS = (
    _tags("retool", "code", "interpreter"),
    _tags("arpo", "python", "result"),
    Notation(
        "function-tags", "<function=", r"<function=(?P<tool>[^<>\s]+)>", "</function>",
        rf"{_SAID_SO}|EXECUTION RESULT of \[[^\]\n]*\]:[ \t]*\n?", read=parameters, each=True,
        unless=("<tool_call>", "</tool_call>"), marks=("function", "parameter"), aliases=("swe-smith",),
    ),
    Notation(
        "shell", "```", r"^```(?:(?:ba|z)?sh|shell|mswea_bash_command|(?P<other>[^\s`]+)|)[ \t]*\n", r"^```[ \t]*$",
        _RAN, rf"{_STATE}|\Z", "bash-$", read=command, tool="bash", each=True, marks=("bash", "returncode", "output"),
        aliases=("mini-swe-agent",),
    ),
    Notation(
        "shell", "bash_co", r"<(?:mswea_bash_command|bash_code)>", r"</(?:mswea_bash_command|bash_code)>",
        _RAN, read=command, tool="bash", each=True, aliases=("mini-swe-agent",),
    ),
    Notation(
        "react", "Action", r"^Action(?: \d+)?:", rf"^(?={_SAYS})|\Z", r"(?:Observation(?: \d+)?|API output):[ \t]*\n?",
        rf"^(?={_SAYS})|\Z", read=action, whole=("Action", "Observation"), marks=("Action", "Observation"),
    ),
)  # fmt: skip

MESSAGES = tuple(in_messages(one, marks=one.marks, aliases=one.aliases) for one in NOTATIONS)
TEXTS = tuple(InText(one, one.whole, Certainty.TAGGED_TEXT, one.marks) for one in NOTATIONS if one.whole)


class Execute(Dialect):
    """`<execute>` with code, answered by "Observation:" in the user's role (MINT, CodeAct). What a harness says about
    a proposed solution, or an input that it does not understand, is the user's, not an output."""

    name = "mint"
    _block = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
    _trailer = re.compile(r"\nYou have \d+ steps? left[^\n]*(?:\nYou should take the last step[^\n]*)?\s*")
    _expert = "\nExpert feedback:"

    def calls_in(self, text: str) -> bool:
        return "<execute>" in text

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        start = text.find("<execute>")
        if start < 0 or not answered:
            return [Fragment("said", text)]
        code = "\n".join(block.strip("\n") for block in self._block.findall(text))
        return [Fragment("said", text[:start])] * bool(start) + [
            Fragment("call", text[start:], (Call("python", {"code": code}),))
        ]

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        at = text.rfind("\nYou have ")
        if at >= 0 and self._trailer.fullmatch(text, at):
            text = text[:at]
        return (ToolOutput(text.removeprefix("Observation:").removeprefix("\n")),)

    def told_end(self, text: str) -> int | None:
        """Where an output in the user's role ends: what an expert says of it, and what follows the steps that are left,
        is a user's."""
        if not text.startswith("Observation:") or is_feedback(text):
            return None
        expert = text.find(self._expert)
        end = len(text) if expert < 0 else expert
        for counted in self._trailer.finditer(text, 0, end):
            end = counted.end()
        return end


EXECUTE = Execute()
MINT = in_messages(EXECUTE, marks=("execute", "history", "state"))


def _shared(items: Sequence[Mapping[str, Json]]) -> bool:
    if all("from" in item and "value" in item for item in items):
        return True
    if not all("role" in item and "text" in item and item.get("content") is None for item in items):
        return False
    said, told = ([text_of(i["text"]) for i in items if (i["role"] in SAID) is own] for own in (True, False))
    return any(one.used(said, told) for one in dialects())


SHAREGPT = InMessages(
    "sharegpt", "from", "value", Certainty.LAYOUT, _shared, marks=("conversations", "from", "value", "gpt")
)
