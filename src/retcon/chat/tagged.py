"""Types of arguments that a model writes in tags, by the schema of the tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retcon.chat.jsons import read_all
from retcon.chat.types import FoundCall
from retcon.core.types import ToolSpec


def typed_arguments(call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
    """The call with arguments of the types in its tool's schema: what is no string there is read as JSON, or as Python
    writes it; what cannot be read so stays text."""
    spec = next((tool for tool in tools if tool.name == call.name), None)
    known = spec.parameters.get("properties") if spec is not None else None
    if isinstance(call.arguments, str) or not isinstance(known, Mapping):
        return call
    return replace(call, arguments={name: _valued(v, known.get(name)) for name, v in call.arguments.items()})


def _valued(text: object, schema: object) -> object:
    if not isinstance(text, str):
        return text
    kinds, word = _kinds(schema), text.strip().lower()
    if "null" in kinds and word in ("none", "null"):
        return None
    if "boolean" in kinds and word in ("true", "false"):
        return word == "true"
    if not kinds:
        return text
    value = read_all(text)
    return text if value is None or ("string" in kinds and not kinds & _JSON_TYPES.get(type(value), set())) else value


_JSON_TYPES = {bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, list: {"array"}, dict: {"object"}}


def _kinds(schema: object) -> set[str]:
    """The JSON types that a schema takes, as far as it says so."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type", ())
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    found |= {"null"} if schema.get("nullable") is True else set()  # as OpenAPI has it, and transformers
    for word in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(word, ()):
            found |= _kinds(one)
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    found |= {"string" if isinstance(value, str) else "other" for value in values}
    return found | ({"object"} if "$ref" in schema else set())
