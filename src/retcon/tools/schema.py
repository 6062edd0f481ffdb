"""JSON schemas of tools, and validation of calls' arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from retcon.core.errors import RecipeError, nearest
from retcon.core.types import ANYTHING, ToolSpec

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

_CODE = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "the program; what it prints is returned"}},
    "required": ["code"],
}
_DATA = ("enum", "const", "default", "examples")
"""Keywords whose values are data, not schemas."""
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose values are schemas by name; a name may equal a keyword."""
_REFERRING = ("$ref", "$dynamicRef")
_NULLABLE = "nullable"
"""OpenAPI's keyword for values that may be null, which transformers writes for `int | None`; not in JSON Schema."""
_LONGEST = 200
_KINDS = {"string": "a string", "number": "a number", "integer": "an integer", "object": "an object",
          "array": "a list", "boolean": "true or false", "null": "null"}  # fmt: skip


def python_spec(name: str = "python", *, keeps_state: bool = False) -> ToolSpec:
    """Return the spec of the Python tool. keeps_state: whether variables and files stay between calls."""
    kept = "Variables and files are kept between calls." if keeps_state else "Every call runs in a fresh interpreter."
    return ToolSpec(name, f"Runs a Python program and returns what it prints. {kept}", _CODE)


def argument_error(spec: ToolSpec, arguments: Mapping[str, object]) -> str | None:
    """Describe what is wrong with a call's arguments, for the model; None if valid.

    Raises RecipeError if the schema itself is invalid.
    """
    if spec.parameters is ANYTHING:
        return None
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        found = best_match(_validator(_encoded(spec), spec.name).iter_errors(dict(arguments)))
    except (RecursionError, OverflowError, Unresolvable) as error:
        return f"the arguments cannot be checked: {error}"[:_LONGEST]
    return None if found is None else _describe_error(found)


def check_schema(spec: ToolSpec) -> None:
    """Check that a tool's schema is valid, with all references; else raise RecipeError."""
    if spec.parameters is not ANYTHING:
        _validator(_encoded(spec), spec.name)


def _encoded(spec: ToolSpec) -> bytes:
    try:
        return msgspec.json.encode(spec.parameters)
    except (UnicodeEncodeError, RecursionError, TypeError) as error:
        raise _schema_error(spec.name, error) from error


@lru_cache(maxsize=256)
def _validator(schema: bytes, name: str) -> Validator:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    decoded = msgspec.json.decode(schema)
    if not isinstance(decoded.get("$schema", ""), str):
        raise _schema_error(name, "its $schema is not a string")
    kind = validator_for(decoded)
    reference = ""
    try:
        decoded = _with_null(decoded)
        kind.check_schema(decoded)
        made = kind(decoded, registry=REGISTRY)  # its default would load missing references from the network
        for keyword, reference in _references(decoded):
            list(made.evolve(schema={keyword: reference}).iter_errors(None))
    except SchemaError as error:
        where = error.json_path.removeprefix("$").removeprefix(".")
        raise _schema_error(name, f"{where}: {error.message}" if where else error.message) from error
    except Unresolvable as error:
        raise _schema_error(name, f"{reference!r}, to which it refers, is not in it") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise _schema_error(name, f"{reference!r}, to which it refers, is no schema") from error
    except RecursionError as error:
        raise _schema_error(name, "it has no end, or is nested too deep") from error
    return made


def _with_null(schema: Any, *, named: bool = False) -> Any:
    """Add null where the schema is `nullable`. named: whether its keys are names, not keywords."""
    if isinstance(schema, list):
        return [_with_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: part if key in _DATA and not named else _with_null(part, named=not named and key in _BY_NAME)
        for key, part in schema.items()
    }
    if not named and schema.get(_NULLABLE) is True:
        if "type" in found:
            kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
            found["type"] = kinds if "null" in kinds else [*kinds, "null"]
        for keyword, null in (("enum", None), ("anyOf", {"type": "null"})):
            if isinstance(found.get(keyword), list) and null not in found[keyword]:
                found[keyword] = [*found[keyword], null]
    return found


def _schema_error(name: str, why: object) -> RecipeError:
    return RecipeError(f"the tool {name!r}: its parameters are not a JSON schema: {why}")


def _references(schema: object) -> Iterator[tuple[str, str]]:
    """Yield a schema's references with their keywords, except in parts that have their own `$id`."""
    todo: list[Any] = [schema]
    while todo:
        one = todo.pop()
        inside: list[Any] = []
        if isinstance(one, dict):
            yield from ((word, one[word]) for word in _REFERRING if isinstance(one.get(word), str))
            for key, value in one.items():
                if key in _BY_NAME and isinstance(value, dict):
                    inside += value.values()
                elif key not in _DATA:
                    inside.append(value)
        elif isinstance(one, list):
            inside = one
        todo += (part for part in inside if not (isinstance(part, dict) and isinstance(part.get("$id"), str)))


def _describe_error(error: ValidationError) -> str:
    place = ".".join(map(str, error.absolute_path))
    value = error.validator_value
    if error.validator == "required" and isinstance(error.instance, Mapping) and isinstance(value, list):
        missing = next(name for name in value if name not in error.instance)
        inside = f" in {place!r}" if place else ""
        return f"no {missing!r} argument{inside}{nearest(missing, map(str, error.instance))}"
    if error.validator == "type" and place:
        kinds = value if isinstance(value, list) else [value]
        return f"{place!r} is not {' or '.join(_KINDS.get(kind, str(kind)) for kind in kinds)}"
    if error.validator == "enum" and place and isinstance(value, list):
        return f"{place!r} is not one of {', '.join(map(repr, value))}"[:_LONGEST]
    where = f"{place!r}: " if place else ""
    return f"{where}{error.message}"[:_LONGEST]
