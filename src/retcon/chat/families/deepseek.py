"""DeepSeek V3: calls and observations between control tokens of their own, arguments as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat.family import Family, Written
from retcon.chat.jsons import as_json, read_value, space_end
from retcon.chat.types import Answer, FoundCall, Piece, Told, glue, words
from retcon.core.types import ToolSpec

BEGIN, END, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"
CALLS, CALLED, CALL, SEPARATOR, CALL_END = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
)  # fmt: skip
OUTPUTS, OUTPUTS_END, OUTPUT, OUTPUT_END = (
    "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"
)  # fmt: skip
_FENCE = "```json\n"
_HEADER = re.compile(r"[^\n<{]{0,200}")
_ENDED = re.compile(f"{CALL_END}|{CALL}")
_OBSERVED = re.compile(f"{OUTPUT}(.*?){OUTPUT_END}", re.DOTALL)


class DeepSeek(Family):
    """V3's own template shows no tools: the shipped framing adds them to the system's words, which V3 has no token for.

    After observations the model goes on without `<｜Assistant｜>`, as in its template.
    """

    name = "deepseek"
    marks = (USER, ASSISTANT)
    controls = (BEGIN, USER, ASSISTANT, CALLS, CALLED, CALL, SEPARATOR, CALL_END, OUTPUTS, OUTPUTS_END)
    ends = (END,)
    calls_are_text = False

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        pieces = [glue(BEGIN), words("\n\n".join(text for role, text in messages if role == "system"))]
        if tools:
            pieces += _shown(tools)
        return [*pieces, *self.answered([told for told in messages if told[0] != "system"])]

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for n, answer in enumerate(answers):
            before = f"\n{OUTPUT}" if n else f"{OUTPUTS}{OUTPUT}"
            pieces += [glue(before), Piece("observation", answer.text), glue(OUTPUT_END)]
        return [*pieces, glue(OUTPUTS_END), *(self.answered(told) if told else ())]

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for role, text in told:
            pieces += [glue(ASSISTANT), words(text), glue(END)] if role == "assistant" else [glue(USER), words(text)]
        return [*pieces, glue(ASSISTANT)]

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """V3's `function<｜tool▁sep｜>name`, then arguments in a block of JSON; V3.1's `name<｜tool▁sep｜>{…}`."""
        at = text.find(CALL)
        outer = text.rfind(CALLS, 0, at) if at >= 0 else -1
        char = outer if outer >= 0 and not text[outer + len(CALLS) : at].strip() else at
        while at >= 0:
            call, end = _read(text, at + len(CALL), char)
            yield call
            at = char = text.find(CALL, end)

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        pieces = [words(text)]
        for n, (name, arguments) in enumerate(calls):
            given = arguments if isinstance(arguments, str) else as_json(arguments)
            opening = f"\n{CALL}" if n else f"{CALLS}{CALL}"
            pieces += [glue(f"{opening}function{SEPARATOR}"), words(f"{name}\n{_FENCE}{given}\n```"), glue(CALL_END)]
        return [*pieces, glue(CALLED)] if calls else pieces

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _read(text: str, begin: int, char: int) -> tuple[FoundCall, int]:
    header = _HEADER.match(text, begin)
    name = (header[0] if header else "").strip()
    at = header.end() if header else begin
    if text.startswith(SEPARATOR, at):
        at += len(SEPARATOR)
        if name == "function":
            second = _HEADER.match(text, at)
            name, at = (second[0].strip(), second.end()) if second else (name, at)
    at = space_end(text, at)
    at += len(_FENCE) if text.startswith(_FENCE, at) else 0
    try:
        value, end = read_value(text, at, CALL)
        if isinstance(value, dict) and name:
            return FoundCall(name, value, char), end
    except (ValueError, RecursionError):
        pass
    ended = _ENDED.search(text, at)
    end = ended.start() if ended else len(text)
    return FoundCall(name or "python", text[at:end].strip().removesuffix("```").strip(), char), end


def _shown(tools: Sequence[ToolSpec]) -> list[Piece]:
    """The form of a call with its control tokens, as the model is to write them."""
    form = f"{CALLS}{CALL}function{SEPARATOR}NAME\n{_FENCE}ARGUMENTS\n```{CALL_END}{CALLED}"
    listed = "".join(
        f"\n\n### {tool.name}\nDescription: {tool.description}\nParameters: {as_json(tool.parameters)}"
        for tool in tools
    )
    about = "\n\n## Tools\nYou may call these tools, each in this form, with its arguments as JSON:\n"
    return [words(about), glue(form), words(listed)]


FAMILY = DeepSeek()
