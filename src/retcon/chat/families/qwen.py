"""Family of Qwen2.5, Qwen3 and ChatML: `hermes` with tools shown."""

import json
from dataclasses import replace

from retcon.chat.families import hermes
from retcon.chat.types import TURN_START

BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>"
)
AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)
"""The words that the models were trained with, before and after the tools, as Qwen's own templates have them."""
OPENING = """{%- set told = messages %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}
{%- set told = messages[1:] %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- BEFORE }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- AFTER + '<|im_end|>\\n' }}
{%- endif %}
""".replace("BEFORE", json.dumps(BEFORE)).replace("AFTER", json.dumps(AFTER))
FAMILY = replace(
    hermes.FAMILY, name="qwen", template=OPENING + hermes.TURNS, tokens=(TURN_START, hermes.OPEN), piecewise=False
)
