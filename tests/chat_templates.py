"""Chat templates in each syntax that is learnt, small, with the control tokens of their tokenizers."""

from __future__ import annotations

from functools import cache

from retcon.chat.chat import Chat
from retcon.chat.families.harmony import Harmony
from retcon.chat.learning import learn_chat
from retcon.chat.template import Template
from retcon.chat.tokenizer import ByteTokenizer

BARE = """{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>

{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ strftime_now("%Y") }}<|eot_id|>{% endif %}
{%- for m in messages %}{% if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call") }}{% endif %}
{%- set f = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + f.name + '", "parameters": ' + (f.arguments | tojson) + '}<|eot_id|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content | tojson) + '<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
LISTED = """{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}{% if m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("id") }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' + m.content | tojson + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}{{ m.content }}{% if m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}
{{- (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' + ('' if loop.last else ', ') }}{% endfor %}]{% endif %}
{{- '</s>' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"""
CHATML = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' + m.content }}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}
{{- '<tool_response>\\n' + m.content + '\\n</tool_response>\\n' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
OBJECTS = CHATML.replace("CALL", """
{%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}""")  # fmt: skip
TAGS = CHATML.replace("CALL", """{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for name, value in c.function.arguments | items %}{{ '<parameter=' + name + '>\\n' + (value | string) }}
{{- '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}""")  # fmt: skip
PAIRS = CHATML.replace("CALL", """{{ '<tool_call>' + c.function.name }}
{%- for name, value in c.function.arguments | items %}{{ '<arg_key>' + name + '</arg_key><arg_value>' }}
{{- (value if value is string else value | tojson) + '</arg_value>' }}{% endfor %}{{ '</tool_call>' }}""")  # fmt: skip
QUOTED = CHATML.replace("CALL", """{{ '<|tool_call>call:' + c.function.name + '{' }}
{%- for name, value in c.function.arguments | items %}{{ ('' if loop.first else ',') + name + ':' }}
{{- '<|"|>' + value + '<|"|>' if value is string else value | tojson }}
{%- endfor %}{{ '}<tool_call|>' }}""")  # fmt: skip
NAMED = CHATML.replace("CALL", """{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}""")
FENCED = """{{ bos_token }}{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'user' %}
{{- '<｜User｜>' + m.content }}{% elif m.role == 'system' %}{{ m.content }}{% elif m.role == 'assistant' %}
{{- '<｜Assistant｜>' + m.content }}{% for c in m.tool_calls or [] %}
{{- '<｜tool▁calls▁begin｜>' if loop.first else '\\n' }}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments | tojson }}
{{- '\\n```<｜tool▁call▁end｜>' + ('<｜tool▁calls▁end｜>' if loop.last else '') }}{% endfor %}
{{- '<｜end▁of▁sentence｜>' }}{% else %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"""
PYTHONIC = CHATML.replace("CALL", """{{ '<|tool_call_start|>[' if loop.first else ', ' }}{{ c.function.name + '(' }}
{%- for name, value in c.function.arguments | items %}{{ ('' if loop.first else ', ') + name + '=' + value | tojson }}
{%- endfor %}{{ ')' }}{% if loop.last %}{{ ']<|tool_call_end|>' }}{% endif %}""")  # fmt: skip
PLAIN = """{{ bos_token }}{% for m in messages %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim }}
{{- '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
HARMONY = """{{- '<|start|>system<|message|>You are ChatGPT.<|end|>' }}
{%- set about = ['# Instructions\\n\\n' + messages[0].content] if messages[0].role == 'system' else [] %}
{%- set about = about + ['# Tools\\n\\n' + tools | map('tojson') | join('\\n')] if tools else about %}
{%- if about %}{{ '<|start|>developer<|message|>' + about | join('\\n\\n') + '<|end|>' }}{% endif %}
{%- for m in (messages[1:] if messages[0].role == 'system' else messages) %}
{%- if m.role == 'tool' %}
{{- '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}
{%- elif m.tool_calls %}{% set f = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}
{{- f.arguments | tojson + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{%- if loop.last and m.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- elif m.role == 'system' %}{{ '<|start|>developer<|message|># Instructions\\n\\n' + m.content + '<|end|>' }}
{%- else %}{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""


class GptOss(Harmony):
    """With the template that models of the family bring."""

    template = HARMONY


GPT_OSS = GptOss()
_CHATML = ("<|im_start|>", "<|im_end|>")
TEMPLATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bare": (BARE, ("<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")),
    "listed": (LISTED, ("</s>", "<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
                        "[TOOL_RESULTS]", "[/TOOL_RESULTS]")),
    "objects": (OBJECTS, _CHATML[::-1]),
    "tags": (TAGS, _CHATML[::-1]),
    "pairs": (PAIRS, _CHATML[::-1]),
    "quoted": (QUOTED, (*_CHATML[::-1], '<|"|>', "<|tool_call>", "<tool_call|>")),
    "named": (NAMED, (*_CHATML[::-1], "[TOOL_CALLS]", "[ARGS]")),
    "fenced": (FENCED, ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
                        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                        "<｜tool▁call▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")),
    "pythonic": (PYTHONIC, (*_CHATML[::-1], "<|tool_call_start|>", "<|tool_call_end|>")),
    "plain": (PLAIN, ("<end_of_turn>", "<bos>", "<start_of_turn>")),
}  # fmt: skip
"""By syntax: the template, and control tokens, of which the first ends turns and the second begins texts."""


@cache
def tokenizer_of(name: str) -> ByteTokenizer:
    """Bytes, with the control tokens of a template."""
    return ByteTokenizer(TEMPLATES[name][1])


def template_of(name: str, text: str = "") -> Template:
    """A template, or a changed text of it."""
    tokens = TEMPLATES[name][1]
    return Template(text or TEMPLATES[name][0], {"bos_token": tokens[1], "eos_token": tokens[0]}, where=name)


@cache
def _learned(name: str, text: str) -> Chat:
    ends = TEMPLATES[name][1][:1]
    return learn_chat(template_of(name, text), tokenizer_of(name), ends, system=None, tools=()).chat


def learned_chat(name: str, text: str = "", **about: object) -> Chat:
    """The chat of a template. about: `system`, `tools`."""
    chat = _learned(name, text)
    return Chat(chat.tokenizer, framing=chat.framing, family=chat.family, **about)  # type: ignore[arg-type]
