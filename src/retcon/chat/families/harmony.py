"""Family of gpt-oss: messages on channels, calls by recipient (`to=functions.NAME`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat.family import Family, NamedCall
from retcon.chat.formats import UNREADABLE
from retcon.chat.jsons import as_json, read_value
from retcon.chat.types import FoundCall, Piece, glue, words

START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"
)  # fmt: skip
_FUNCTIONS = "functions."
_OPENING = f"{START}assistant"
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_PEOPLE = ("user", "assistant", "all")
"""Recipients that are no tools."""
_ENDED = re.compile(r"<\|(end|call|return|start)\|>")
_CLOSING = re.compile(rf"\s*(?:{_ENDED.pattern}|\Z)")
_FINAL = re.compile(r"<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>(.*?)"
                    rf"(?:{_ENDED.pattern}|\Z)", re.DOTALL)  # fmt: skip
_OBSERVED = re.compile(r"<\|start\|>(?:functions\.[\w.-]+|python) to=assistant[^<]*<\|channel\|>\w+<\|message\|>"
                       r"(.*?)<\|end\|>", re.DOTALL)  # fmt: skip


class Harmony(Family):
    """Family of gpt-oss: a turn may hold several messages, up to `<|call|>`, `<|return|>`."""

    name = "harmony"
    marks = (START, MESSAGE, CHANNEL)
    ends = (CALL, RETURN)
    past_ends = (END,)
    closes = (END,)
    labels_calls = True
    parallel = False
    writes_calls = False
    calls_are_text = False

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        at, malformed = 0, 0
        while malformed < UNREADABLE and (message := text.find(MESSAGE, at)) >= 0:
            header, begin = text[at:message], message + len(MESSAGE)
            recipient = _RECIPIENT.search(header)
            if recipient is None:
                end, _ = _ended(text, begin)
            else:
                opening = header.rfind(START)
                call, end = _call(text, begin, recipient[1], at + max(0, opening))
                malformed += call is None or isinstance(call.arguments, str)
                if call is not None:
                    yield call
            at = end

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        if not calls:
            return [glue(f"{CHANNEL}final{MESSAGE}"), words(text)]
        pieces = [glue(f"{CHANNEL}analysis{MESSAGE}"), words(text), glue(f"{END}{_OPENING}")] if text else []
        for n, (name, arguments) in enumerate(calls):
            again = f"{CALL}{_OPENING}" if n else ""
            given = arguments if isinstance(arguments, str) else as_json(arguments)
            to = f"{again}{CHANNEL}commentary to={_FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}"
            pieces += [glue(to), words(given)]
        return pieces

    def end_of(self, calls: Sequence[NamedCall]) -> str:
        return CALL if calls else RETURN

    def visible_text(self, text: str) -> str:
        """Return the messages on `final`; all of a text without messages."""
        if MESSAGE not in text and CHANNEL not in text:
            return text
        return "\n".join(found[1] for found in _FINAL.finditer(text))

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _call(text: str, begin: int, recipient: str, char: int) -> tuple[FoundCall | None, int]:
    """Return the call that a message to `recipient` makes, if any, and where the message ends."""
    name = recipient.removeprefix(_FUNCTIONS)
    if recipient != "python":
        try:
            value, end = read_value(text, begin)
            closing = _CLOSING.match(text, end)
            if isinstance(value, dict) and closing is not None and _calls(recipient, closing[1]):
                return FoundCall(name, value, char, recipient), end
        except (ValueError, RecursionError):
            pass
    end, mark = _ended(text, begin)
    if recipient == "python":
        return FoundCall(name, {"code": text[begin:end]}, char, recipient), end
    if _calls(recipient, mark):
        return FoundCall(name, text[begin:end].strip(), char, recipient), end
    return None, end


def _ended(text: str, begin: int) -> tuple[int, str | None]:
    """Return where a message's words end, and by which mark."""
    found = _ENDED.search(text, begin)
    return (len(text), None) if found is None else (found.start(), found[1])


def _calls(recipient: str, mark: str | None) -> bool:
    """Whether a message that ends with a mark makes a call: to a function always, to any other tool where the turn ends
    with it. mark: None at the end of a text, which lacks the turn's own."""
    return recipient.startswith(_FUNCTIONS) or (mark in (None, "call") and recipient not in _PEOPLE)


FAMILY = Harmony()
