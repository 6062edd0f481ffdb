"""A model's own template: what it makes of messages is found out, what cannot be followed is refused before work."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

from conversing import TOOLS, bytes_of, conversed, text_of
from retcon.build import build_chat, build_engine_chat
from retcon.chat.chat import Chat
from retcon.chat.family import Family, named, recognised
from retcon.chat.opening import open_chat
from retcon.chat.template import FOR_TOOLS, KEPT, Message, Template, Templated, read_template
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecipeError
from retcon.core.types import Observation, ToolSpec
from retcon.models.locating import BASE
from retcon.store.fingerprint import template_fingerprint

pytest.importorskip("jinja2", reason="jinja2 comes with the [train] extra")

LLAMA = """{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>

{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ strftime_now("%Y") }}<|eot_id|>{% endif %}
{%- for m in messages %}{% if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception("one call") }}{% endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + (m.tool_calls[0].function | tojson) + '<|eot_id|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content | tojson) + '<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}{% if m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("id") }}{% endif %}
{{- '[TOOL_RESULTS]{"content": ' + m.content | tojson + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}
{{- m.content + ('[TOOL_CALLS]' + (m.tool_calls | tojson) if m.tool_calls else '') + '</s>' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}{% endif %}{% endfor %}"""
TAGS = """{% if tools %}<|im_start|>system
{{ tools | tojson }}
Call as <tool_call><function=NAME><parameter=NAME>value</parameter></function></tool_call>.<|im_end|>
{% endif %}{% for m in messages %}{% if m.tool_calls %}
{{- '<|im_start|>assistant\\n' }}{% for c in m.tool_calls %}{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for name, value in c.function.arguments | items %}{{ '<parameter=' + name + '>\\n' + value + '\\n</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}
{{- '<tool_response>\\n' + m.content + '\\n</tool_response>\\n' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
HARMONY = """{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}
{%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}
{{- '<|start|>assistant to=functions.' + f.name + '<|message|>' + (f.arguments | tojson) + '<|call|>' }}
{%- elif m.role == 'tool' %}{{ '<|start|>functions.' + m.name + ' to=assistant<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
CODE = {"code": "1"}


def framed(text: str, family: str) -> Chat:
    known: Family = named(family)
    template = Template(text, {"bos_token": known.controls[0]}, where="the file")
    return Chat(bytes_of(family), style=family, tools=TOOLS, framing=Templated(template, known))


def test_a_turn_that_the_template_ends_otherwise_once_it_is_past_is_followed() -> None:
    """As gpt-oss's does: <|return|> is sampled, and <|end|> stands in the history."""
    chat = framed(HARMONY, "harmony")
    asked = "<|start|>user<|message|>Why?<|end|><|start|>assistant"
    assert text_of(chat.answered([("user", "Why?")], last_id=chat.tokenizer.special_id("<|return|>"))) == asked
    (_, turn) = conversed(chat, [("", [("python", CODE)], ["42"])])
    assert text_of(turn[1:]) == "<|start|>functions.python to=assistant<|message|>42<|end|><|start|>assistant"


def test_line_ends_that_a_template_takes_from_a_reply_are_taken() -> None:
    chat = framed(TAGS.replace("m.content + '<|im_end|>", "m.content.lstrip('\\n') + '<|im_end|>"), "qwen3_coder")
    assert "user\n  x\n<|im_end|>" in text_of(chat.prompt("\n\n  x\n"))


def test_what_a_template_does_to_messages_is_done_to_them() -> None:
    """It trims what is said and writes observations as JSON, and it takes one call a turn."""
    chat = framed(LLAMA, "llama3")
    calls = [("python", CODE), ("search", {"query": "b"})]
    (prompt, turn) = conversed(chat, [("so", calls, ['a "b"\n', ""])], "  what?\n")
    assert text_of(prompt).endswith("2024<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nwhat?<|eot_id|>"
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n")  # fmt: skip
    head = "<|start_header_id|>ipython<|end_header_id|>\n\n"
    assert text_of(turn[1:]) == (
        f'{head}"a \\"b\\"\\n"<|eot_id|>{head}""<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    )
    assert [s.text for s in turn if s.kind == "observation"] == ['a \\"b\\"\\n']


def test_a_turn_that_nothing_comes_before_opens_as_any_other_where_a_template_looks_at_the_first_message() -> None:
    opening = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n"
    thinking = "{% set first = messages[0].role %}" + TAGS.replace(opening, f"{opening}<think>\\n")
    for template, opened in ((TAGS, "<|im_start|>assistant\n"), (thinking, "<|im_start|>assistant\n<think>\n")):
        chat = framed(template, "qwen3_coder")
        assert text_of(chat.opened(())).endswith(f"<|im_end|>\n{opened}")
        assert text_of(chat.prompt("x")).endswith(f"<|im_end|>\n{opened}")


def test_a_template_whose_calls_are_tags_is_told_from_one_whose_calls_are_json() -> None:
    assert recognised(TAGS, "the file").name == "qwen3_coder"
    chat = framed(TAGS, "qwen3_coder")
    given = {"query": "b", "top": 2}
    parsed = chat.parse(chat.wrote("so", [("python", CODE), ("search", given)]).ids, prefix="0")
    assert [(call.name, call.arguments) for call in parsed.calls] == [("python", CODE), ("search", given)]
    seen = [Observation("0.0", "1", "ok"), Observation("0.1", "", "ok")]
    shown = (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response>\n<|im_end|>\n"
    )
    assert text_of(chat.observations(parsed.calls, seen)) == f"{shown}<|im_start|>assistant\n"
    shipped = Chat(bytes_of("qwen3_coder"), style="qwen3_coder", tools=TOOLS)
    assert shipped.observations(parsed.calls, seen) == chat.observations(parsed.calls, seen)


@pytest.mark.parametrize("template", [None, TAGS])
def test_other_tools_are_shown_after_the_same_system_prompt_and_through_the_same_template(template: str | None) -> None:
    """As to clients of a served model that bring their own."""
    known = named("qwen3_coder")
    framing = None if template is None else Templated(Template(template, {}, where="the file"), known)
    about = {"style": "qwen3_coder", "system": "Solve it.", "framing": framing}
    shown = Chat(bytes_of("qwen3_coder"), **about).showing(TOOLS[:1])
    assert shown.tools == TOOLS[:1]
    prompt = shown.prompt("x")
    assert prompt == Chat(bytes_of("qwen3_coder"), tools=TOOLS[:1], **about).prompt("x")
    assert ("Call as <tool_call>" in text_of(prompt), "Solve it." in text_of(prompt)) == (template is not None, True)
    assert shown.showing(TOOLS[:1]) is shown


def test_today_is_the_same_day_tomorrow() -> None:
    assert "2024" in text_of(framed(LLAMA, "llama3").prompt("x"))


def test_observations_name_calls_as_the_model_did() -> None:
    chat = framed(MISTRAL, "mistral")
    t = chat.tokenizer
    said = t.encode('[TOOL_CALLS][{"name": "python", "arguments": {"code": "1"}, "id": "abcdefghi"}]</s>', special=True)
    parsed = chat.parse(said, prefix="0")
    seen = [Observation("0.0", "1", "ok")]
    assert text_of(chat.observations(parsed.calls, seen, written=parsed.text)) == (
        '[TOOL_RESULTS]{"content": "1", "call_id": "abcdefghi"}[/TOOL_RESULTS]'
    )
    assert '"call_id": "retcon000"' in text_of(chat.observations(parsed.calls, seen))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("tools | tojson", "''"), "does not show the model any tools: set model.style = 'mistral'"),
        (("m.content + (", "m.content | upper + ("), "changes what a message of the role 'assistant' says"),
        (("'[INST]' + m.content", "'[INST]' + m.content + m.content"), "leaves out, repeats or moves a message"),
        (("'</s>'", "''"), r"does not end a turn by </s>"),
        (("{%- elif m.role == 'assistant'", "{% elif m.role == 'system' %}{{ raise_exception('no system') }}"
          "{%- elif m.role == 'assistant'"), "refuses a conversation: no system"),
        (("m.content | tojson", "''"), "leaves out, repeats or moves a message"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_what_to_set(change: tuple[str, str], why: str) -> None:
    assert change[0] in MISTRAL
    with pytest.raises(RecipeError, match=why):
        framed(MISTRAL.replace(*change), "mistral")


def test_templates_are_found_in_a_folder(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    assert read_template(tmp_path) is None
    config.write_text(json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}a"}))
    assert read_template(tmp_path).compiled().render([]) == "<s>a"
    both = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    config.write_text(json.dumps({"chat_template": both}))
    assert read_template(tmp_path).compiled().render([]) == "b"
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{% if thinking %}!{% endif %}")
    assert read_template(tmp_path).compiled({"thinking": True}).render([{"content": "c"}]) == "c!"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja: the chat template is not valid Jinja"):
        read_template(tmp_path).compiled()
    config.write_text("[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not an object"):
        read_template(tmp_path)
    config.write_text("{")
    with pytest.raises(CheckpointError, match="the chat template cannot be read"):
        read_template(tmp_path)


def test_of_several_templates_as_transformers_saves_them_the_one_for_tools_is_taken(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("a")
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "rag.jinja").write_text("c")
    assert read_template(tmp_path).compiled().render([]) == "a"
    (more / "tool_use.jinja").write_text("b")
    assert read_template(tmp_path).compiled().render([]) == "b"


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja", FOR_TOOLS])
def test_every_file_that_says_how_a_model_is_talked_to_is_told_apart(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    seen = [template_fingerprint(tmp_path)]
    for text in ("{}", '{"chat_template": "a"}'):
        file.write_text(text)
        seen.append(template_fingerprint(tmp_path))
    assert len({*seen}) == 3
    (tmp_path / "model.safetensors").write_bytes(b"1")
    assert template_fingerprint(tmp_path) == seen[-1]


def test_a_template_reaches_nothing() -> None:
    for attack in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}"):
        with pytest.raises(CheckpointError, match="refuses a conversation"):
            Template(attack).render([])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<|im_start|>", "the nearest is 'qwen', of which it lacks '<tool_call>': set model.style = 'qwen'"),
        ("<|begin|>", "of no known family: set model.style to one of deepseek, gemma"),
    ],
)
def test_templates_of_no_family(text: str, why: str) -> None:
    with pytest.raises(RecipeError, match=f"my file is of no known family.*{why}|my file is {why}"):
        recognised(text, "my file")
    assert recognised(LLAMA, "").name == "llama3"
    assert recognised(MISTRAL, "").name == "mistral"


class Counting(Template):
    """Counts what it renders."""

    rendered = 0

    def render(self, messages: Sequence[Message], tools: Sequence[object] = (), *, opening: bool = True) -> str:
        self.rendered += 1
        return super().render(messages, tools, opening=opening)


class Parameters(dict[str, object]):
    """A schema of which it can be told whether anybody still has it."""


def test_tool_sets_without_end_are_not_kept_and_the_one_in_use_is() -> None:
    template = Counting(MISTRAL, {"bos_token": "<s>"})
    framing = Templated(template, named("mistral"))
    before = template.rendered
    schemas: list[weakref.ref[Parameters]] = []

    def shown(n: int) -> str:
        parameters = Parameters(type="object", title=f"tools of client {n}")
        schemas.append(weakref.ref(parameters))
        return "".join(piece.text for piece in framing.opened([("user", "go")], [ToolSpec("t", "", parameters)]))

    first = shown(0)
    for n in range(1, KEPT + 9):
        assert f"tools of client {n}" in shown(n)
        assert shown(0) == first
    assert template.rendered - before == KEPT + 9
    gc.collect()
    assert sum(schema() is not None for schema in schemas) <= KEPT


def test_the_packaged_model_is_known_by_its_template(tmp_path: Path) -> None:
    """And so is every model trained in its style: they need no `model.style`."""
    chat, told = build_chat(load_recipe(None), BASE), build_chat(load_recipe(None, ["model.style=markdown"]), BASE)
    assert chat.style == "markdown"
    assert [segment.ids for segment in chat.prompt("1 + 1?")] == [segment.ids for segment in told.prompt("1 + 1?")]
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "chat_template.jinja").write_text(Path(BASE / "chat_template.jinja").read_text() + "{# mine #}")
    with pytest.raises(RecipeError, match=r"jinja: the chat template is of no known family.* set model\.style"):
        build_chat(load_recipe(None), folder)


def test_any_other_model_is_asked_through_its_own_template_unless_told_otherwise(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "chat_template.jinja").write_text(TAGS)
    assert build_chat(load_recipe(None), folder).style == "qwen3_coder"
    assert build_chat(load_recipe(None, ["model.style=hermes"]), folder).style == "hermes"


def test_a_tokenizer_with_more_tokens_than_its_model_is_refused_before_any_is_asked(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    config = json.loads((folder / "config.json").read_text())
    for size in (config["vocab_size"], config["vocab_size"] + 64):  # some models pad theirs
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
        assert open_chat(folder).prompt("1 + 1?")
    for about in ({"vocab_size": 100}, {"text_config": {"vocab_size": 100}}):
        (folder / "config.json").write_text(json.dumps(config | about))
        with pytest.raises(CheckpointError, match=r"tokenizer\.json has [\d,]+ tokens and the model 100: they are"):
            open_chat(folder)


def test_thinking_is_refused_where_nobody_would_be_told_it(tmp_path: Path) -> None:
    """Figures of a model that thinks would be taken for those of one that does not."""
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    off = load_recipe(None, ["model.thinking=off"])
    for template in (None, TAGS):
        if template:
            (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(RecipeError, match=r"'off' would change nothing, as .*jinja does not ask for enable_think"):
            build_chat(off, folder)
    asks = "{% if enable_thinking is false %}<think></think>{% endif %}"
    (folder / "chat_template.jinja").write_text(TAGS + asks)
    assert text_of(build_chat(off, folder).prompt("x")).endswith("<think></think>")
    served = load_recipe(None, ["engine.kind=openai", "engine.url=http://a:1/v1", "model.thinking=off"])
    with pytest.raises(RecipeError, match=r"model\.thinking = 'off': with engine\.kind = 'openai' .* is the server's"):
        build_engine_chat(served, folder)
