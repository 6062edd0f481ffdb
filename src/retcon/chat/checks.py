"""Comparison of a chat with its model's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retcon.chat.chat import Chat
from retcon.chat.formats import common_start, whole_tags
from retcon.chat.learned import OUTPUT, OUTPUT_END, CodeBlockFraming
from retcon.chat.template import GENERATED, RenderError, Template, message, tool_call
from retcon.chat.thoughts import strip_empty_thought
from retcon.chat.types import REASONING
from retcon.core.types import Observation, Segment, ToolCall, ToolSpec

TOOL = ToolSpec(
    "run_code",
    "Runs a program.",
    {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "c"},
            "count": {"type": "integer", "description": "n"},
        },
        "required": ["code"],
    },
)
PROGRAMS = (
    "print(1)",
    'print("it\'s")\n\n# 2 < 3 & "x"\n',
    "path = 'C:\\\\new\\n'\nprint(f'{path!r:>20}')\t# Größe → 東京",
    "text = '</tool_call>'\nprint({'a': [1, {'b': None}]}, text)",
)
OBSERVATIONS = ("", "1", "a\n\nb\n", '{"a": "é\\n"}', "<b>x</b> & 東京", "Traceback (most recent call last):\n  …")
SYSTEM = "zqsystem"
_RESULT = "zqresult"
_Calls = Sequence[tuple[str, Mapping[str, object]]]


@dataclass
class ChatCheck:
    """Result of comparing a chat with its template: what agrees, what differs.

    parallel: None where a turn may have one call. splice: None where the model itself writes calls otherwise than its
    template (gpt-oss). append_only: whether the template renders earlier turns as when they were the last; where not
    (it drops their thoughts, or opens turns otherwise), training keeps what the model was shown. mask: whether the
    template's `{% generation %}` is the loss mask, outer space and an empty thought apart; None without such marks.
    """

    family: str
    renders: bool = False
    parses: bool = False
    parallel: bool | None = None
    observation: bool = False
    splice: bool | None = False
    thoughts: bool = True
    append_only: bool = True
    mask: bool | None = None
    differs: list[str] = field(default_factory=list)

    @property
    def trains(self) -> bool:
        """Whether training with this chat is right."""
        right = self.renders and self.parses and self.observation and self.thoughts
        return right and self.parallel is not False and self.splice is not False


class Comparison:
    """Comparison of a chat's conversations with its template's rendering."""

    def __init__(self, chat: Chat, template: Template) -> None:
        self._chat, self._template, self._family = chat.with_tools([TOOL]), template, chat.family
        framing = chat.framing
        self._blocks = framing if isinstance(framing, CodeBlockFraming) else None
        self.found = ChatCheck(chat.family.name)

    def run(self) -> ChatCheck:
        """Run all checks. Raises RenderError where the template refuses a conversation."""
        found = self.found
        found.renders = self._same("prompt", _text(self._chat.prompt("x")), self._render())
        given: list[dict[str, object]] = [{"code": code} for code in PROGRAMS]
        if not self._blocks:
            given.append({"code": PROGRAMS[1], "count": 3})
        found.parses = all(self._parses([(TOOL.name, arguments)]) for arguments in given)
        found.parses &= self._parses([(TOOL.name, given[0])], "I try.")
        if self._family.parallel:
            found.parallel = self._parses([(TOOL.name, {"code": code}) for code in PROGRAMS[:2]])
        found.observation = all(self._observes(text) for text in OBSERVATIONS) and self._observes("1", SYSTEM)
        found.splice = self._splices() if self._family.writes_calls else None
        found.thoughts = self._skips_thoughts()
        found.append_only = self._appends() and not self._drops_thoughts()
        if self._template.marks and self._family.writes_calls:
            found.mask = self._masks()
        return found

    def _same(self, what: str, ours: str, theirs: str) -> bool:
        if ours == theirs:
            return True
        at = max(0, len(common_start(ours, theirs)) - 20)
        self.found.differs.append(f"{what}: {ours[at : at + 50]!r}, the template {theirs[at : at + 50]!r}")
        return False

    def _render(self, *turns: tuple[_Calls, Sequence[str], str], system: str = "", marked: bool = False) -> str:
        """Render a question and turns of calls, their results and the words before, by the template."""
        if self._blocks:
            first = [("system", system)] * bool(system)
            texts = list(self._blocks.messages([*first, ("user", "x")], [TOOL]))
            for calls, results, text in turns:
                turn = self._family.render_turn(text, calls)
                texts.append(("assistant", "".join(piece.text for piece in turn if piece.sort == "words")))
                texts.append(("user", "\n".join(f"{OUTPUT}{one}{OUTPUT_END}" for one in results)))
            return self._template.render([message(*one) for one in texts], marked=marked)
        messages = [message("system", system)] * bool(system) + [message("user", "x")]
        for calls, results, text in turns:
            labels = self._labels(calls)
            made = [tool_call(name, arguments, label) for (name, arguments), label in zip(calls, labels, strict=True)]
            messages.append(message("assistant", text) | {"tool_calls": made})
            for label, (name, _), result in zip(labels, calls, results, strict=True):
                messages.append(message("tool", result, name, label))
        return self._template.render(messages, [TOOL.as_function()], marked=marked)

    def _labels(self, calls: _Calls) -> list[str]:
        """Return the ids of calls as the model writes them, else any."""
        found = [call.label for call in self._family.find_calls(self._wrote(calls).text)]
        return [label or f"retcon{n:03d}" for n, label in enumerate((found + [""] * len(calls))[: len(calls)])]

    def _wrote(self, calls: _Calls, text: str = "") -> Segment:
        """Render a turn by the chat, with the template's text for no thought."""
        return self._chat.render_turn(text, calls, self._chat.framing.render_thought("", last=True) or ())

    def _turn(self, calls: _Calls, words: str = "") -> str:
        """Render a turn with calls by the template, from the prompt's end to the turn's."""
        text = self._render((calls, [_RESULT] * len(calls), words)).partition(_RESULT)[0]
        start = len(whole_tags(common_start(self._render(), text)))
        code = str(calls[-1][1]["code"])
        stop = text.find(self._family.end_of(calls), text.rfind(code[:5], start))
        return text[start : stop if stop >= 0 else len(text)]

    def _parses(self, calls: _Calls, words: str = "") -> bool:
        wanted: list[tuple[str, object]] = [*calls]
        if self._blocks:  # which begin and end with no empty lines
            wanted = [("python", {"code": str(arguments["code"]).strip("\n")}) for _, arguments in calls]
        turns = [("ours", self._wrote(calls, words).text)]
        if self._family.writes_calls:
            turns.append(("the template", self._turn(calls, words)))
        for source, turn in turns:
            open_thought = self._family.opens_thought and self._family.thoughts[0][1] not in turn
            text = self._family.thoughts[0][1] + turn if open_thought else turn
            got = [(call.name, call.arguments) for call in self._chat.parse_text(text, prefix="0").calls]
            if got != wanted:
                self.found.differs.append(f"a call of {source}, {text!r}, is read as {got!r}")
                return False
        return True

    def _after(self, calls: _Calls, result: str, written: str) -> tuple[Segment, ...]:
        call = ToolCall("0.0", TOOL.name, dict(calls[0][1]), 0)
        return self._chat.observations([call], [Observation("0.0", result, "ok", None, 0.0)], written=written)

    def _observes(self, result: str, system: str = "") -> bool:
        """Whether an observation stands as the template has it, also after what the system says."""
        calls = [(TOOL.name, {"code": PROGRAMS[0]})]
        ours = _text(self._after(calls, result, self._wrote(calls).text))
        try:
            whole = self._render((calls, [result], ""), system=system)
        except RenderError:
            if system:
                return True
            raise
        _, found, theirs = whole.partition(self._turn(calls) + self._family.end_of(calls))
        return self._same(f"observation {result!r}", ours, theirs if found else whole)

    def _splices(self) -> bool:
        """Whether a conversation put together has the template's text, empty thoughts apart, and that text's ids."""
        calls = [(TOOL.name, {"code": PROGRAMS[1]})]
        opened, written = self._chat.prompt("x"), self._wrote(calls)
        segments = (*opened, written, *self._after(calls, "4\n", written.text))
        text, prompt, whole = _text(segments), _text(opened), self._render((calls, ["4\n"], ""))
        if [i for one in segments for i in one.ids or ()] != self._chat.tokenizer.encode(text, special=True):
            self.found.differs.append(f"conversation: the ids of {text!r} are not those of its parts")
            return False
        head = len(whole_tags(common_start(prompt, whole)))
        ours, theirs = text[head:], whole[head:]
        if dropped := prompt[head:].strip():  # what opens a turn may be left out of earlier ones
            ours, theirs = ours.lstrip().removeprefix(dropped).lstrip(), theirs.lstrip()
        ours, theirs = (strip_empty_thought(one, self._family.thoughts) for one in (ours, theirs))
        return self._same("conversation", ours, theirs)

    def _appends(self) -> bool:
        """Whether the template writes earlier turns of a conversation as it wrote them when they were the last."""
        calls = [(TOOL.name, {"code": PROGRAMS[0]})]
        turn = (calls, ["4\n"], "")
        return self._render(turn, turn).startswith(self._render(turn)) and self._render(turn).startswith(self._render())

    def _masks(self) -> bool:
        """Whether the template marks as generated what is trained on: a turn with its end."""
        calls = [(TOOL.name, {"code": PROGRAMS[1]})]
        text = self._render((calls, ["4\n"], ""), marked=True)
        opening, closing = GENERATED
        marked = "".join(part.partition(closing)[0] for part in text.split(opening)[1:])
        ours, theirs = (
            strip_empty_thought(one, self._family.thoughts).strip() for one in (self._wrote(calls).text, marked)
        )
        return ours == theirs or self._same("mask", ours, theirs)

    def _skips_thoughts(self) -> bool:
        """Whether calls drafted in a thought are ignored, and one after it is read."""
        body = self._chat.render_turn("", [(TOOL.name, {"code": "print(1)"})]).text
        for n, (opening, closing) in enumerate(self._family.thoughts):
            if n and self._family.opens_thought:
                continue  # within a thought of the first kind, which stays open
            drafted = f"{opening}\nI could call\n{body}"
            for text, count in (
                (drafted, 0),
                (f"{drafted}\n{closing}\nDone.", 0),
                (f"{drafted}\n{closing}\n{body}", 1),
            ):
                if (got := len(self._chat.parse_text(text, prefix="0").calls)) != count:
                    self.found.differs.append(f"{got} calls are read in {text!r}")
                    return False
        return True

    def _drops_thoughts(self) -> bool:
        for key in REASONING:
            question, reply = message("user", "x"), message("assistant", "x") | {key: "zqthought"}
            try:
                last = self._template.render([question, reply], opening=False)
                more = self._template.render([question, reply, question])
            except RenderError:
                continue
            if "zqthought" in last:
                return "zqthought" not in more
        return False


def _text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)
