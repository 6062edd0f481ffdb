"""Rendering of a trajectory: model text, tool outputs, and changes by a purifier.

Bars tell origin without colour: `│` is as it was sampled, `+` was spliced in, `-` was taken out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from retcon.core.texts import counted
from retcon.core.types import Observation, RepairRecord, ToolCall, Trajectory, Turn
from retcon.purify.splice import program

LABEL_WIDTH = 9
SIDE_BY_SIDE = 100  # columns from which two transcripts stand next to each other

_HIGHLIGHTER = Syntax("", "python", theme="ansi_dark", background_color="default")
_MARKUP = r"<\|[^|<>\n]*\|>|</?tool_call>|(?m:^`{3,}\w*[ \t]*(?=$|<\|))"
_TOOL_CALL_END = "</tool_call>"
# Control characters reach a terminal as commands: all but tab and line end are shown as escapes instead.
_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


@dataclass(frozen=True, slots=True)
class Row:
    """A label, a bar and content; `bar` shows origin without colour too (`+` in, `-` out)."""

    label: str
    body: RenderableType
    style: str = "dim"
    bar: str = "│"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        style = console.get_style(self.style)
        margin = LABEL_WIDTH + 3
        inner = options.update(width=max(1, options.max_width - margin), height=None)
        for n, line in enumerate(console.render_lines(self.body, inner, pad=False)):
            label = (self.label if n == 0 else "").rjust(LABEL_WIDTH)
            yield Segment(f"{label} {self.bar} ", style)
            yield from line
            yield Segment.line()


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two renderables, side by side where there is room, else stacked."""

    left: RenderableType
    right: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < SIDE_BY_SIDE:
            yield self.left
            yield self.right
            return
        grid = Table.grid(expand=True, padding=(0, 2))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(self.left, self.right)
        yield grid


def plain(text: str, style: str = "") -> Text:
    """Return text without markup, control characters escaped."""
    return Text(text.translate(_ESCAPES), style=style)


def written(text: str, calls: Sequence[ToolCall], offset: int = 0, *, prose: str = "", code: str | None = None) -> Text:
    """Render model text with programs highlighted and markup dimmed.

    calls: of the whole turn, in whose generated text `text` begins at character `offset`. prose: style outside of
    programs. code: style of the programs, None for syntax colours.
    """
    out = Text()
    at = 0
    for call in calls:
        char = call.char - offset
        if not at <= char < len(text):
            continue
        out.append_text(_dimmed(text[at:char], prose))
        found = text.find(call.code, char) if call.code else -1
        if found >= 0:
            out.append_text(_dimmed(text[char:found], prose))
            at = found + len(call.code)
        elif call.code and (end := text.find(_TOOL_CALL_END, char)) >= 0:
            out.append_text(_dimmed(f"<tool_call> {call.name}\n", prose))  # its JSON, unescaped
            at = end
        else:
            at = char
            continue
        out.append_text(_program(call.code, code))
        if not text.startswith("\n", at):
            out.append("\n")
    out.append_text(_dimmed(text[at:], prose))
    out.rstrip()
    return out


def _program(source: str, style: str | None) -> Text:
    if style is not None:
        return plain(source, style)
    highlighted = _HIGHLIGHTER.highlight(source.translate(_ESCAPES))
    highlighted.rstrip()
    return highlighted


def _dimmed(text: str, style: str) -> Text:
    out = plain(text, style)
    out.highlight_regex(_MARKUP, Style(dim=True))
    return out


_CHATML_END = "<|im_end|>"
_CHATML_TURN = re.compile(rf"<\|im_start\|>(\w++)\n(.*?){re.escape(_CHATML_END)}", re.DOTALL)
_STATUS_STYLES = {"ok": "green", "infrastructure": "yellow"}
_SHORT_STATUS = {"infrastructure": "infra"}


@dataclass(frozen=True, slots=True)
class _PartStyle:
    """Style of a part of an attempt, by what became of it."""

    text: str
    margin: str
    bar: str


_STAYS = _PartStyle("", "dim", "│")
_OUT = _PartStyle("red strike", "red", "-")
_IN = _PartStyle("green", "green", "+")


def show_trajectory(trajectory: Trajectory) -> RenderableType:
    """Render the (purified) history turn by turn, spliced parts marked."""
    rows: list[RenderableType] = [_header(trajectory), *_prompt(trajectory)]
    for n, turn in enumerate(trajectory.turns, 1):
        rows += [*_opening(n, turn), *_turn(turn)]
    rows.append(_outcome(trajectory))
    return Group(*rows)


def show_purification(trajectory: Trajectory) -> RenderableType:
    """Show before and after for every turn that a purifier looked at."""
    rows: list[RenderableType] = [_header(trajectory), *_prompt(trajectory)]
    for n, turn in enumerate(trajectory.turns, 1):
        rows += _opening(n, turn)
        if turn.repair is None or turn.repair.decision == "answered":
            rows += _turn(turn)
        else:
            before = Group(_title("before: as it was sampled"), *_attempts(turn, turn.repair))
            after = Group(_title("after: what is learnt from"), *_turn(turn))
            rows.append(SideBySide(before, after))
    if not any(turn.repair for turn in trajectory.turns):
        rows.append(plain("No turn was repaired: before and after are the same.", "dim italic"))
    rows.append(_outcome(trajectory))
    return Group(*rows)


def show_turn(number: int, turn: Turn) -> RenderableType:
    """Render one turn as it stands in the history; number: 1-based."""
    return Group(*_opening(number, turn), *_turn(turn))


def _header(trajectory: Trajectory) -> RenderableType:
    branch = trajectory.branch
    left = [] if branch is None else [
        f"branches off {branch.parent} after turn {branch.turns}, {branch.tokens} tokens shared",
        f"{branch.measure} there {branch.uncertainty:.2f} nats a token, {branch.rise:+.2f} over the first turn's",
    ]  # fmt: skip
    facts = [
        f"task {trajectory.task}",
        *left,
        _calls(trajectory.calls, trajectory.failures),
        f"as sampled: {_calls(trajectory.raw_calls, trajectory.raw_failures)}",
        f"{counted(trajectory.sampled_tokens, 'token')} sampled",
        "purifier armed" if trajectory.provenance.purified else "no purifier",
    ]
    return Group(Rule(plain(f"trajectory {trajectory.id}", "bold"), style="bold"), plain(" · ".join(facts), "dim"))


def _calls(calls: int, failures: int) -> str:
    return f"{calls} call{'s' * (calls != 1)}, {failures} failed"


def _prompt(trajectory: Trajectory) -> Iterator[RenderableType]:
    text = "".join(s.text for s in trajectory.prompt)
    last_end = text.rfind(_CHATML_END) + len(_CHATML_END)  # after it, each opening would be searched to the end
    messages = _CHATML_TURN.findall(text, 0, last_end) or [("prompt", text)]
    for role, message in messages:
        yield Row(role[:9], plain(message), "cyan")


def _opening(n: int, turn: Turn) -> Iterator[RenderableType]:
    """A heading for the turn and, where a purifier looked at it, its decision."""
    yield Rule(plain(f"turn {n} · {turn.stop}"), align="left", style="dim", characters="─")
    if turn.repair is not None:
        style = dict.fromkeys(("described", "unrepaired", "answered"), "yellow").get(turn.repair.decision, "green")
        yield Row("repair", plain(_decision(turn.repair)), style)


def _decision(repair: RepairRecord) -> str:
    """The audit trail in a line: decision, similarity where a fix was compared, attempts, reason."""
    names = {
        "shallow": "shallow: program replaced",
        "deep": "deep: reasoning and program replaced",
        "resampled": "resampled: a fresh try in place of the failed one",
        "described": "described: a line in place of the failed call",
        "unrepaired": "not repaired",
        "answered": "the lookahead answered without a call",
    }
    parts = [names[repair.decision]]
    if repair.similarity is not None:
        parts.append(f"similarity {repair.similarity:.2f}")
    parts.append(f"{repair.attempts} attempt{'s' * (repair.attempts != 1)}")
    if repair.reason:
        parts.append(repair.reason)
    return " · ".join(parts)


def _title(text: str) -> Text:
    return plain(text, "bold")


def _turn(turn: Turn) -> Iterator[RenderableType]:
    """A turn as it stands in the history."""
    offset = 0
    for segment in turn.generated:
        body = written(segment.text, turn.calls, offset)
        if body.plain:
            fate = _IN if segment.kind == "spliced" else _STAYS
            yield Row(segment.kind, body, fate.margin, fate.bar)
        offset += len(segment.text)
    yield from map(_observation, turn.observations)


def _observation(observation: Observation) -> Row:
    style = _STATUS_STYLES.get(observation.status, "red")
    body = plain(observation.text.rstrip("\n") or "(no output)", style)
    if observation.seconds:
        body.append(f"  {observation.seconds:.2f} s", "dim")
    return Row(_SHORT_STATUS.get(observation.status, observation.status), body, style)


def _attempts(turn: Turn, repair: RepairRecord) -> Iterator[RenderableType]:
    """Everything sampled at this turn, in order: removed text is struck out, spliced text is green.

    Shallow keeps the first attempt's reasoning and takes the last one's program; deep takes the last one whole; where
    nothing was repaired the first attempt stays as it is.
    """
    raw = turn.raw()
    for n, attempt in enumerate(raw):
        origin, final = n == 0, n == len(raw) - 1
        if repair.decision == "unrepaired":
            prose, program = (_STAYS, _STAYS) if origin else (_OUT, _OUT)
        elif repair.decision in ("deep", "resampled"):
            prose, program = (_IN, _IN) if final else (_OUT, _OUT)
        elif repair.decision == "described":
            prose, program = _STAYS, _OUT
        else:
            prose, program = _STAYS if origin else _OUT, _IN if final else _OUT
        label = "first" if origin else f"attempt {n}"
        split = attempt.calls[0].char if attempt.calls else len(attempt.text)
        lead = plain(attempt.text[:split].rstrip("\n"), prose.text)
        if lead.plain:
            yield Row(label, lead, prose.margin, prose.bar)
            label = ""
        body = written(attempt.text[split:], attempt.calls, split, prose=program.text, code=program.text or None)
        if body.plain:
            yield Row(label, body, program.margin, program.bar)
        yield from map(_observation, attempt.observations)


def _outcome(trajectory: Trajectory) -> RenderableType:
    reward = "not graded" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    good = trajectory.reward is not None and trajectory.reward > 0
    style = "bold green" if good else "bold" if trajectory.reward is None else "bold red"
    line = plain(reward, style)
    line.append(f" · stop {trajectory.stop} · ", "dim")
    none = "no marked answer" if trajectory.stop == "answer" else "no answer"  # it may be right without a mark
    line.append_text(plain(none if trajectory.answer is None else f"answer {trajectory.answer}", ""))
    if trajectory.expected is not None:
        line.append_text(plain(f" · expected {trajectory.expected}", ""))
    if trajectory.reason:
        line.append_text(plain(f" ({trajectory.reason})", "dim"))
    return Group(Rule(style="dim"), line)


_OUTPUT_LINES = 12
MOST_LINES = 1000
"""Of a text that is aligned with another; longer ones, which take difflib minutes, are shown line beside line."""
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_MARK_STYLES = {" ": "dim", "-": "red", "+": "green"}


@dataclass(frozen=True, slots=True)
class Change:
    """A turn that a purifier looked at. number: 1-based, in the purified history."""

    trajectory: Trajectory
    number: int

    @property
    def turn(self) -> Turn:
        return self.trajectory.turns[self.number - 1]

    @property
    def repair(self) -> RepairRecord:
        repair = self.turn.repair
        if repair is None:
            raise ValueError(f"turn {self.number} of {self.trajectory.id} was not judged")
        return repair


def changes(trajectory: Trajectory) -> list[Change]:
    """Return the turns of a trajectory that a purifier looked at."""
    return [Change(trajectory, n) for n, turn in enumerate(trajectory.turns, 1) if turn.repair is not None]


def show_change(change: Change) -> RenderableType:
    """Render heading, reason, failure and fix, side by side if possible."""
    first = change.turn.raw()[0]
    rows: list[RenderableType] = [_change_heading(change), _facts(change, first)]
    if change.repair.decision in ("described", "unrepaired", "answered"):
        rows.append(
            Group(*_lines(" ", _reasoning(first)), *_lines("-", program(first.calls)), *_lines("!", _outputs(first)))
        )
    else:
        skipped = len(change.turn.abandoned) - 2
        rows.append(_FixPair(first, change.turn))
        if skipped > 0:
            rows.append(
                plain(f"and {skipped} failed attempt{'s' * (skipped > 1)} in between, taken out too", "dim italic")
            )
    return Group(*rows)


@dataclass(frozen=True, slots=True)
class _FixPair:
    """A failed turn and what stands in its place."""

    before: Turn
    after: Turn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pairs = [
            *_aligned(_reasoning(self.before), _reasoning(self.after)),
            ("", ""),
            *_aligned(program(self.before.calls), program(self.after.calls)),
            ("", ""),
        ]
        outputs = _outputs(self.before).split("\n"), _outputs(self.after).split("\n")
        if options.max_width < SIDE_BY_SIDE:
            for left, right in pairs:
                yield from _unified(left, right)
            yield from _lines("!", "\n".join(outputs[0]))
            yield from _lines("=", "\n".join(outputs[1]))
            return
        table = Table.grid(expand=True, padding=(0, 1))
        for _ in range(2):
            table.add_column(ratio=1, overflow="fold")
        for left, right in pairs:
            same = left == right
            table.add_row(_line(" " if same else "-", left), _line(" " if same else "+", right))
        for n in range(max(map(len, outputs))):
            failed, worked = (lines[n] if n < len(lines) else "" for lines in outputs)
            table.add_row(_line("!", failed, "yellow"), _line("=", worked, "cyan"))
        yield table


def _change_heading(change: Change) -> RenderableType:
    return Rule(
        plain(f"{change.trajectory.id} · turn {change.number} · {change.repair.decision}", "bold"), align="left"
    )


def _facts(change: Change, first: Turn) -> Text:
    failure = next((o for o in first.observations if o.status not in ("ok", "infrastructure")), None)
    parts = [origin.source] if (origin := change.trajectory.origin) is not None else []
    if failure is not None:
        rule = f" (rule: {failure.rule})" if failure.rule is not None else ""
        parts.append(f"failed: {failure.error_type or failure.status}{rule}")
    if change.repair.similarity is not None:
        parts.append(f"similarity {change.repair.similarity:.2f}")
    if change.repair.reason:
        parts.append(change.repair.reason)
    return plain(" · ".join(parts), "cyan")


def _reasoning(turn: Turn) -> str:
    """What the model wrote before its first call."""
    return turn.text[: turn.calls[0].char].strip("\n") if turn.calls else turn.text


def _outputs(turn: Turn) -> str:
    """The outputs without their colours, cut in the middle where they are long."""
    lines = _ANSI.sub("", "\n".join(o.text.strip("\n") for o in turn.observations)).splitlines()
    if len(lines) > _OUTPUT_LINES:
        half = _OUTPUT_LINES // 2
        lines = [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]
    return "\n".join(lines) or "(no output)"


def _aligned(before: str, after: str) -> Iterator[tuple[str | None, str | None]]:
    """Lines of two texts next to each other; None where the other has an extra line."""
    a, b = before.split("\n") if before else [], after.split("\n") if after else []
    if max(len(a), len(b)) > MOST_LINES:
        yield from zip_longest(a, b)
        return
    for _, a0, a1, b0, b1 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for n in range(max(a1 - a0, b1 - b0)):
            yield a[a0 + n] if a0 + n < a1 else None, b[b0 + n] if b0 + n < b1 else None


def _unified(left: str | None, right: str | None) -> Iterator[Text]:
    if left == right:
        yield _line(" ", left)
        return
    if left is not None:
        yield _line("-", left)
    if right is not None:
        yield _line("+", right)


def _lines(mark: str, text: str) -> Sequence[Text]:
    style = {"!": "yellow", "=": "cyan"}.get(mark)
    return [_line(mark, line, style) for line in text.split("\n")]


def _line(mark: str, text: str | None, style: str | None = None) -> Text:
    if text is None:
        return Text("")
    return plain(f"{mark} {text.removesuffix(chr(13))}", style or _MARK_STYLES.get(mark, ""))
