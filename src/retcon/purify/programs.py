"""Read programs as trees: names bound, names read, effects left behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from keyword import iskeyword
from typing import NamedTuple

from msgspec import Struct

from retcon.core.texts import parse_program

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
    """Parse a program; None where it is not Python or is excessive.

    IPython's `!` and `%` lines and an indent of the first line are dropped; lines keep their numbers. Trees that
    are nested too deeply or hold endless numbers are refused. The latest trees are cached, and never changed."""
    plain = _MAGIC.sub("", code) if "!" in code or "%" in code else code
    for text in (plain, plain.lstrip(" \t")):
        if (tree := parse_program(text)) is not None:
            return None if _nested(tree) > _DEEPEST or (_LONG.search(code) and _has_long(tree)) else tree
    return None


class Part(Struct, frozen=True):
    """Top-level statements as text: one, or a run of those that bind a name to a number, a list of numbers or a text.

    start: the lines before it; lines: its own. literals: the names that a run binds, one a line."""

    start: int
    text: str
    lines: int
    literals: Sequence[str] = ()


@lru_cache(maxsize=64)
def split(code: str) -> list[Part] | None:
    """Split a program into top-level statements; None where that is impossible.

    A failure and its fix share most statements, and what is known of each is cached by its text. Each part can be
    parsed by itself, so that together they are the program. The last statement is a part of its own."""
    parts: list[Part] = []
    at = line = 0
    while True:
        if run := _LITERALS.match(code, at):
            names = _BOUND.findall(run[0])
            if any(map(iskeyword, names)):
                return None
            parts.append(Part(line, run[0], len(names), names))
            at, line = run.end(), line + len(names)
            continue
        following = _STATEMENT.search(code, at)
        text = code[at : following.start() if following else len(code)]
        if parse(text) is None:
            return None
        parts.append(Part(line, text, text.count("\n") + 1))
        if following is None:
            return parts
        at, line = following.end(), line + parts[-1].lines


_STATEMENT = re.compile(r"\n(?=[A-Za-z_](?!(?:lse|lif|xcept|inally)\b))")
"""Where a line begins a statement, unless it goes on with the one before it."""
_NUMBER = r"-?+(?:0|[1-9]\d{0,15}+)(?:\.\d++)?+"
_LITERALS = re.compile(
    rf"(?:[A-Za-z_]\w*+ = (?:{_NUMBER}|\[(?:{_NUMBER}(?:, {_NUMBER})*+)?+\]|\"[\w ,.:-]*\"|'[\w ,.:-]*')"
    rf"{_STATEMENT.pattern})+"
)
_BOUND = re.compile(r"^(\w+) = ", re.MULTILINE)


def source(node: ast.AST) -> str:
    """Unparse a node, or dump it where that fails."""
    try:
        return ast.unparse(node)
    except ValueError:  # before Python 3.12, for an f-string with an invisible character in a text within it
        return ast.dump(node)


def _nested(tree: ast.AST) -> int:
    """Return a tree's depth, up to the limit."""
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
    """Return the nodes that run in the module's own scope."""
    found = [node]
    for item in found:  # which grows as it is read
        if not isinstance(item, _SCOPES):
            found += children(item)
    return found


def binds(node: ast.AST) -> Sequence[str]:
    """Return the names that this node itself binds."""
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
    """Return all nodes from this one down."""
    found = [node]
    for item in found:
        found += children(item)
    return found


def children(node: ast.AST) -> list[ast.AST]:
    """List a node's children, without contexts and operators."""
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


_NAME = re.compile(r"[A-Za-z_]\w*")
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
    """Return those of `names` whose earlier value `code` may read."""
    return names & reads(code) if names else names


@lru_cache(maxsize=64)
def reads(code: str) -> frozenset[str]:
    """Return the names that a program reads from before it.

    All words of a program that cannot be parsed. A loop's body is read once, and what one branch binds counts as
    bound after all of them. What functions read counts at the end."""
    parts = split(code) or [Part(0, code, 0)]
    outer: set[str] = set()
    bound: set[str] = set()
    later: set[str] = set()
    for part in parts:
        if part.literals:
            bound.update(part.literals)
            continue
        read = _read(part.text)
        if read is None:
            return frozenset(_NAME.findall(code))
        outer |= read.outer - bound
        bound |= read.bound
        later |= read.later
    return frozenset(outer | (later - bound))


@lru_cache(maxsize=256)
def _read(text: str) -> _Reads | None:
    """Collect the reads of leading statements; None where they cannot be parsed."""
    tree = parse(text)
    if tree is None:
        return None
    module = _Reads(())
    module.all_of(tree.body)
    return module


class _Reads:
    """Names that the nodes of one scope read.

    Args:
        own: names that the scope has from the start."""

    def __init__(self, own: Iterable[str]) -> None:
        self.outer: set[str] = set()
        self.bound = set(own)
        self._order: list[str] = []
        """What was bound, in order, so that a branch can be taken back."""
        self.later: set[str] = set()

    def free(self) -> set[str]:
        """Return names that inner functions read and the scope never binds."""
        return self.later - self.bound

    def all_of(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._one(node)

    def _one(self, node: ast.AST) -> None:
        """Take in a node, in Python's order of execution."""
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
        """Take in alternative branches, each as if it ran alone."""
        made = [self._undo(self._after(branch)) for branch in branches]
        self._bind(*(name for names in made for name in names))

    def _function(self, node: _Function) -> None:
        """Read a function where it is defined: its reads now, and those when it is called."""
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
    """Return a node's children in these fields, in order."""
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name)
        found += value if isinstance(value, list) else [value] if value is not None else []
    return found


_ASSIGNED = re.compile(
    r"^[ \t]*([A-Za-z_]\w*)[ \t]*(?:=(?!=)|[-+*/%&|^@]=|//=|\*\*=|:\s*\w[^=\n]*=(?!=))", re.MULTILINE
)
_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import[ \t]+([^\n#]+)", re.MULTILINE)
_STAR = re.compile(r"^[ \t]*(from[ \t]+\S+[ \t]+import[ \t]*\*)", re.MULTILINE)
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


class Effects(Struct, frozen=True):
    """Effects that a program, or the part that ran, leaves behind.

    defined: names bound. imported: those that an import bound, `*` too, with the import as text. changed: foreign
    names whose object was changed in place. outside: acts beyond the session (files, processes), as source text."""

    defined: frozenset[str] = frozenset()
    imported: frozenset[tuple[str, str]] = frozenset()
    changed: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def effects(code: str, before: int | None = None) -> Effects:
    """Return what running `code` leaves behind. before: only what ran before this line failed (1-based); None: all.

    Careful rather than exact: a statement that the failing line lies within counts, unless it is the binding itself.
    A program that cannot be parsed is read line by line."""
    parts = split(code)
    text = code
    if before is not None and (parts is None or "!" in code or "%" in code):
        text = "\n".join(code.split("\n")[: max(0, before - 1)])
    reached = shell_lines(text)
    if parts is None:
        by_import = [name for names in _IMPORTED.findall(text) for name in _WORD.findall(names)]
        names = frozenset([*_ASSIGNED.findall(text), *_DEFINED.findall(text), *by_import])
        if (tree := parse(code)) is None:
            return Effects(names, frozenset(("*", line) for line in _STAR.findall(text)), outside=reached)
        parts = [Part(0, code, code.count("\n") + 1)]
    defined: set[str] = set()
    imported: set[tuple[str, str]] = set()
    changed: set[str] = set()
    augmented: set[str] = set()
    reaches = False
    for part in parts:
        if before is not None and before <= part.start:
            break
        if part.literals:
            defined.update(part.literals[: None if before is None else before - part.start - 1])
            continue
        ended = before is None or part.start + part.lines < before
        left = _left(part.text, None if before is None or ended else before - part.start)
        defined |= left.defined
        imported |= left.imported
        changed |= left.changed
        augmented |= left.augmented
        reaches = reaches or left.reaches
    if reaches and (tree := parse(code)) is not None:
        ran = [node for node in tree.body if before is None or _began(node, before)]
        reached |= outside(code, tree, ran)
    kept = frozenset((changed - defined) | augmented)
    return Effects(frozenset(defined), frozenset(imported), kept, reached)


class _Left(NamedTuple):
    """Effects of one statement, before its program's bindings are known."""

    defined: set[str]
    imported: set[tuple[str, str]]
    changed: set[str]
    augmented: set[str]
    reaches: bool


@lru_cache(maxsize=512)
def _left(text: str, before: int | None) -> _Left:
    tree = parse(text)
    ran = [] if tree is None else [node for node in tree.body if before is None or _began(node, before)]
    here = [item for node in ran for item in nodes_here(node)]
    left = _Left(set(), set(), set(), set(), may_reach_outside(text))
    for item in here:
        bound = binds(item)
        left.defined.update(bound)
        if isinstance(item, IMPORTS):
            left.imported.update((name, source(item)) for name in bound if item in ran)
            if item.names[0].name == "*" and item.lineno != before:
                left.imported.add(("*", source(item)))
        if isinstance(item, _CHANGING):
            left.changed.update(_targets(item))
        elif isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name):
            left.augmented.add(item.target.id)
    return left


@lru_cache(maxsize=64)
def bound_before(code: str, line: int) -> frozenset[str]:
    """Return the names surely bound before a line that failed (1-based).

    Those of statements that end before it, also within the one that failed. What a loop binds further down counts
    among `effects`."""
    tree = parse(code)
    if tree is None:
        return effects(code, line).defined
    here = (item for node in tree.body for item in nodes_here(node))
    ended = [item for item in here if isinstance(item, ast.stmt) and (item.end_lineno or item.lineno) < line]
    return frozenset(name for node in ended for item in nodes_here(node) for name in binds(item))


def definitions(code: str) -> frozenset[str]:
    """Return the names that a program binds, imports left out."""
    left = effects(code)
    return left.defined - {name for name, _ in left.imported} if left.imported else left.defined


def goals(code: str, line: int | None = None) -> frozenset[str]:
    """Return the names that a program is for: those of its last statement, and of the one at `line`, if known.

    Names such as `x` that are bound on the way are no goal: two programs that both declare a symbol have nothing in
    common by that."""
    placed = statements(code, line)
    if placed is None:
        return frozenset(_ASSIGNED.findall(code)[-1:])
    found = frozenset[str]().union(*[_aims(node) for node, at_line, last in placed if at_line or last])
    return definitions(code) & found if found else found


@lru_cache(maxsize=256)
def _aims(node: ast.stmt) -> frozenset[str]:
    """Return the names that a statement binds, or shows and tests; cached by its text."""
    found = [] if isinstance(node, ast.Expr) else [name for item in nodes_here(node) for name in binds(item)]
    if isinstance(node, ast.Expr | ast.If | ast.Assert):
        found += [n.id for n in below(node) if isinstance(n, ast.Name)]
    return frozenset(found)


class Statement(NamedTuple):
    """A statement of a program. at: whether a line is within it; last: whether it is the last one."""

    node: ast.stmt
    at: bool
    last: bool


def statements(code: str, line: int | None, *, whole: bool = False) -> list[Statement] | None:
    """List the statement at a line and the last one.

    With `whole` all statements but those that bind a literal. None where the program cannot be parsed."""
    parts = split(code)
    if parts is None or not (tree := parse(parts[-1].text)) or not tree.body:
        return None if (tree := parse(code)) is None else _placed(tree, line, is_end=True)
    found: list[Statement] = []
    for part in parts if whole or line is not None else parts[-1:]:
        at, last = line is not None and part.start < line <= part.start + part.lines, part is parts[-1]
        if (last or at or (whole and not part.literals)) and (tree := parse(part.text)) is not None:
            found += _placed(tree, None if line is None else line - part.start, is_end=last)
    return found


def _placed(tree: ast.Module, line: int | None, *, is_end: bool) -> list[Statement]:
    return [
        Statement(node, line is not None and node.lineno <= line <= (node.end_lineno or node.lineno),
                  is_end and node is tree.body[-1])
        for node in tree.body
    ]  # fmt: skip


def works_out(code: str, line: int | None = None, *, whole: bool = False) -> frozenset[str]:
    """Return the expressions that a program computes, as text.

    Those of its last statement and of the one at `line`, of all if `whole`. The arguments of a `print` count; a
    lone name or number does not. By these, programs that bind nothing are seen to try one thing: the fix of
    `print(area(3))` defines `area` and has `area(3)` again."""
    found: set[str] = set()
    for node, at_line, last in statements(code, line, whole=whole) or ():
        if whole or at_line or last:
            value = node.value if isinstance(node, _VALUED) else None
            printed = isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("print", "display")
            values = value.args if printed and isinstance(value, ast.Call) else [value]
            found |= {source(v) for v in values if isinstance(v, ast.Call | ast.BinOp | ast.Subscript)}
    return frozenset(text for text in found if len(text) >= _TELLING)


_VALUED = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)
_TELLING = 4
"""Characters of an expression from which on it is a step of its own."""


def only_constants(before: str, after: str) -> str | None:
    """Find the name that `before` computes and `after` only states.

    That is so where `after` computes nothing (it binds literals, or combines names) though `before` called
    something; or where no name enters the value of a goal of both, as one did before."""
    if not any(isinstance(one.node, ast.Assign) for one in statements(before, None, whole=True) or ()):
        return None  # it binds nothing but numbers and texts
    tree, fixed = parse(before), parse(after)
    if tree is None or fixed is None:
        return None
    had, has = _bound(tree), _bound(fixed)
    called = any(isinstance(n, ast.Call) for value in had.values() for n in below(value))
    if called and has and not any(map(_computes, fixed.body)):
        return next(iter(has))
    stated = {name for name, value in had.items() if isinstance(getattr(value, "operand", value), ast.Constant)}
    for name in sorted(goals(before) & has.keys() & had.keys()):
        arithmetic = any(isinstance(n, ast.BinOp) for n in below(has[name]))
        if _inputs(had[name]) - stated and not _inputs(has[name]) and not arithmetic:
            return name
    return None


_RUNS = re.compile(r"\A[A-Za-z_]\w*(?: = |\()")
"""A program that begins with an assignment or a call."""


def runs_nothing(code: str) -> bool:
    """Whether a program only imports and defines."""
    tree = None if _RUNS.search(code) else parse(code)
    return tree is not None and all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for node in tree.body
    )


def _bound(tree: ast.Module) -> dict[str, ast.expr]:
    """Map each name to the value that it is last assigned."""
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _computes(node: ast.stmt) -> bool:
    """Whether a statement works something out: an operation on a number, a loop, a call of more than a choice."""
    for item in below(node):
        if isinstance(item, ast.For | ast.While | ast.comprehension | ast.FunctionDef | ast.ClassDef):
            return True
        if isinstance(item, ast.Call) and getattr(item.func, "id", "") not in _CHOICES:
            return True
        if isinstance(item, ast.BinOp) and any(isinstance(n, ast.Constant) for n in (item.left, item.right)):
            return True
    return False


_CHOICES = frozenset({"print", "max", "min", "len", "round", "int", "float", "abs", "display", "str"})


def _inputs(value: ast.expr) -> set[str]:
    """Return the names that enter a value, called names left out."""
    called = {id(n.func) for n in below(value) if isinstance(n, ast.Call)}
    modules = {id(n.value) for n in below(value) if isinstance(n, ast.Attribute) and id(n) in called}
    return {n.id for n in below(value) if isinstance(n, ast.Name) and id(n) not in called | modules}


def handlers(code: str) -> int:
    """Count a program's `except` clauses."""
    tree = parse(code) if "except" in code else None
    return 0 if tree is None else sum(isinstance(node, ast.ExceptHandler) for node in below(tree))


def assertions(code: str) -> frozenset[str]:
    """Return the conditions that a program asserts, as text."""
    tree = parse(code) if "assert" in code else None
    return frozenset(source(n.test) for n in below(tree) if isinstance(n, ast.Assert)) if tree else frozenset()


def _began(node: ast.stmt, line: int) -> bool:
    """Whether a statement did something before `line` failed."""
    if node.lineno > line:
        return False
    if (node.end_lineno or node.lineno) < line:
        return True
    return not isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.FunctionDef | ast.ClassDef)


_CHANGING = (ast.Attribute, ast.Subscript, ast.Expr, ast.Delete)


def _targets(node: ast.AST) -> list[str]:
    """Return the names whose objects a statement or expression mutates."""
    bases: list[ast.expr] = []
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        bases = [node]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        bases = [node.value.func]
    elif isinstance(node, ast.Delete):
        bases = node.targets
    return [base.id for base in map(_base_of, bases) if isinstance(base, ast.Name)]


_SHELL = re.compile(
    r"^[ \t]*((?:!|%{1,2}(?:pip|conda|mamba|uv|cd|pushd|popd|env|set_env|run|sx|system|bash|sh|script|writefile)\b)"
    r"[^\n]*)", re.MULTILINE,
)  # fmt: skip
"""IPython's lines that reach beyond the session: a shell's, packages, folders, files."""
_WRITES = frozenset(
    {"write_text", "write_bytes", "to_csv", "to_json", "to_excel", "to_parquet", "to_pickle", "to_feather", "to_hdf"}
    | {"to_sql", "savefig", "savetxt", "savez", "savez_compressed", "imsave", "imwrite", "extractall", "urlretrieve"}
    | {"makedirs", "mkdir", "unlink", "rmdir", "rmtree", "copyfile", "copytree", "touch", "Popen", "make_archive"}
    | {"chmod", "symlink_to", "hardlink_to"}
)
"""Whatever they are called of."""
_SYSTEM = frozenset({"os", "shutil", "subprocess"})
_SYSTEM_WRITES = frozenset(
    {"remove", "rename", "renames", "replace", "system", "popen", "move", "copy", "copy2", "run", "call", "check_call"}
    | {"check_output", "getoutput", "getstatusoutput", "chdir", "chmod", "symlink", "link", "putenv", "removedirs"}
    | {"truncate", "mkfifo", "unpack_archive"}
)
"""Called of one of those modules."""
_OPENS = frozenset({"open", "ZipFile", "TarFile"})
"""Which do it in a mode that writes."""
_SAVES = frozenset({"save", "dump"})
"""Which may do it, by what they are called of and with."""
_REACHING = _WRITES | _SYSTEM_WRITES | _OPENS | _SAVES
"""Names without which no program reaches beyond the interpreter."""
_MODE = re.compile(r"[rwaxbtU+]{1,4}")


def shell_lines(text: str) -> frozenset[str]:
    """IPython's lines that reach beyond the session, as they stand."""
    return frozenset(line.strip() for line in _SHELL.findall(text)) if "!" in text or "%" in text else frozenset()


def outside(code: str, tree: ast.Module, ran: Sequence[ast.stmt]) -> frozenset[str]:
    """Return source texts of calls in `ran` that reach beyond the interpreter: files opened for writing, folders,
    processes. tree: the program, by whose imports and bindings names are understood; code: its text."""
    if not may_reach_outside(code):
        return frozenset()
    modules = _modules(tree)
    calls = [node for top in ran for node in below(top) if isinstance(node, ast.Call)]
    return frozenset(source(call) for call in calls if _reaches_out(call, modules))


def may_reach_outside(code: str) -> bool:
    """Whether a program has a word that reaching outside takes."""
    return not _REACHING.isdisjoint(_WORD.findall(code))


def _modules(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Map names that a program imports to (module, name there)."""
    found = {name: (name, "") for name in _SYSTEM}  # a session's earlier cell may have imported these
    for node in below(tree):
        if isinstance(node, IMPORTS):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                if isinstance(node, ast.ImportFrom):
                    found[alias.asname or alias.name] = (node.module or "").partition(".")[0], alias.name
                else:
                    found[alias.asname or first] = first, ""
    return found


def _reaches_out(call: ast.Call, modules: Mapping[str, tuple[str, str]]) -> bool:
    """Whether a call writes files, or starts a process."""
    method, root = isinstance(call.func, ast.Attribute), _base_of(call.func)
    module, name = modules.get(root.id, ("", root.id)) if isinstance(root, ast.Name) else ("", "")
    if isinstance(call.func, ast.Attribute):
        module, name = module if isinstance(root, ast.Name) else "", call.func.attr
    if name in _OPENS:
        modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        modes += [
            one
            for one in call.args[:1]
            if method and not module and _is_text(one) and _MODE.fullmatch(ast.literal_eval(one))
        ]
        return any(not isinstance(one, ast.Constant) or bool(set("wax+") & set(str(one.value))) for one in modes)
    if name == "save":
        return bool(call.args or call.keywords) and (method or bool(module))
    if name == "dump":
        return module == "joblib" or any(isinstance(one, ast.JoinedStr) or _is_text(one) for one in call.args[1:2])
    return name in _WRITES or (name in _SYSTEM_WRITES and module in _SYSTEM)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _base_of(node: ast.AST) -> ast.AST:
    """Return the base of attributes and items."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node
