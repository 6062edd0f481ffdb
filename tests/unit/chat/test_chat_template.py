"""A model's own template: what it makes of messages is found out, what cannot be followed is refused before work."""

from __future__ import annotations

import gc
import json
import re
import shutil
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from chat_templates import LISTED, OBJECTS, TAGS, TEMPLATES, learned_chat, template_of, tokenizer_of
from conversing import TOOLS, chat_of, conversed, text_of
from retcon.build import build_chat, build_engine_chat
from retcon.chat.learned import CodeBlocks
from retcon.chat.learning import learn_chat
from retcon.chat.opening import open_chat
from retcon.chat.template import FOR_TOOLS, KEPT, Message, Template, TemplateFraming, default_template, read_template
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecipeError, TaskWarning
from retcon.core.types import Observation, ToolCall, ToolSpec
from retcon.models.locating import BASE
from retcon.store.fingerprint import template_fingerprint

CODE = {"code": "1"}


def test_a_turn_that_the_template_ends_otherwise_once_it_is_past_is_followed() -> None:
    """As gpt-oss's does: <|return|> is sampled, and <|end|> stands in the history."""
    chat = chat_of("harmony", None)
    asked = "<|start|>user<|message|>Why?<|end|><|start|>assistant"
    assert text_of(chat.render_messages([("user", "Why?")], last_id=chat.tokenizer.special_id("<|return|>"))) == asked
    (_, turn) = conversed(chat, [("", [("python", CODE)], ["42"])])
    head = "<|start|>functions.python to=assistant<|channel|>commentary<|message|>"
    assert text_of(turn[1:]) == f"{head}42<|end|><|start|>assistant"


def test_line_ends_that_a_template_takes_from_a_reply_are_taken() -> None:
    changed = TAGS.replace("m.content + '<|im_end|>", "m.content.lstrip('\\n') + '<|im_end|>")
    assert changed != TAGS
    assert "user\n  x\n<|im_end|>" in text_of(learned_chat("tags", changed, tools=TOOLS).prompt("\n\n  x\n"))


def test_what_a_template_does_to_messages_is_done_to_them() -> None:
    """It trims what is said and writes observations as JSON, and it takes one call a turn."""
    chat = learned_chat("bare", tools=TOOLS)
    calls = [("python", CODE), ("search", {"query": "b"})]
    (prompt, turn) = conversed(chat, [("so", calls, ['a "b"\n', ""])], "  what?\n")
    assert text_of(prompt).endswith("2024<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nwhat?<|eot_id|>"
                                    "<|start_header_id|>assistant<|end_header_id|>\n\n")  # fmt: skip
    head = "<|start_header_id|>ipython<|end_header_id|>\n\n"
    assert text_of(turn[1:]) == (
        f'{head}"a \\"b\\"\\n"<|eot_id|>{head}""<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    )
    assert [s.text for s in turn if s.kind == "observation"] == ['a \\"b\\"\\n']


def test_a_thought_that_the_template_opens_is_opened() -> None:
    opening = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n"
    thinking = "{% set first = messages[0].role %}" + TAGS.replace(opening, f"{opening}<think>\\n")
    for template, opened in ((TAGS, "<|im_start|>assistant\n"), (thinking, "<|im_start|>assistant\n<think>\n")):
        chat = learned_chat("tags", template, tools=TOOLS)
        assert text_of(chat.prompt("x")).endswith(f"<|im_end|>\n{opened}")


def test_calls_are_written_and_answered_as_the_template_has_them() -> None:
    chat = learned_chat("tags", tools=TOOLS)
    given = {"query": "b", "top": 2}
    parsed = chat.parse(chat.render_turn("so", [("python", CODE), ("search", given)]).ids, prefix="0")
    assert [(call.name, call.arguments) for call in parsed.calls] == [("python", CODE), ("search", given)]
    seen = [Observation("0.0", "1", "ok"), Observation("0.1", "", "ok")]
    shown = (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n\n</tool_response>\n<|im_end|>\n"
    )
    assert text_of(chat.observations(parsed.calls, seen)) == f"{shown}<|im_start|>assistant\n"


ALTERNATING = """{%- set ns = namespace(last='') %}{%- for m in messages %}
{%- if m.role == 'user' and ns.last in ('user', 'tool') or m.role == 'system' and ns.last %}
{{- raise_exception('roles must alternate') }}{% endif %}
{%- set ns.last = m.role %}{%- endfor %}"""


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_user_after_a_user_or_a_tool_joins_its_message_where_the_template_refuses_two(name: str) -> None:
    chat = learned_chat(name, ALTERNATING + TEMPLATES[name][0], tools=TOOLS)
    assert text_of(chat.render_prompt([("user", "a"), ("user", "b")])) == text_of(chat.prompt("a\n\nb"))
    assert text_of(chat.render_messages([("user", "a"), ("system", "b")])) == text_of(
        chat.render_messages([("user", "a\n\nb")])
    )

    def observed(result: str, told: str = "") -> str:
        call, observation = ToolCall("0.0", "python", CODE, 0), Observation("0.0", result, "ok")
        return text_of(chat.observations([call], [observation], messages=[("user", told)] if told else ()))

    joined = observed("42\n\nmore")
    if isinstance(chat.family, CodeBlocks):  # where an observation is a block in a user's message
        joined = joined.replace("42\n\nmore\n```", "42\n```\n\nmore")
    assert observed("42", "more") == joined


def test_lists_and_objects_are_written_with_the_quotes_that_the_template_has() -> None:
    written = learned_chat("quoted").render_turn("", [("s", {"q": [1, {"b": "x"}], "c": True})]).text
    assert written == '<|tool_call>call:s{q:[1,{b:<|"|>x<|"|>}],c:true}<tool_call|><|im_end|>'


def test_other_tools_are_shown_after_the_same_system_prompt_and_through_the_same_template() -> None:
    """As to clients of a served model that bring their own."""
    shown = learned_chat("tags", system="Solve it.").with_tools(TOOLS[:1])
    assert shown.tools == TOOLS[:1]
    assert shown.prompt("x") == learned_chat("tags", system="Solve it.", tools=TOOLS[:1]).prompt("x")
    assert "Solve it." in text_of(shown.prompt("x"))
    assert shown.with_tools(TOOLS[:1]) is shown


def test_today_is_the_same_day_tomorrow() -> None:
    assert "2024" in text_of(learned_chat("bare", tools=TOOLS).prompt("x"))


def test_observations_name_calls_as_the_model_did() -> None:
    chat = learned_chat("listed", tools=TOOLS)
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
        (("m.role + '\\n' + m.content", "m.role + '\\n' + m.content | upper"), "changes the text of a message"),
        (("m.role + '\\n' + m.content", "m.role + m.content + m.content"), "leaves out, repeats or moves a message"),
        (("{{ '<|im_start|>assistant\\n' + m.content }}", "{{ '<|im_start|>assistant\\n' }}"),
         "leaves out what the assistant says"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_with_the_reason(change: tuple[str, str], why: str) -> None:
    assert change[0] in OBJECTS
    with pytest.raises(RecipeError, match=f"objects: this chat template cannot be followed: .*{why}"):
        learned_chat("objects", OBJECTS.replace(*change))


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("plain", ("", ""), "it shows no calls of tools"),
        ("objects", ("(c.function.arguments | tojson)", "\"{'code': '\" + c.function.arguments.code | string + \"'}\""),
         "shows arguments in no order of key and value"),
        ("tags", ("(value | string)", "value"), "refuses a conversation: can only concatenate str"),
        ("listed", ("m.content | tojson", "''"), "leaves out what a tool answers"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_read_back_are_code_blocks(name: str, change: tuple[str, str], why: str) -> None:
    """And the reason is given: a call that is written wrongly is never learnt."""
    text, controls = TEMPLATES[name]
    learned = learn_chat(
        template_of(name, text.replace(*change)), tokenizer_of(name), controls[:1], system=None, tools=()
    )
    assert isinstance(learned.chat.family, CodeBlocks)
    assert re.search(why, learned.why_blocks)
    assert learned.check.trains
    chat = learned.chat.with_tools(TOOLS[:1])
    (prompt, turn, *_) = conversed(chat, [("I try.", [("python", {"code": "print(1)"})], ["1"])])
    assert "begins with ```python" in text_of(prompt)
    assert "```output\n1\n```" in text_of(turn)


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
    with pytest.raises(CheckpointError, match="refuses a conversation"):
        Template("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([])
    messages: list[dict[str, object]] = []
    Template("{{ messages.append(1) }}").render(messages)
    assert messages == []


@pytest.mark.parametrize(
    ("controls", "opened"),
    [
        (("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<bos><start_of_turn>user\nx<end_of_turn>\n"),
        (("<bos>", "<eos>"), "<bos>user\nx<eos>\nassistant\n"),
    ],
)
def test_a_model_without_a_template_writes_code_blocks(controls: tuple[str, ...], opened: str, tmp_path: Path) -> None:
    source = default_template(tmp_path, controls)
    assert source is None or "<end_of_turn>" in controls  # without its configuration nothing says what ends a text
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    source = default_template(tmp_path, controls)
    assert source is not None
    learned = learn_chat(source.compiled(), ByteTokenizer(controls), ["<eos>"], system=None, tools=())
    assert isinstance(learned.chat.family, CodeBlocks)
    assert learned.check.trains
    assert text_of(learned.chat.prompt("x")).startswith(opened)


class Counting(Template):
    """Counts what it renders."""

    rendered = 0

    def render(self, messages: Sequence[Message], tools: Sequence[object] = (), *, opening: bool = True) -> str:
        self.rendered += 1
        return super().render(messages, tools, opening=opening)


class Parameters(dict[str, object]):
    """A schema of which it can be told whether anybody still has it."""


def test_tool_sets_without_end_are_not_kept_and_the_one_in_use_is() -> None:
    template = Counting(LISTED, {"bos_token": "<s>"})
    framing = TemplateFraming(template, learned_chat("listed").family)
    before = template.rendered
    schemas: list[weakref.ref[Parameters]] = []

    def shown(n: int) -> str:
        parameters = Parameters(type="object", title=f"tools of client {n}")
        schemas.append(weakref.ref(parameters))
        return "".join(piece.text for piece in framing.render_prompt([("user", "go")], [ToolSpec("t", "", parameters)]))

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
    with pytest.warns(TaskWarning, match=r"model: calls are written as ```python blocks, which the system prompt expl"):
        build_chat(load_recipe(None), folder)


def test_any_other_model_is_asked_through_its_own_template_unless_told_otherwise(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "chat_template.jinja").write_text(TAGS)
    assert build_chat(load_recipe(None), folder).style == "template"
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
    given = 'model.chat_template_kwargs={"%s" = false}'
    same = build_chat(load_recipe(None, [given % "enable_thinking"]), folder)
    assert text_of(same.prompt("x")).endswith("<think></think>")
    with pytest.raises(
        RecipeError, match=r"kwargs\.effort would .* does not ask for effort; it asks for enable_thinking"
    ):
        build_chat(load_recipe(None, [given % "effort"]), folder)
    with pytest.raises(RecipeError, match="set style to 'auto', or leave chat_template_kwargs out"):
        load_recipe(None, ["model.style=hermes", given % "effort"])
    served = ["engine.kind=openai", "engine.url=http://a:1/v1"]
    for override, said in (("model.thinking=off", "thinking = 'off'"), (given % "a", "chat_template_kwargs = ")):
        with pytest.raises(RecipeError, match=rf"model\.{said}.*: with engine\.kind = 'openai' .* is the server's"):
            build_engine_chat(load_recipe(None, [*served, override]), folder)


def test_variables_that_a_template_reads_are_told_from_those_that_it_sets() -> None:
    text = "{% set a = 1 %}{% if b is not defined %}{% set b = 2 %}{% endif %}{% for c in d %}{{ a + c }}{% endfor %}"
    assert template_of("tags", text + "{{ messages | length }}{{ bos_token }}").reads == {"b", "d"}


@pytest.mark.parametrize(
    ("end", "mask"), [("<|im_end|>{% endgeneration %}", True), ("{% endgeneration %}<|im_end|>", False)]
)
def test_what_a_template_marks_as_generated_is_compared_with_the_loss_mask(end: str, mask: bool, tmp_path: Path):
    marked = TAGS.replace("{{ '<|im_start|>assistant\\n' + m.content }}",
                          "{{ '<|im_start|>assistant\\n' }}{%- generation %}{{- m.content }}")  # fmt: skip
    marked = marked.replace("{% endfor %}{{ '<|im_end|>\\n' }}", f"{{% endfor %}}{end}{{{{ '\\n' }}}}")
    learned = learn_chat(template_of("tags", marked), tokenizer_of("tags"), ["<|im_end|>"], system=None, tools=())
    assert (learned.check.trains, learned.check.mask) == (True, mask)
    assert any(text.startswith("mask: ") for text in learned.check.differs) is not mask
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(BASE / name, tmp_path)
    (tmp_path / "chat_template.jinja").write_text(marked)
    with nullcontext() if mask else pytest.warns(TaskWarning, match="marks other text than the loss mask"):
        open_chat(tmp_path)


def test_a_further_question_is_framed_as_with_the_tools_that_are_shown() -> None:
    text = TAGS.replace("{%- else %}{{ '<|im_start|>'", "{%- else %}{{ '<|im_start|>' + ('with ' if tools else '')")
    chat = learned_chat("tags", text, tools=(ToolSpec("search"),))
    assert "<|im_start|>with user\nmore" in text_of(chat.render_messages([("user", "more")]))
    assert "<|im_start|>user\nmore" in text_of(chat.with_tools(()).render_messages([("user", "more")]))
