"""Markdown: fenced programs, in messages or in one text (ToRA)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from retcon.transcripts.failures.rules import looks_clean
from retcon.transcripts.reading.dialects import Dialect, Fragment, all_clean, is_feedback
from retcon.transcripts.reading.in_messages import InText, in_messages
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.types import Certainty


class Markdown(Dialect):
    """```` ```python ```` blocks; the output as an ```` ```output ```` block after it, in the same message or the next,
    or in the role `tool`. A block that nothing answers is no call."""

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
                cuts.append(Fragment("said", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Fragment("call", text[start:at], (Call("python", {"code": text[code:code_end]}),)))
            if output is not None:
                inside_end, at = _closed(text, output.end())
                cuts.append(Fragment("output", text[end:at], (), (ToolOutput(text[output.end() : inside_end]),)))
        return [*cuts, Fragment("said", text[at:])] if text[at:] or not cuts else cuts

    def _blocks(self, text: str) -> Iterator[tuple[int, int, int, int]]:
        """Closed blocks of Python: where the fence, the program, the closing line and what follows it begin."""
        at, end, after = 0, -1, 0
        while (opening := self._open.search(text, at)) is not None:
            at = opening.end()
            if end < at - 1:  # what closes an earlier one that is none of Python closes this one too
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

    def told_end(self, text: str) -> int | None:
        """Where an output in the user's role ends: with its fence or tag; after a label alone, nothing says where."""
        labelled = self._label.match(text)
        if not (labelled or self._answer.match(text)) or is_feedback(text):
            return None
        if fenced := self._fenced.match(text, labelled.end() if labelled else 0):
            return _closed(text, fenced.end())[1]
        if labelled and labelled[0].strip() == "<output>" and (closing := text.find("</output>", labelled.end())) >= 0:
            return closing + len("</output>")
        return len(text)

    def clean_outputs(self, text: str, told: bool) -> int | None:
        if not told and self._wrapped.match(text) is None:
            return 1 if looks_clean(text) else None
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

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
    """Where the next three backticks are, -1 for none; most texts have no other ones."""
    at = text.find("`", start)
    return at if at < 0 or text.startswith("```", at) else text.find("```", at)


def _closed(text: str, start: int) -> tuple[int, int]:
    """Where the text of a fenced block from `start` ends, and where what follows its closing line begins."""
    end, after = _closing(text, start)
    return max(start, end), after


def _closing(text: str, start: int) -> tuple[int, int]:
    """Where the line break before the first closing line from `start` on is, and where what follows the line begins;
    the end of the text where there is none."""
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
