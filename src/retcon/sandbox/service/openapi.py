"""Describe the API for `/openapi.json` and `/docs`, from its routes and the types of their bodies."""

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
    """One route.

    Args:
        api: format of its bodies and errors.
        says: what it does, in one sentence.
        asks, answers: types of the bodies, None without one; `str` for text.
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


STYLE = "body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto } b { color: #06c } pre { color: #444 }"


def page(document: dict[str, Any]) -> str:
    """Render the document as HTML without scripts: each endpoint, then the JSON schema of each body."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [f"<h1>{title}</h1><p>{escape(document['info']['description'])}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>.</p>')
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            bodies = dict.fromkeys(re.findall(rf"{REFERENCE}(\w+)", msgspec.json.encode(operation).decode()))
            links = " · ".join(f'<a href="#{name}">{name}</a>' for name in bodies)
            parts.append(f"<h3><b>{method.upper()}</b> {escape(path)} ({operation['tags'][0]})</h3>")
            parts.append(f"<p>{escape(operation['summary'])} {links}</p>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = msgspec.json.format(msgspec.json.encode(schema), indent=1).decode()
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{escape(text)}</pre>')
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        + "".join(parts)
    )
