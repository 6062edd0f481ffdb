"""What `/openapi.json` and `/docs` say: made from the routes and the types that requests are checked against."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from retcon.http.endpoints import Handler

REFERENCE = "#/components/schemas/"
JSON = "application/json"


class Endpoint(NamedTuple):
    """One route. api: whose format it speaks, and whose shape its errors have.

    says: what it does, in one sentence. asks, answers: types of the bodies, None where there is none; `str` for text.
    status: of a success.
    """

    api: Literal["retcon", "code-judge", "SandboxFusion"]
    method: str
    path: str
    handler: Handler
    says: str
    asks: Any = None
    answers: Any = None
    status: int = 200


class Fault(Struct):
    """type: a word to rely on. field: path to what is wrong in the body, null where it is nothing there."""

    type: str
    field: str | None
    message: str


class Refusal(Struct):
    error: Fault


class Detail(Struct):
    type: str
    loc: list[str | int]
    msg: str


class Details(Struct):
    """A refusal in the shape of services that are built on FastAPI."""

    detail: list[Detail]


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    endpoints = list(endpoints)
    kinds = [kind for one in endpoints for kind in (one.asks, one.answers) if kind not in (None, str)]
    kinds += [Refusal, Details]
    references, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE + "{name}")
    schemas = {id(kind): schema for kind, schema in zip(kinds, references, strict=True)}
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Retcon's sandbox",
            "version": version,
            "description": "Runs untrusted Python. Where the server has a token, send it: `Authorization: Bearer …`.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(one: Endpoint, schemas: dict[int, Any]) -> dict[str, Any]:
    refusal = schemas[id(Refusal if one.api == "retcon" else Details)]
    responses: dict[str, Any] = {str(one.status): {"description": "It was served."}}
    if one.answers is not None:
        content = {"text/plain": {}} if one.answers is str else {JSON: {"schema": schemas[id(one.answers)]}}
        responses[str(one.status)]["content"] = content
    responses["default"] = {"description": "It was refused.", "content": {JSON: {"schema": refusal}}}
    operation: dict[str, Any] = {"summary": one.says, "tags": [one.api], "responses": responses}
    if one.asks is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[id(one.asks)]}}}
    if names := re.findall(r"{(\w+)}", one.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return operation


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc }
h3 { margin: 2rem 0 .2rem; font: 600 1rem ui-monospace, monospace }
b { color: #06c } table { border-collapse: collapse; width: 100%; margin: .3rem 0 1rem }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eee }
td:first-child, code { font-family: ui-monospace, monospace; font-size: .9rem } th { color: #666; font-weight: 400 }
p { margin: .3rem 0 } .needed::after { content: " *"; color: #c00 }
@media (prefers-color-scheme: dark) {
  body { background: #181818; color: #ddd } b, a { color: #6af } td, th { border-color: #333 }
}
"""


def page(document: dict[str, Any]) -> str:
    """The document as HTML that needs nothing else: no script, no other server."""
    groups: dict[str, list[str]] = {}
    schemas = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_section(method, path, operation))
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [f"<h1>{title}</h1><p>{_text(document['info']['description'])}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>. Fields with a red star must be given.</p>')
    for name, sections in groups.items():
        parts.append(f"<h2>{escape(name)}</h2>{''.join(sections)}")
    parts.append("<h2>Bodies</h2>" + "".join(_schema(name, schema) for name, schema in sorted(schemas.items())))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<body>{''.join(parts)}</body></html>\n"


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    said = f"<h3><b>{method.upper()}</b> {escape(path)}</h3><p>{_text(operation['summary'])}</p>"
    asked = operation.get("requestBody", {}).get("content", {}).get(JSON)
    lines = [f"takes {_kind(asked['schema'])}"] if asked else []
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        kind = _kind(content[JSON]["schema"]) if JSON in content else ", ".join(content) or "nothing"
        lines.append(f"{'else' if status == 'default' else status}: {kind}")
    return said + f"<p>{' · '.join(lines)}</p>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = "".join(
        f"<tr><td{' class=needed' if field in needed else ''}>{escape(field)}</td><td>{_kind(kind)}</td>"
        f"<td>{'' if 'default' not in kind else escape(msgspec.json.encode(kind['default']).decode())}</td></tr>"
        for field, kind in schema.get("properties", {}).items()
    )
    head = f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{_text(schema.get("description", ""))}</p>'
    return f"{head}<table><tr><th>field</th><th>type</th><th>default</th></tr>{rows}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """A type, in words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(msgspec.json.encode(value).decode())}</code>" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    inner = schema.get("additionalProperties")
    if schema.get("type") == "object":
        return f"object of {_kind(inner)}" if isinstance(inner, dict) else "object"
    words = [schema.get("type", "anything")]
    words += [f"in {schema['contentEncoding']}"] if "contentEncoding" in schema else []
    words += [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return escape(" ".join(words))


_BOUNDS = {"exclusiveMinimum": ">", "minimum": "≥", "maximum": "≤", "minItems": "at least"}


def _text(said: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(" ".join(said.split())))
