"""Tools declare their arguments; calls that have others are told what is wrong with them and reach no tool."""

from __future__ import annotations

import asyncio
import io
import sys
import types
import urllib.request
from typing import Any

import pytest

from conversing import chat_of
from playing import LIMITS, TASK, hermes_call
from retcon.chat.chat import Chat
from retcon.chat.families import hermes
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecipeError
from retcon.core.types import Observation, ToolCall, ToolSpec, Trajectory
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import SamplingParams
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.rollout.state import run_calls
from retcon.tools.loading import find_tools
from retcon.tools.schema import argument_error, check_schema, python_spec
from retcon.tools.scripted import ScriptedSessions, ScriptedTool

SPEC = ToolSpec(
    "search",
    "Looks a word up.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 2},
            "top": {"type": "integer"},
            "in": {"enum": ["books", "web"]},
            "more": {"type": "object", "required": ["a"]},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)


class Search:
    """A tool as a user writes one."""

    name = "search"
    spec = SPEC

    async def __call__(self, call: ToolCall) -> Observation:
        return Observation(call.id, f"about {call.arguments['query']}", "ok")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"query": "ab"}, None),
        ({"query": "ab", "top": 2, "in": "web", "more": {"a": 1}, "tags": ["x", None]}, None),
        ({}, "no 'query' argument"),
        ({"qury": "x", "query": "ab"}, "Additional properties are not allowed ('qury' was unexpected)"),
        ({"query": 3}, "'query' is not a string"),
        ({"query": "ab", "top": 1.5}, "'top' is not an integer"),
        ({"query": "ab", "in": "here"}, "'in' is not one of 'books', 'web'"),
        ({"query": "ab", "more": {}}, "no 'a' argument in 'more'"),
        ({"query": "ab", "tags": [1]}, "'tags.0' is not a string or null"),
        ({"query": "a"}, "'query': 'a' is too short"),
    ],
)
def test_the_fault_is_named(arguments: dict[str, Any], wrong: str | None) -> None:
    assert argument_error(SPEC, arguments) == wrong


def test_the_nearest_argument_is_named() -> None:
    loose = ToolSpec("python", "", python_spec().parameters)
    assert argument_error(loose, {"cod": "1"}) == "no 'code' argument (did you mean 'cod'?)"
    assert argument_error(loose, {"code": 1}) == "'code' is not a string"
    assert argument_error(ToolSpec("any"), {"x": object()}) is None


def spec_of(**about: object) -> ToolSpec:
    return ToolSpec("t", "", {"type": "object", **about})


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"properties": {"q": {"$ref": "#/$defs/no"}}}, "'#/[$]defs/no', to which it refers, is not in it"),
        ({"properties": {"q": {"prefixItems": [{"$ref": "http://127.0.0.1:9/x"}]}}}, "'http://127.0.0.1:9/x'"),
        ({"properties": {"default": {"$ref": "#/no"}}}, "'#/no', to which it refers, is not in it"),
        ({"$defs": {"enum": {"items": {"$ref": "#/no"}}}}, "'#/no', to which it refers, is not in it"),
        ({"properties": {"$id": {"$ref": "#/no"}}}, "'#/no', to which it refers, is not in it"),
        ({"properties": {"q": {"$dynamicRef": "#no"}}}, "'#no', to which it refers, is not in it"),
        ({"properties": {"q": {"$ref": "#/type"}}}, "'#/type', to which it refers, is no schema"),
        ({"properties": {"q": {"$ref": "#/required/q"}}, "required": ["q"]}, "'#/required/q', to which"),
        ({"$ref": "#"}, "it has no end"),
        ({"$schema": ["a"]}, "its [$]schema is not a string"),
        ({"description": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_schema_by_which_no_call_could_be_checked_is_refused_before_one_is(about: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=f"the tool 't': its parameters are not a JSON schema: .*{why}"):
        check_schema(spec_of(**about))


def test_a_schema_may_refer_to_its_own_parts_and_to_the_standards() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "value": {"type": "integer"}}}
    spec = spec_of(
        properties={"tree": {"$ref": "#/$defs/tree"}, "schema": {"$ref": "http://json-schema.org/draft-07/schema#"}},
        examples=[{"$ref": "a word"}],
        default={"properties": {"q": {"$ref": "a word"}}},
        **{"$defs": {"tree": tree}, "$id": "https://example.org/t"},
    )
    check_schema(spec)
    assert argument_error(spec, {"tree": {"left": {"value": 1}}, "schema": {"type": "string"}}) is None
    assert argument_error(spec, {"tree": {"left": {"value": "one"}}}) == "'tree.left.value' is not an integer"
    assert argument_error(spec, {"schema": {"type": "strin"}}) is not None


def test_a_reference_that_fails_at_a_call_is_told_as_its_fault() -> None:
    spec = spec_of(properties={"q": {"$id": "https://example.org/q", "$ref": "#/no"}})
    check_schema(spec)
    assert str(argument_error(spec, {"q": 1})).startswith("the arguments cannot be checked: ")


def test_a_schema_in_a_schema_refers_to_its_own_parts() -> None:
    size = {"$id": "https://example.org/size", "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}
    spec = spec_of(properties={"size": size})
    check_schema(spec)
    assert argument_error(spec, {"size": 1}) is None
    assert argument_error(spec, {"size": "one"}) == "'size' is not an integer"


def test_nobody_asks_the_network_for_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *about: asked.append(about) or io.BytesIO(b"{}"))
    with pytest.raises(RecipeError, match=r"'http://example\.org/x', to which it refers, is not in it"):
        check_schema(spec_of(properties={"q": {"$ref": "http://example.org/x"}}))
    assert not asked


def test_arguments_that_break_the_check_are_the_calls_fault() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"a": deep}
    assert "cannot be checked" in str(argument_error(spec_of(additionalProperties={"$ref": "#"}), deep))
    money = spec_of(properties={"q": {"type": "number", "multipleOf": 0.1}})
    assert "cannot be checked" in str(argument_error(money, {"q": 10**400}))


def rolled(replies: list[str], **tools: Any) -> tuple[Trajectory, ScriptedEngine]:
    engine = ScriptedEngine(ByteTokenizer(), replies)
    made = run_rollout(
        TASK,
        RolloutContext(engine, Chat(engine.tokenizer, style="qwen"), tools, LIMITS, SamplingParams(max_tokens=2000)),
        id="t",
        seed=0,
    )
    return asyncio.run(made), engine


def call(name: str, **arguments: object) -> str:
    return hermes.render_call(name, arguments)


def test_several_tools_are_shown_and_called_in_one_rollout() -> None:
    python = ScriptedTool({"1": ("one", "ok", None)}, spec=python_spec())
    replies = [call("search", query="pi") + "\n" + hermes_call("1"), call("search", top=1), call("python"), "3"]
    made, engine = rolled(replies, python=python, search=Search())
    shown = engine.tokenizer.decode(engine.seen[0][1])
    assert "Looks a word up." in shown
    assert "Runs a Python program" in shown
    assert [[(o.text, o.status) for o in turn.observations] for turn in made.turns] == [
        [("about pi", "ok"), ("one", "ok")],
        [("malformed call: no 'query' argument", "malformed")],
        [("malformed call: no 'code' argument", "malformed")],
        [],
    ]
    assert [made.turns[n].observations[0].error_type for n in (1, 2)] == ["MalformedCall"] * 2
    assert python.executed == ["1"]


def test_a_tool_whose_arguments_nobody_checks_is_called_as_it_is() -> None:
    asked = ToolCall("0", "search", {"top": 1}, char=0)

    async def search(call: ToolCall) -> Observation:
        return Observation(call.id, str(call.arguments), "ok")

    assert asyncio.run(run_calls([asked], {"search": search})) == (Observation("0", "{'top': 1}", "ok"),)


def test_a_call_with_wrong_arguments_opens_no_session() -> None:
    sessions = ScriptedSessions(lambda code, state: ("x", "ok", None))
    sessions.spec = python_spec()
    made, _ = rolled([call("python", program="1"), "3"], python=sessions)
    assert made.turns[0].observations[0].status == "malformed"
    assert all(not any(event.startswith("run") for event in opened.events) for opened in sessions.opened)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("own_tools")
    monkeypatch.setitem(sys.modules, "own_tools", made)
    made.Search = Search
    made.made = Search()
    made.Bare = type("Bare", (), {"name": "bare"})
    made.Other = type("Other", (Search,), {"name": "other"})
    made.NoSchema = type(
        "NoSchema", (Search,), {"spec": ToolSpec("search", "", {"properties": {"q": {"type": "strin"}}})}
    )
    return made


def test_tools_by_import_path(module: types.ModuleType) -> None:
    for place in ("own_tools:Search", "own_tools:made"):
        (tool,) = find_tools([place])
        assert tool.spec(sessions=False) == SPEC


@pytest.mark.parametrize(
    ("places", "why"),
    [
        (["search"], "no tool 'search'; there are: python, "),
        (["own_tools:Serch"], "cannot be imported: .*Serch"),
        (["no_such_module:Search"], "cannot be imported: No module named"),
        (["own_tools:Bare"], "is not a tool, which has a `spec`"),
        (["own_tools:Other"], "is called 'other' and 'search'"),
        (
            ["own_tools:NoSchema"],
            "the tool 'search': its parameters are not a JSON schema: properties.q.type: 'strin' is not valid",
        ),
        (["own_tools:Search", "own_tools:made"], "has the name of another tool, 'search'"),
    ],
)
def test_tools_that_cannot_be_had(module: types.ModuleType, places: list[str], why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        find_tools(["python", *places])


def test_a_tool_is_described_as_openai_does() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    told = ToolSpec("add", "Adds.", parameters).as_function()
    assert told == {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}


@pytest.mark.parametrize(
    ("may_be_null", "wrong"),
    [
        ({"type": "integer"}, "'top' is not an integer or null"),
        ({"type": ["integer", "string"]}, "'top' is not an integer or a string or null"),
        ({"type": "string", "enum": ["a", "b"]}, "'top' is not"),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}, "'top'"),
    ],
)
def test_an_argument_that_is_nullable_may_be_null(may_be_null: dict[str, Any], wrong: str) -> None:
    spec = ToolSpec("find", "", {"type": "object", "properties": {"top": {**may_be_null, "nullable": True}}})
    check_schema(spec)
    assert argument_error(spec, {"top": None}) is None
    assert wrong in str(argument_error(spec, {"top": 1.5}))
    plain = ToolSpec("find", "", {"type": "object", "properties": {"top": {**may_be_null, "nullable": False}}})
    assert argument_error(plain, {"top": None}) is not None


def test_an_argument_may_be_called_nullable() -> None:
    properties = {"nullable": {"type": "boolean"}, "type": {"type": "string"}}
    spec = ToolSpec("find", "", {"type": "object", "properties": properties, "required": ["nullable"]})
    assert argument_error(spec, {"nullable": True, "type": "x"}) is None
    assert "no 'nullable' argument" in str(argument_error(spec, {}))
    assert "'type' is not a string" in str(argument_error(spec, {"nullable": True, "type": None}))


@pytest.mark.parametrize("written", ["null", "None"])
def test_a_nullable_argument_without_quotes_is_read_as_null(written: str) -> None:
    spec = ToolSpec("find", "", {"type": "object", "properties": {"top": {"type": "integer", "nullable": True}}})
    chat = chat_of("tags", tools=[spec])
    text = f"<tool_call>\n<function=find>\n<parameter=top>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert chat.parse_text(text, prefix="0").calls[0].arguments == {"top": None}


class Keyless(Search):
    def __init__(self) -> None:
        raise KeyError("SEARCH_KEY")


def test_a_tool_that_cannot_be_made_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=f"rollout.tools: '{__name__}:Keyless' raised KeyError: 'SEARCH_KEY'"):
        find_tools([f"{__name__}:Keyless"])
