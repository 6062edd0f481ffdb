"""What a transcript is laid out with: labelled rows, and text of models and tools made safe to print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from retcon.core.types import ToolCall

LABEL_WIDTH = 9
SIDE_BY_SIDE = 100  # columns from which two transcripts stand next to each other

_HIGHLIGHTER = Syntax("", "python", theme="ansi_dark", background_color="default")
_MARKUP = r"<\|[^|<>\n]*\|>|</?tool_call>|(?m:^`{3,}\w*[ \t]*(?=$|<\|))"
_TOOL_CALL_END = "</tool_call>"
# Control characters reach a terminal as commands: all but tab and line end are shown as escapes instead.
_ESCAPES = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


@dataclass(frozen=True, slots=True)
class Row:
    """A label, a bar and what stands right of them; `bar` tells origin without colour too (`+` in, `-` out)."""

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
class Beside:
    """Two renderables: next to each other where there is room, else one above the other."""

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
    """Text as it is: no markup is read in it, and control characters are shown rather than obeyed."""
    return Text(text.translate(_ESCAPES), style=style)


def written(text: str, calls: Sequence[ToolCall], offset: int = 0, *, prose: str = "", code: str | None = None) -> Text:
    """What a model wrote, with its programs highlighted and its markup dimmed.

    calls: those of the whole turn, of whose generated text `text` begins at character `offset`. prose: style of what
    is no program. code: style of the programs, None for syntax colours.
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
