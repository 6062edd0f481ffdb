"""Which names a program reads before it binds them itself, statement by statement as Python runs them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from retcon.purify.reading.trees import Part, binds, children, nodes_here, parse, split

_WORD = re.compile(r"[A-Za-z_]\w*")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_ORDER: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Constant: (), ast.Attribute: ("value",), ast.Call: ("func", "args", "keywords"),
    ast.Assign: ("value", "targets"), ast.AnnAssign: ("value", "annotation", "target"),
    ast.NamedExpr: ("value", "target"),
}  # fmt: skip
"""The fields of nodes in the order in which they are run, where that is not the one that they stand in, or often
asked for."""
_BRANCHES: dict[type[ast.AST], tuple[tuple[str, ...], ...]] = {
    ast.If: (("test",), ("body",), ("orelse",)), ast.While: (("test",), ("body",), ("orelse",)),
    ast.IfExp: (("test",), ("body",), ("orelse",)),
    ast.For: (("iter", "target", "body"), ("orelse",)), ast.AsyncFor: (("iter", "target", "body"), ("orelse",)),
}  # fmt: skip
"""The same of nodes with branches: what is always run, then each branch."""


def needs(code: str, names: frozenset[str]) -> frozenset[str]:
    """Those of `names` whose value from before `code` it may read: loaded where it has not bound them itself."""
    return names & reads(code) if names else names


@lru_cache(maxsize=64)
def reads(code: str) -> frozenset[str]:
    """All names whose value from before `code` it may read; of a program that cannot be parsed, all its words.

    A loop's body is read once, and what one branch binds counts as bound after all of them. What functions read counts
    at the earliest when they are called, taken as the end.
    """
    parts = split(code) or [Part(0, code, 0, None)]
    outer: set[str] = set()
    bound: set[str] = set()
    later: set[str] = set()
    for part in parts:
        if part.literal is not None:
            bound.add(part.literal)
            continue
        read = _read(part.text)
        if read is None:
            return frozenset(_WORD.findall(code))
        outer |= read.outer - bound
        bound |= read.bound
        later |= read.later
    return frozenset(outer | (later - bound))


@lru_cache(maxsize=256)
def _read(text: str) -> _Reads | None:
    """What statements read that stand first in their program; None where they cannot be parsed."""
    tree = parse(text)
    if tree is None:
        return None
    module = _Reads(())
    module.all_of(tree.body)
    return module


class _Reads:
    """The names that the nodes of one scope read, taken in one after another. own: what it has from the start."""

    def __init__(self, own: Iterable[str]) -> None:
        self.outer: set[str] = set()
        self.bound = set(own)
        self._order: list[str] = []
        """What was bound, in order, so that a branch can be taken back."""
        self.later: set[str] = set()

    def free(self) -> set[str]:
        """What the functions in it read and it has not bound in the end."""
        return self.later - self.bound

    def all_of(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._one(node)

    def _one(self, node: ast.AST) -> None:
        """A node, in the order in which Python runs what is in it."""
        kind = type(node)
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self._bind(node.id)
            elif node.id not in self.bound:
                self.outer.add(node.id)
        elif kind in _ORDER:
            self.all_of(_listed(node, _ORDER[kind]))
        elif kind in _BRANCHES:
            first, *branches = _BRANCHES[kind]
            self.all_of(_listed(node, first))
            self._branches(*(_listed(node, fields) for fields in branches))
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name) and node.target.id not in self.bound:
                self.outer.add(node.target.id)
            self.all_of((node.value, node.target))
        elif isinstance(node, ast.Try | ast.TryStar):
            self._branches([*node.body, *node.orelse], *([handler] for handler in node.handlers))
            self.all_of(node.finalbody)
        elif isinstance(node, ast.Match):
            self._one(node.subject)
            self._branches(*([case] for case in node.cases))
        elif isinstance(node, _Function):
            self._function(node)
        elif isinstance(node, ast.ClassDef):
            self.all_of((*node.decorator_list, *node.bases, *node.keywords))
            self._undo(self._after(node.body))  # its names are its own
            self._bind(node.name)
        elif isinstance(node, _Comprehension):
            self._comprehension(node)
        else:
            self._bind(*binds(node))
            self.all_of(children(node))

    def _bind(self, *names: str) -> None:
        for name in names:
            if name not in self.bound:
                self.bound.add(name)
                self._order.append(name)

    def _after(self, nodes: Iterable[ast.AST | None]) -> int:
        """Take these in; how many names had been bound before."""
        before = len(self._order)
        self.all_of(nodes)
        return before

    def _undo(self, to: int) -> list[str]:
        """Take back what was bound after the first `to` names; these."""
        gone = self._order[to:]
        del self._order[to:]
        self.bound.difference_update(gone)
        return gone

    def _branches(self, *branches: Sequence[ast.AST]) -> None:
        """Take in nodes of which one list is run, each as if it were the only one."""
        made = [self._undo(self._after(branch)) for branch in branches]
        self._bind(*(name for names in made for name in names))

    def _function(self, node: _Function) -> None:
        """A function where it is defined: what is read now, and what it reads when it is called."""
        given = node.args
        self.all_of((*getattr(node, "decorator_list", ()), *given.defaults, *given.kw_defaults))
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        parameters += [one for one in (given.vararg, given.kwarg) if one is not None]
        self.all_of((*(one.annotation for one in parameters), getattr(node, "returns", None)))
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        here = [item for statement in body for item in nodes_here(statement)]
        outside = {name for item in here if isinstance(item, ast.Global | ast.Nonlocal) for name in item.names}
        own = {one.arg for one in parameters} | {name for item in here for name in binds(item)}
        inside = _Reads(own - outside)
        inside.all_of(body)
        self.later |= inside.outer | inside.free()
        if not isinstance(node, ast.Lambda):
            self._bind(node.name)

    def _comprehension(self, node: _Comprehension) -> None:
        """Its targets are its own; what `:=` binds in it is not."""
        own: set[str] = set()
        for part in node.generators:
            self._one(part.iter)
            targets = {name for item in nodes_here(part.target) for name in binds(item)} - self.bound
            own |= targets
            self.bound |= targets
            self.all_of((part.target, *part.ifs))
        self.all_of((node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,))
        self.bound -= own


def _listed(node: ast.AST, fields: Iterable[str]) -> list[ast.AST]:
    """What stands under these fields, one after another."""
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name)
        found += value if isinstance(value, list) else [value] if value is not None else []
    return found
