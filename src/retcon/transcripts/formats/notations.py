"""Calls written into text: a table of notations, Hermes, Markdown, MathCoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import msgspec
from msgspec.structs import replace

from retcon.chat.families import hermes
from retcon.chat.formats import FUNCTION, find_tagged
from retcon.chat.types import FoundCall
from retcon.transcripts.in_messages import InMessages, InText, in_messages
from retcon.transcripts.items import ASSISTANT, speaker_of, text_of
from retcon.transcripts.itemwise import Item, ItemList, Itemwise, Pieces, objects
from retcon.transcripts.pieces import Call, Piece, ToolOutput
from retcon.transcripts.registry import FEEDBACK, Dialect, Fragment, JsonCall, all_clean, dialects, is_feedback
from retcon.transcripts.types import NOT_JSON, Certainty, Json, json_in
from retcon.transcripts.verdicts import UNCLEAR, Verdict, looks_clean

_FENCED = re.compile(r"\s*```(?:[Pp]ython3?|py)?[ \t]*\r?\n(?P<code>.*?)\r?\n?```\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=(?P<key>[^<>\s]+)>")
_NEXT = re.compile(r"</parameter>\s*(?=<parameter=|\Z)")
_EXECUTE = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
_INPUT = re.compile(r"^Action Input(?: \d+)?:", re.MULTILINE)


def program(tool: str, text: str) -> Call:
    """Return a call whose text is its program, fenced or not."""
    fenced = _FENCED.fullmatch(text)
    return Call(tool, {"code": fenced["code"] if fenced else text.strip("\n")})


def command(tool: str, text: str) -> Call:
    """Return a call whose text is a shell's command."""
    return Call(tool, {"command": text.strip("\n")})


def parameters(tool: str, text: str) -> Call:
    """Read a call with a tag for each of its arguments."""
    found = [(part, _PARAMETER.match(part)) for part in _NEXT.split(text) if part.strip()]
    if any(key is None for _, key in found):
        return Call(tool, text)
    values = [(key["key"], part[key.end() :]) for part, key in found if key is not None]
    return Call(tool, {key: value.removeprefix("\n").removesuffix("\n") for key, value in values})


def action(tool: str, text: str) -> Call:
    """Read a call of ReAct: a name and its input, `name[input]`, or an object of name and arguments."""
    named = _INPUT.search(text)
    name, given = (text[: named.start()], text[named.end() :]) if named else (text, "")
    whole = name.strip().removeprefix("```json").strip("`\n ")
    read = json_in(whole) if whole.startswith("{") else None
    if isinstance(read, dict) and not named:
        name = str(read.get("name", read.get("action", tool)))
        inner = read.get("arguments", read.get("action_input"))
        return Call(name, inner if isinstance(inner, dict) else {"input": inner})
    if not named and whole.endswith("]") and "[" in whole:
        name, _, given = whole[:-1].partition("[")
    arguments = json_in(given.strip().removeprefix("```json").strip("`\n ")) if "{" in given else None
    return Call(name.strip() or tool, arguments if isinstance(arguments, dict) else {"input": given.strip("\n ")})


def call_of_executes(tool: str, text: str) -> Call:
    """Return one call of all programs in `<execute>` tags."""
    return Call(tool, {"code": "\n".join(block.strip("\n") for block in _EXECUTE.findall(f"<execute>{text}"))})


_compiled = cache(partial(re.compile, flags=re.MULTILINE))


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
        alone: whether a call tells the notation, however it is answered."""

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
    alone: bool = False
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    def calls_in(self, text: str) -> bool:
        found = self.hint in text and not any(tag in text for tag in self.unless)
        return found and next(self._blocks(text), None) is not None

    def used(self, replies: Iterable[str], contexts: Iterable[str]) -> bool:
        words = [text for text in replies if self.hint in text]
        if not words:
            return False
        inside = self.alone or (bool(self.whole) and any(self.whole[-1] in text for text in words))
        answered = inside or any(self._begin(text) is not None for text in contexts)
        return answered and any(map(self.calls_in, words))

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        found = list(self._joined(text))
        for n, (start, calls, end) in enumerate(found):
            if start < at:
                continue  # it stands in an output
            output = _compiled(self.output).match(text, end) if self.whole else None
            last = n + 1 == len(found)
            if output is None and not (last and (answered or self.each)):
                continue
            if start > at:
                cuts.append(Fragment("assistant", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Fragment("call", text[start:at], calls))
            if output is not None:
                at = self._end(text, output.end())[1]
                cuts.append(Fragment("result", text[end:at], (), self.outputs(text[end:at])))
            elif not answered:
                cuts.append(Fragment("result", "", (), (ToolOutput("", None, Verdict("ok", UNCLEAR), True),)))
        return [*cuts, Fragment("assistant", text[at:])] if text[at:] or not cuts else cuts

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
        opens, closes, end = _compiled(self.opens), _compiled(self.closes), 0
        while opening := opens.search(text, end):
            if (closing := closes.search(text, opening.end())) is None:
                return
            end = closing.end()
            named = opening.groupdict()
            if not named.get("other"):
                inside = text[opening.end() : closing.start()]
                yield opening.start(), self.read(named.get("tool") or self.tool, inside), end

    def _end(self, text: str, start: int) -> tuple[int, int]:
        """Return where an output ends, and where the text after it begins."""
        found = _compiled(self.until).search(text, start)
        return found.span() if found else (len(text), len(text))

    def _begin(self, text: str) -> int | None:
        """Return where a message's output begins; None for a user's words."""
        if (found := _compiled(self.output).match(text)) is not None:
            return found.end()
        return 0 if self.ends and text.endswith(self.ends) else None

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        begin = self._begin(text)
        return (ToolOutput(text if begin is None else text[begin : self._end(text, begin)[0]].strip("\n")),)

    def user_output_end(self, text: str) -> int | None:
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
_SWE_OUTPUT = r"OBSERVATION:[ \t]*\n?|(?=Your command ran successfully and did not produce any output)"
"""SWE-agent 1, and SWE-smith."""
_RAN = rf"(?=<returncode>|The last command <command>)|The output of the OS:\n|{_SWE_OUTPUT}"
"""mini-swe-agent, AgentInstruct."""
_STATE = r"^\(Open file: [^\n]*\)\n\(Current directory: [^\n]*\)\nbash-\$\s*\Z"
"""SWE-agent before 1 ends an output with the state of its shell."""
_STEPS_LEFT = r"\nYou have \d+ steps? left[^\n]*(?:\nYou should take the last step[^\n]*)?\s*"
EXECUTE = Notation(
    "mint",
    "<execute>",
    "<execute>",
    r"\Z",
    rf"Observation:(?!\s*(?:{'|'.join(FEEDBACK)}))\n?",
    rf"{_STEPS_LEFT}|(?=\nExpert feedback:)|\Z",
    read=call_of_executes,
    alone=True,
    marks=("execute", "history", "state"),
)
MINT = in_messages(EXECUTE, marks=EXECUTE.marks)
NOTATIONS = (
    _tags("retool", "code", "interpreter"),
    _tags("arpo", "python", "result"),
    Notation(
        "function-tags", "<function=", r"<function=(?P<tool>[^<>\s]+)>", "</function>",
        rf"{_SWE_OUTPUT}|EXECUTION RESULT of \[[^\]\n]*\]:[ \t]*\n?", read=parameters, each=True,
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


def _shared(items: Sequence[Mapping[str, Json]]) -> bool:
    if all("from" in item and "value" in item for item in items):
        return True
    if not all("role" in item and "text" in item and item.get("content") is None for item in items):
        return False
    own, other = ([text_of(i["text"]) for i in items if (i["role"] in ASSISTANT) is mine] for mine in (True, False))
    return any(one.used(own, other) for one in dialects())


SHAREGPT = InMessages(
    "sharegpt", "from", "value", Certainty.LAYOUT, _shared, marks=("conversations", "from", "value", "gpt")
)


MARKS = ("tool_call", "tool_response")
_TAGGED = re.compile(r"<function=[^<>\s]+>\s*(?:<parameter=|</function>)")


def tagged(text: str) -> bool:
    """Whether calls are tagged as Qwen3-Coder writes them."""
    return _TAGGED.search(text) is not None


class Hermes(Dialect):
    """Hermes: `<tool_call>` with JSON, answered by a tool or `<tool_response>`."""

    name = "hermes"
    _opens, _closes = "<tool_response>", "</tool_response>"
    _decoder = msgspec.json.Decoder(JsonCall)

    def calls_in(self, text: str) -> bool:
        return hermes.OPEN in text and not tagged(text)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return hermes.find_calls(text)

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        found = list(self.find_calls(text))
        if not found:
            return [Fragment("assistant", text)]
        start = found[0].char
        calls = tuple(Call(c.name, c.arguments, c.char - start) for c in found)
        return [Fragment("assistant", text[:start])] * bool(start) + [Fragment("call", text[start:], calls)]

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        _, *blocks = text.split(self._opens)
        inside = [block.partition(self._closes)[0] for block in blocks]
        return tuple([ToolOutput(b.removeprefix("\n").removesuffix("\n")) for b in inside]) or (ToolOutput(text),)

    def user_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        return self.outputs(text) if text[:40].lstrip().startswith("<tool_response>") else None

    def cut_user_message(self, text: str) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        while (start := text.find(self._opens, at)) >= 0:
            if text[at:start].strip():
                cuts.append(Fragment("context", text[at:start]))
                at = start
            closing = text.find(self._closes, start)
            end = len(text) if closing < 0 else closing + len(self._closes)
            cuts.append(Fragment("result", text[at:end], (), self.outputs(text[start:end])))
            at = end
        *before, last = cuts
        words = text[at:]
        after = [Fragment("context", words)] if words.strip() else []
        return [*cuts, *after] if after else [*before, last._replace(text=last.text + words)]

    def clean_outputs(self, text: str, by_user: bool) -> int | None:
        alone = text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>")
        if alone and text.find("<", 1) == len(text) - len("</tool_response>"):
            return 1 if looks_clean(text[len("<tool_response>\n") : -len("\n</tool_response>")]) else None
        return all_clean(self.user_outputs(text) if by_user else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        start = text.find("<")
        if start < 0:
            return 0
        end = text.find("<", start + 1)
        try:
            if (
                text.startswith(hermes.OPEN, start)
                and text.startswith(hermes.CLOSE, end)
                and "<" not in text[end + 1 :]
            ):
                self._decoder.decode(text[start + len(hermes.OPEN) : end])
                return 1
            _, *blocks = text.split(hermes.OPEN)
            inside = [block.partition(hermes.CLOSE)[0] if hermes.CLOSE in block else "" for block in blocks]
            for one in inside:
                self._decoder.decode(one)
        except NOT_JSON:
            return None
        return len(inside)

    def clean_inside(self, text: str) -> int | None:
        return 0


class HermesInText(Hermes):
    """Hermes in one text, as rollout dumps have it (verl, slime).

    The turns follow each other, with or without the markers of Qwen's template, of which a decoder that skips
    special ids leaves the roles. answer: the tag of results; `interpreter` in slime's example of ReTool."""

    certainty = Certainty.TAGGED_TEXT

    def __init__(self, answer: str = "tool_response") -> None:
        self._opens, self._closes = f"<{answer}>", f"</{answer}>"
        self.signs = (hermes.OPEN, self._opens)
        self._answers = re.compile(
            r"\s*(?:<\|im_end\|>)?\s*(?P<marker><\|im_start\|>)?(?P<role>user|tool)?\s*"
            rf"(?P<answers>(?:{self._opens}.*?{self._closes}\s*)+)",
            re.DOTALL,
        )
        self._next = re.compile(r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\s*)?")

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        for start, answers in self._rounds(text):
            if start > at:
                cuts.append(Fragment("assistant", text[at:start]))
            written = text[start : answers.start()]
            calls = tuple(Call(c.name, c.arguments, c.char) for c in self.find_calls(written))
            cuts.append(Fragment("call", written, calls))
            end, spoken = answers.end(), self._spoken_until(text, answers)
            following = self._next.match(text, spoken)
            at = following.end() if following is not None else spoken
            if spoken == end:
                end = at
            cuts.append(Fragment("result", text[answers.start() : end], (), self.outputs(answers["answers"])))
            if at > end:
                cuts.append(Fragment("context", text[end:at]))
        return [*cuts, Fragment("assistant", text[at:])] if text[at:] or not cuts else cuts

    def _spoken_until(self, text: str, answers: re.Match[str]) -> int:
        """Return where a user's words after outputs end."""
        end = answers.end()
        if answers["role"] != "user":
            return end
        following = text.find(hermes.OPEN, end)
        sign = "<|im_end|>" if answers["marker"] else "\nassistant\n"
        at = text.find(sign, end - 1, following if following >= 0 else len(text))
        return at if text[end:at].strip() and at > end else end

    def _rounds(self, text: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Yield answered calls and their answers, with the text around them."""
        last = text.rfind(self._closes)
        start = text.find(hermes.OPEN)
        at = start + len(hermes.OPEN)
        while start >= 0 and 0 <= (closing := text.find(hermes.CLOSE, at)) < last:
            at = closing + len(hermes.CLOSE)
            if (answers := self._answers.match(text, at)) is not None:
                yield start, answers
                start = text.find(hermes.OPEN, answers.end())
                at = start + len(hermes.OPEN)

    def clean_inside(self, text: str) -> int | None:
        return Dialect.clean_inside(self, text) if self._opens in text else 0


HERMES = Hermes()
HERMES_MESSAGES = in_messages(HERMES, marks=MARKS)
HERMES_TEXT = tuple(
    InText(dialect, dialect.signs, Certainty.TAGGED_TEXT, MARKS, ("verl", "slime"))
    for dialect in (HermesInText(), HermesInText("interpreter"))
)


class Qwen3Coder(Hermes):
    """In messages."""

    name = "qwen3_coder"

    def calls_in(self, text: str) -> bool:
        return tagged(text) and (hermes.OPEN in text or hermes.CLOSE in text)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return find_tagged(text)

    def clean_calls(self, text: str) -> int | None:
        found = list(self.find_calls(text)) if "<" in text else []
        return None if any(isinstance(call.arguments, str) for call in found) else len(found)


class Qwen3CoderInText(Qwen3Coder, HermesInText):
    """In one text."""

    certainty = Certainty.TAGGED_TEXT


QWEN3_CODER = Qwen3Coder()
QWEN3_CODER_MESSAGES = in_messages(QWEN3_CODER, marks=(*MARKS, "function"))
_in_text = Qwen3CoderInText()
QWEN3_CODER_TEXT = InText(_in_text, (FUNCTION, *_in_text.signs), Certainty.TAGGED_TEXT, MARKS, ("verl",))


class Markdown(Dialect):
    """Markdown: ```` ```python ```` blocks and their output.

    The output is an ```` ```output ```` block in that message or the next, or the role `tool`. A block that nothing
    answers is no call."""

    name = "markdown"
    certainty = Certainty.FENCES
    _open = re.compile(r"```(?:[Pp]ython3?|py|PYTHON|tool_code)[ \t]*\r?\n")
    _answer = re.compile(r"\s*```(?:output|stdout|tool_output)[ \t]*\r?\n")
    _fenced = re.compile(r"\s*```(?:output|text|stdout|console|tool_output)?[ \t]*\r?\n")
    _wrapped = re.compile(r"\s*[`<EeOoRr]")  # how a fence or a label begins
    _answers = ("```output", "```stdout", "```tool_output")
    _label = re.compile(r"\s*(?:<output>|(?:[Ee]xecution )?(?:[Oo]utput|[Rr]esult|[Oo]bservation)s?:)\s*")

    def calls_in(self, text: str) -> bool:
        return "`" in text and ("```py" in text or "```Py" in text or "```PY" in text or "```tool_code" in text)

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        found = list(self._blocks(text))
        for n, (start, code, code_end, end) in enumerate(found):
            output = self._answer.match(text, end)
            if output is None and not (answered and n + 1 == len(found)):
                continue
            if start > at:
                cuts.append(Fragment("assistant", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Fragment("call", text[start:at], (Call("python", {"code": text[code:code_end]}),)))
            if output is not None:
                inside_end, at = _closed(text, output.end())
                cuts.append(Fragment("result", text[end:at], (), (ToolOutput(text[output.end() : inside_end]),)))
        return [*cuts, Fragment("assistant", text[at:])] if text[at:] or not cuts else cuts

    def _blocks(self, text: str) -> Iterator[tuple[int, int, int, int]]:
        """Closed blocks of Python: where the fence, the program, the closing line and what follows it begin."""
        at, end, after = 0, -1, 0
        while (opening := self._open.search(text, at)) is not None:
            at = opening.end()
            if end < at - 1:  # the fence that closes an earlier block, not of Python, closes this one too
                end, after = _closing(text, at)
            if end == len(text):
                return
            if text[opening.start() - 1 : opening.start()] != "`":
                yield opening.start(), at, max(at, end), after
                at = after

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        fenced = self._fenced.match(text)
        if fenced:
            return (ToolOutput(text[fenced.end() : _closed(text, fenced.end())[0]]),)
        labelled = self._label.match(text)
        return (ToolOutput(text[labelled.end() :] if labelled else text),)

    def user_output_end(self, text: str) -> int | None:
        """Return where an output in the user's role ends: with its fence or tag; after a label alone, with the text."""
        labelled = self._label.match(text)
        if not (labelled or self._answer.match(text)) or is_feedback(text):
            return None
        if fenced := self._fenced.match(text, labelled.end() if labelled else 0):
            return _closed(text, fenced.end())[1]
        if labelled and labelled[0].strip() == "<output>" and (closing := text.find("</output>", labelled.end())) >= 0:
            return closing + len("</output>")
        return len(text)

    def clean_outputs(self, text: str, by_user: bool) -> int | None:
        if not by_user and self._wrapped.match(text) is None:
            return 1 if looks_clean(text) else None
        return all_clean(self.user_outputs(text) if by_user else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) and next(self._blocks(text), None) is not None else 0

    def clean_inside(self, text: str) -> int | None:
        count, at = 0, 0
        while (start := _fence(text, at)) >= 0:
            # Nothing but the plain shape, words and one block and right after it its output, is read here.
            code_end = _fence(text, start + 3)
            begin = code_end + len("```\n```output\n")
            if not (text.startswith("```python\n", start) and text.startswith("\n```\n```output\n", code_end - 1)):
                return None if count or any(name in text for name in self._answers) else 0
            end = _fence(text, begin)
            at = end + 3
            if end < 0 or text[end - 1] != "\n" or text[at : at + 1] not in ("", "\n"):
                return None
            if not looks_clean(text[begin : end - 1]):
                return None
            count += 1
        return count


def _fence(text: str, start: int) -> int:
    """Find the next three backticks; -1 for none."""
    at = text.find("`", start)
    return at if at < 0 or text.startswith("```", at) else text.find("```", at)


def _closed(text: str, start: int) -> tuple[int, int]:
    """Return where a fenced block's text ends, and its closing line."""
    end, after = _closing(text, start)
    return max(start, end), after


def _closing(text: str, start: int) -> tuple[int, int]:
    """Find the first closing line: its line break, and its end."""
    at = start - 1  # the closing line may follow the opening one at once
    while (at := text.find("\n```", at)) >= 0:
        line_end = text.find("\n", at + 4)
        line_end = len(text) if line_end < 0 else line_end
        if not text[at + 4 : line_end].strip(" \t\r"):
            return at, min(len(text), line_end + 1)
        at += 4
    return len(text), len(text)


MARKDOWN = Markdown()
MARKDOWN_MESSAGES = in_messages(MARKDOWN, marks=("python", "output"))
MARKDOWN_TEXT = InText(MARKDOWN, ("```output",), Certainty.TEXT, ("output",))


class MathCoder(Itemwise):
    """Blocks of MathCoder: words, a program and its output, each a message of its own."""

    name = "mathcoder"
    needs = frozenset({"role"})
    marks = ("debug_result", "execution", "code", "text")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(item.get("role") == "execution" for item in items)

    def find(self, record: Json) -> ItemList | None:
        """Find the blocks, and the system prompt in `messages`."""
        found = super().find(record)
        messages = objects(record.get("messages")) if isinstance(record, dict) else []
        prompts = (text_of(message.get("content")) for message in messages if speaker_of(message) == "system")
        return found._replace(context="", system=next(prompts, "")) if found else None

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        for item in items:
            text, role = text_of(item.get("content")), item.get("role")
            if role == "code":
                pieces.add_calls(item, [Call("python", {"code": text})], text)
            elif role == "execution":
                pieces.add_results(item, [ToolOutput(text)])
            elif role in ("text", "assistant", "thought", "reasoning"):
                pieces.add_words(item, text)
            else:
                pieces.add_context(item, text)
        return pieces.all


BLOCKS = MathCoder()
