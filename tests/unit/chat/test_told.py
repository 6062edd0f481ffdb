"""What is told after a turn of the model's: by the user, by the system, by an assistant of elsewhere."""

from __future__ import annotations

import pytest

from chat_templates import PLAIN, learned_chat
from conversing import NAMES, TOOLS, bytes_of, chat_of, text_of
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES
from retcon.chat.template import Template, TemplateFraming
from retcon.core.types import Observation, ToolCall

CALL, SEEN = ToolCall("0.0", "python", {"code": "1"}, 0), Observation("0.0", "42", "ok")
ROLES = {
    "bare": "<|start_header_id|>system<|end_header_id|>\n\nNow<|eot_id|>",
    "harmony": "<|start|>developer<|message|># Instructions\n\nNow<|end|>",
    "listed": "[INST]Now[/INST][INST]Why?[/INST]",
    "plain": "<start_of_turn>system\nNow<end_of_turn>\n",
    "fenced": "Now<｜User｜>Why?",
}
CHATML = "<|im_start|>system\nNow<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"


@pytest.mark.parametrize("family", NAMES)
def test_a_system_that_speaks_later_does_so_in_its_role_or_as_a_user(family: str) -> None:
    chat = chat_of(family)
    told = [("system", "Now"), ("user", "Why?")]
    answered = text_of(chat.render_messages(told))
    assert ROLES.get(family, CHATML) in answered
    observed = text_of(chat.observations([CALL], [SEEN], messages=told))
    assert observed.index("42") < observed.index("Now") < observed.index("Why?")
    assert ROLES.get(family, CHATML) in observed
    assert "Now" in text_of(chat.render_messages(told[:1]))
    elsewhere = text_of(chat.render_messages([("assistant", "So."), ("user", "Why?")]))
    assert elsewhere.index("So.") < elsewhere.index("Why?")


TEMPLATE = """{% if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first and not MID %}{{ raise_exception('the system speaks first') }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') + (m.tool_calls | tojson if m.tool_calls else '') }}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""


def test_a_system_that_a_template_never_shows_speaks_as_the_user() -> None:
    unseen = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    chat = learned_chat("plain", PLAIN.replace("in messages %}", "in messages %}" + unseen))
    assert "<start_of_turn>user\nNow<end_of_turn>\n" in text_of(chat.render_messages([("system", "Now")]))


@pytest.mark.parametrize(("mid", "role"), [("true", "system"), ("false", "user")])
def test_a_template_that_lets_the_system_speak_first_alone_has_it_told_by_the_user(mid: str, role: str) -> None:
    known = FAMILIES.find("hermes")
    framing = TemplateFraming(Template(TEMPLATE.replace("MID", mid), {}, where="the file"), known)
    chat = Chat(bytes_of("hermes"), style="hermes", tools=TOOLS, framing=framing)
    told = [("system", "Now"), ("user", "Why?")]
    said = f"<|im_start|>{role}\nNow<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert text_of(chat.render_messages(told)) == f"\n{said}"
    assert text_of(chat.observations([CALL], [SEEN], messages=told)).endswith(said)
