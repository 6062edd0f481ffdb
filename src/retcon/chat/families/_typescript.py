"""JSON schemas as the TypeScript in which gpt-oss was shown its tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from retcon.core.schema import ToolSpec

_TYPES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def as_typescript(tools: Sequence[ToolSpec]) -> str:
    """The types of the tools, a blank line after each."""
    return "".join(
        f"{_comment(tool.description)}type {tool.name} = {_function(tool.parameters)};\n\n" for tool in tools
    )


def _function(parameters: Mapping[str, Any]) -> str:
    if not parameters.get("properties"):
        return "() => any"
    return f"(_: {{\n{_fields(parameters)}}}) => any"


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    lines = ""
    for name, about in schema["properties"].items():
        field = about if isinstance(about, Mapping) else {}
        default = f", // default: {json.dumps(field['default'])}" if "default" in field else ","
        optional = "" if name in required else "?"
        lines += f"{_comment(field.get('description'))}{name}{optional}: {_type(field)}{default}\n"
    return lines


def _type(schema: Any) -> str:
    """schema: true and false are schemas, too, and before 2020 a list was one for each item."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " | ".join(_type(one) for one in schema[several])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(one, "any") for one in kind)
    if kind == "array":
        inner = _type(schema.get("items", {}))
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if kind == "object":
        return f"{{\n{_fields(schema)}}}" if schema.get("properties") else "object"
    return _TYPES.get(str(kind), "any")


def _comment(text: object) -> str:
    return "".join(f"// {line}\n" for line in str(text).splitlines()) if text else ""
