"""Programs as trees: parsed once, and walked without what has no name or value in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from keyword import iskeyword

from msgspec import Struct

from retcon.core.programs import parsed

_MAGIC = re.compile(r"^[ \t]*[!%][^\n]*$", re.MULTILINE)
_LONG = re.compile(r"0[xXoObB][\da-fA-F_]{3500}")
"""What may be a number that Python reads, and would not write with so many digits as it has in decimals; or a text."""
_BITS = 14_000
"""Of a number of 4,200 digits; Python writes 4,300."""
_DEEPEST = 100
"""Levels of a tree (a sum of so many terms) beyond which Python's own functions, which recurse, may not read it."""
IMPORTS = (ast.Import, ast.ImportFrom)
_SCOPES = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


@lru_cache(maxsize=256)
def parse(code: str) -> ast.Module | None:
    """The program without IPython's `!` and `%` lines, and as IPython does without an indent of the first line; None
    where it is no Python of ours, nested too deeply, or has a number without end. Lines keep their numbers. What was
    parsed last is kept, and never changed."""
    plain = _MAGIC.sub("", code) if "!" in code or "%" in code else code
    for text in (plain, plain.lstrip(" \t")):
        if (tree := parsed(text)) is not None:
            return None if _nested(tree) > _DEEPEST or (_LONG.search(code) and _has_long(tree)) else tree
    return None


class Part(Struct, frozen=True):
    """A top-level statement as text. start: the lines before it; lines: its own. literal: the name that it binds to a
    number, a list of numbers or a text, with nothing beside; None where it does anything else."""

    start: int
    text: str
    lines: int
    literal: str | None


@lru_cache(maxsize=64)
def split(code: str) -> list[Part] | None:
    """The top-level statements of a program; None where it cannot be split into such.

    A failure and its fix have most of their statements in common, and what is known of each is kept by its text. As
    each can be parsed by itself, together they are the program: what is cut within brackets or a text cannot be.
    """
    parts: list[Part] = []
    at = 0
    for text in _STATEMENT.split(code):
        if name := _bound_literal(text):
            parts.append(Part(at, text, 1, name))
            at += 1
        elif parse(text) is None:
            return None
        else:
            lines = text.count("\n") + 1
            parts.append(Part(at, text, lines, None))
            at += lines
    return parts


@lru_cache(maxsize=512)
def _bound_literal(text: str) -> str | None:
    """The name that a statement binds to a literal; None of any other."""
    found = _LITERAL.fullmatch(text)
    return None if found is None or iskeyword(found[1]) else found[1]


_STATEMENT = re.compile(r"\n(?=[A-Za-z_](?!(?:lse|lif|xcept|inally)\b))")
"""Where a line begins a statement, unless it goes on with the one before it."""
_NUMBER = r"-?(?:0|[1-9]\d{0,15})(?:\.\d+)?"
_LITERAL = re.compile(rf"([A-Za-z_]\w*) = (?:{_NUMBER}|\[(?:{_NUMBER}(?:, {_NUMBER})*)?\]|\"[\w ,.:-]*\"|'[\w ,.:-]*')")


def source(node: ast.AST) -> str:
    """A node as text, the same for nodes that say the same."""
    try:
        return ast.unparse(node)
    except ValueError:  # before Python 3.12, for an f-string with an invisible character in a text within it
        return ast.dump(node)


def _nested(tree: ast.AST) -> int:
    """How deep a tree is, no further than is of interest."""
    level: list[ast.AST] = [tree]
    depth = 0
    while level and depth <= _DEEPEST:
        level = [child for node in level for child in children(node)]
        depth += 1
    return depth


def _has_long(tree: ast.AST) -> bool:
    numbers = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int))
    return any(number.bit_length() > _BITS for number in numbers)


def nodes_here(node: ast.AST) -> list[ast.AST]:
    """The nodes that run in the module's own scope: bodies of functions, classes and comprehensions left out."""
    found = [node]
    for item in found:  # which grows as it is read
        if not isinstance(item, _SCOPES):
            found += children(item)
    return found


def binds(node: ast.AST) -> Sequence[str]:
    """The names that this very node binds."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, _NAMED):
        return (node.name,) if node.name else ()
    if isinstance(node, IMPORTS):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names if alias.name != "*"]
    return ()


_NAMED = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar
)  # fmt: skip


def below(node: ast.AST) -> list[ast.AST]:
    """All nodes from this one down."""
    found = [node]
    for item in found:
        found += children(item)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below, those left out that have no name or value in them: contexts and operators."""
    found: list[ast.AST] = []
    for name in _fields_of(type(node)):  # type: ignore[arg-type]  # classes are hashable
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


@cache
def _fields_of(kind: type[ast.AST]) -> tuple[str, ...]:
    return () if kind in (ast.Name, ast.Constant) else tuple(name for name in kind._fields if name not in _PLAIN)


_PLAIN = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "module", "level", "asname", "kind", "type_comment"})
"""Fields that hold none."""
