"""Calls as JSON in `<tool_call>` tags, observations in user turns; no tools shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from retcon.chat.formats import CallFormat
from retcon.chat.jsons import as_json
from retcon.chat.learned import LearnedFamily
from retcon.chat.types import END_OF_TEXT, TURN_END, TURN_START, FoundCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TURNS = """{%- for message in told %}
{%- if message.role == 'tool' %}
{{- '\\n' if not loop.first and loop.previtem.role == 'tool' else '<|im_start|>user\\n' }}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Jinja: messages as turns of ChatML, calls and observations between their tags."""
FORMAT = CallFormat("object", "", f"{OPEN}\n", f"\n{CLOSE}", "\n", "", after_words="\n")
FAMILY = LearnedFamily(
    FORMAT, (TURN_END,), observed_between=("<tool_response>\n", "\n</tool_response>"), stops=(END_OF_TEXT,),
    name="hermes", template="{%- set told = messages %}\n" + TURNS, controls=(TURN_START,), piecewise=True,
    calls_are_text=True,
)  # fmt: skip


def find_calls(text: str) -> Iterator[FoundCall]:
    """Find every `<tool_call>` in a text; malformed ones keep their text."""
    return (call for call, _ in FORMAT.find_calls(text))


def render_call(name: str, arguments: Mapping[str, object]) -> str:
    """Render a call as Qwen3's own template writes it."""
    return f"{OPEN}\n{as_json({'name': name, 'arguments': arguments})}\n{CLOSE}"
