"""What a program defines and changes, and is for: enough to tell whether a session can do without one of its cells."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from retcon.purify.reading.trees import IMPORTS, Part, below, binds, nodes_here, parse, source, split

_ASSIGNED = re.compile(
    r"^[ \t]*([A-Za-z_]\w*)[ \t]*(?:=(?!=)|[-+*/%&|^@]=|//=|\*\*=|:\s*\w[^=\n]*=(?!=))", re.MULTILINE
)
_IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+\S+[ \t]+)?import[ \t]+([^\n#]+)", re.MULTILINE)
_STAR = re.compile(r"^[ \t]*from[ \t]+(\S+)[ \t]+import[ \t]*\*", re.MULTILINE)
_DEFINED = re.compile(r"^[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+([A-Za-z_]\w*)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Effects:
    """What is left behind by a program, or the part of it that ran.

    defined: names bound. imported: those of them that an import bound, with the import as text. changed: names not its
    own whose object was changed in place. outside: what it did beyond the session (files, processes), as source text.
    stars: modules of which it imported all names, whatever these are.
    """

    defined: frozenset[str] = frozenset()
    imported: frozenset[tuple[str, str]] = frozenset()
    changed: frozenset[str] = frozenset()
    outside: frozenset[str] = frozenset()
    stars: frozenset[str] = frozenset()


@lru_cache(maxsize=64)
def effects(code: str, before: int | None = None) -> Effects:
    """What running `code` leaves behind. before: only what ran before this line failed (1-based); None: all of it.

    Careful rather than exact: a statement that the failing line lies within counts, unless it is the binding itself.
    A program that cannot be parsed is read line by line.
    """
    parts = split(code)
    text = code
    if before is not None and (parts is None or "!" in code or "%" in code):
        text = "\n".join(code.split("\n")[: max(0, before - 1)])
    reached = shell_lines(text)
    if parts is None:
        by_import = [name for names in _IMPORTED.findall(text) for name in _WORD.findall(names)]
        names = frozenset([*_ASSIGNED.findall(text), *_DEFINED.findall(text), *by_import])
        if (tree := parse(code)) is None:
            return Effects(names, outside=reached, stars=frozenset(_STAR.findall(text)))
        parts = [Part(0, code, code.count("\n") + 1, None)]
    defined: set[str] = set()
    imported: set[tuple[str, str]] = set()
    changed: set[str] = set()
    augmented: set[str] = set()
    stars: set[str] = set()
    reaches = False
    for part in parts:
        if before is not None and before <= part.start:
            break
        ended = before is None or part.start + part.lines < before
        if part.literal is not None:
            if ended:
                defined.add(part.literal)
            continue
        left = _left(part.text, None if before is None or ended else before - part.start)
        defined |= left.defined
        imported |= left.imported
        changed |= left.changed
        augmented |= left.augmented
        stars |= left.stars
        reaches = reaches or left.reaches
    if reaches and (tree := parse(code)) is not None:
        ran = [node for node in tree.body if before is None or _began(node, before)]
        reached |= outside(code, tree, ran)
    kept = frozenset((changed - defined) | augmented)
    return Effects(frozenset(defined), frozenset(imported), kept, reached, frozenset(stars))


class _Left(NamedTuple):
    """What a statement leaves behind, before it is known what else its program binds."""

    defined: set[str]
    imported: set[tuple[str, str]]
    changed: set[str]
    augmented: set[str]
    stars: set[str]
    reaches: bool


@lru_cache(maxsize=512)
def _left(text: str, before: int | None) -> _Left:
    tree = parse(text)
    ran = [] if tree is None else [node for node in tree.body if before is None or _began(node, before)]
    here = [item for node in ran for item in nodes_here(node)]
    left = _Left(set(), set(), set(), set(), set(), may_reach_outside(text))
    for item in here:
        bound = binds(item)
        left.defined.update(bound)
        if isinstance(item, IMPORTS):
            left.imported.update((name, source(item)) for name in bound if item in ran)
        if isinstance(item, ast.ImportFrom) and item.names[0].name == "*" and item.lineno != before:
            left.stars.add("." * item.level + (item.module or ""))
        if isinstance(item, _CHANGING):
            left.changed.update(_targets(item))
        elif isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name):
            left.augmented.add(item.target.id)
    return left


@lru_cache(maxsize=64)
def bound_before(code: str, line: int) -> frozenset[str]:
    """The names that `code`, which failed at this line (1-based), has bound for all that is known: those of statements
    that end before it, also within one that it lies in. What a loop binds further down counts among `effects`."""
    tree = parse(code)
    if tree is None:
        return effects(code, line).defined
    here = (item for node in tree.body for item in nodes_here(node))
    ended = [item for item in here if isinstance(item, ast.stmt) and (item.end_lineno or item.lineno) < line]
    return frozenset(name for node in ended for item in nodes_here(node) for name in binds(item))


def definitions(code: str) -> frozenset[str]:
    """The names that a whole program binds at its top level, those of imports left out."""
    left = effects(code)
    return left.defined - {name for name, _ in left.imported} if left.imported else left.defined


def goals(code: str, line: int | None = None) -> frozenset[str]:
    """What a program is for, in names that it binds: those of its last statement, and of the one at `line`, if known.

    Names such as `x` that are bound on the way are no goal: two programs that both declare a symbol have nothing in
    common by that.
    """
    placed = statements(code, line)
    if placed is None:
        return frozenset(_ASSIGNED.findall(code)[-1:])
    found: set[str] = set()
    for node, at_line, last in placed:
        if at_line or last:
            if not isinstance(node, ast.Expr):
                found.update([name for item in nodes_here(node) for name in binds(item)])
            if isinstance(node, ast.Expr | ast.If | ast.Assert):
                found.update([n.id for n in below(node) if isinstance(n, ast.Name)])
    return definitions(code) & found if found else frozenset()


class Statement(NamedTuple):
    """A statement of a program. at: whether a line is within it; last: whether it is the last one."""

    node: ast.stmt
    at: bool
    last: bool


def statements(code: str, line: int | None, *, whole: bool = False) -> list[Statement] | None:
    """The statement at a line, and the last one; with `whole` all but those that only bind a literal. None where the
    program cannot be parsed."""
    parts = split(code)
    if parts is None or not (tree := parse(parts[-1].text)) or not tree.body:
        return None if (tree := parse(code)) is None else _placed(tree, line, is_end=True)
    found: list[Statement] = []
    for part in parts if whole or line is not None else parts[-1:]:
        at, last = line is not None and part.start < line <= part.start + part.lines, part is parts[-1]
        if (last or at or (whole and part.literal is None)) and (tree := parse(part.text)) is not None:
            found += _placed(tree, None if line is None else line - part.start, is_end=last)
    return found


def _placed(tree: ast.Module, line: int | None, *, is_end: bool) -> list[Statement]:
    return [
        Statement(node, line is not None and node.lineno <= line <= (node.end_lineno or node.lineno),
                  is_end and node is tree.body[-1])
        for node in tree.body
    ]  # fmt: skip


def works_out(code: str, line: int | None = None, *, whole: bool = False) -> frozenset[str]:
    """What a program works out, as text: the values of its last statement and of the one at `line`, of all if `whole`.

    What a `print` is given counts, the `print` itself does not; a lone name or number works nothing out. So programs
    that bind nothing can be told to try the same: the fix of `print(area(3))` defines `area` and has `area(3)` again.
    """
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
    """The name whose value `before` computes and `after` only states, None where there is none.

    That is the case where `after` works nothing out (what it binds are literals, or names put together), though
    `before` called something; or where no name goes into the value of one that both are for, as one did before.
    """
    if not any(isinstance(one.node, ast.Assign) for one in statements(before, None, whole=True) or ()):
        return None  # it binds nothing but numbers and texts
    tree, fixed = parse(before), parse(after)
    if tree is None or fixed is None:
        return None
    had, has = _bound(tree), _bound(fixed)
    called = any(isinstance(n, ast.Call) for value in had.values() for n in below(value))
    if called and has and not any(map(_computes, fixed.body)):
        return next(iter(has))
    stated = {name for name, value in had.items() if _is_literal(value)}  # these may stand in the value itself as well
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
    """The value that each name is last bound to by an assignment of its own."""
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


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return not isinstance(value, ast.Dict | ast.List | ast.Set | ast.Tuple)


def _inputs(value: ast.expr) -> set[str]:
    """The names that go into a value, those that are only called left out."""
    called = {id(n.func) for n in below(value) if isinstance(n, ast.Call)}
    modules = {id(n.value) for n in below(value) if isinstance(n, ast.Attribute) and id(n) in called}
    return {n.id for n in below(value) if isinstance(n, ast.Name) and id(n) not in called | modules}


def handlers(code: str) -> int:
    """How many `except` clauses a program has."""
    tree = parse(code) if "except" in code else None
    return 0 if tree is None else sum(isinstance(node, ast.ExceptHandler) for node in below(tree))


def assertions(code: str) -> frozenset[str]:
    """What a program asserts: its conditions as text."""
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


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        yield from _root(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        yield from _root(node.value.func)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _root(target)


def _root(node: ast.AST) -> Iterator[str]:
    base = _base_of(node)
    if isinstance(base, ast.Name):
        yield base.id


_SHELL = re.compile(
    r"^[ \t]*((?:!|%{1,2}(?:pip|conda|mamba|uv|cd|pushd|popd|env|set_env|run|sx|system|bash|sh|script|writefile)\b)"
    r"[^\n]*)", re.MULTILINE,
)  # fmt: skip
"""IPython's lines that reach beyond the session: a shell's, packages, folders, files."""
_WRITES = frozenset(
    {"write_text", "write_bytes", "to_csv", "to_json", "to_excel", "to_parquet", "to_pickle", "to_feather", "to_hdf"}
    | {"to_sql", "savefig", "savetxt", "savez", "savez_compressed", "imsave", "imwrite", "extractall", "urlretrieve"}
    | {"makedirs", "mkdir", "unlink", "rmdir", "rmtree", "copyfile", "copytree", "touch", "Popen", "make_archive"}
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
_PATH_WRITES = frozenset({"rename", "replace", "chmod", "symlink_to", "hardlink_to"})
"""Of a path; strings and tables have some of them too."""
_REACHING = _WRITES | _SYSTEM_WRITES | _OPENS | _SAVES | _PATH_WRITES
"""Names without which no program reaches beyond the interpreter."""
_MODE = re.compile(r"[rwaxbtU+]{1,4}")


def shell_lines(text: str) -> frozenset[str]:
    """IPython's lines that reach beyond the session, as they stand."""
    return frozenset(line.strip() for line in _SHELL.findall(text)) if "!" in text or "%" in text else frozenset()


def outside(code: str, tree: ast.Module, ran: Sequence[ast.stmt]) -> frozenset[str]:
    """The calls in `ran` that reach beyond the interpreter, as source text: files opened for writing, folders,
    processes. tree: the program, by whose imports and bindings names are understood; code: its text."""
    if not may_reach_outside(code):
        return frozenset()
    names = _Names(tree)
    calls = [node for top in ran for node in below(top) if isinstance(node, ast.Call)]
    return frozenset(source(call) for call in calls if names.reaches_out(call))


def may_reach_outside(code: str) -> bool:
    """Whether a word stands in it without which no program reaches beyond the interpreter."""
    return not _REACHING.isdisjoint(_WORD.findall(code))


class _Names:
    """What a program's names stand for: modules, what is imported of them, and paths."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules: dict[str, str] = {}
        self._imported: dict[str, tuple[str, str]] = {}  # (module, name there)
        self._paths: set[str] = set()
        nodes = below(tree)
        for node in nodes:
            if isinstance(node, IMPORTS):
                self._import(node)
        for node in nodes:
            if isinstance(node, ast.Assign) and self._is_path(node.value):
                self._paths.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.For | ast.comprehension) and self._is_path(node.iter):
                self._paths.update(n.id for n in [node.target] if isinstance(n, ast.Name))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                self._imported[alias.asname or alias.name] = (node.module or "").partition(".")[0], alias.name
            else:
                self._modules[alias.asname or first] = first

    def reaches_out(self, call: ast.Call) -> bool:
        module, name = self._called(call.func)
        if name in _WRITES or (name in _SYSTEM_WRITES and module in _SYSTEM):
            return True
        if name in _OPENS:
            return self._opens_to_write(call, module)
        if name == "save":
            return bool(call.args or call.keywords) and (isinstance(call.func, ast.Attribute) or bool(module))
        if name == "dump":
            return module == "joblib" or any(self._names_a_file(given) for given in call.args[1:2])
        return name in _PATH_WRITES and isinstance(call.func, ast.Attribute) and self._is_path(call.func.value)

    def _called(self, function: ast.expr) -> tuple[str, str]:
        """(module, name there) of what is called; the module is empty where it is of none that is known."""
        if isinstance(function, ast.Name):
            return self._imported.get(function.id, ("", function.id))
        if not isinstance(function, ast.Attribute):
            return "", ""
        root = _base_of(function)
        if isinstance(root, ast.Name):  # a session's earlier cell may have imported a module under its own name
            known = self._modules.get(root.id, root.id if root.id in _SYSTEM else "")
            return known or self._imported.get(root.id, ("", ""))[0], function.attr
        return "", function.attr

    def _opens_to_write(self, call: ast.Call, module: str) -> bool:
        modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        if isinstance(call.func, ast.Attribute) and call.func.attr == "open" and not module:
            of_path = self._is_path(call.func.value)
            modes += [m for m in call.args[:1] if (of_path and not isinstance(m, ast.Constant)) or _is_mode(m)]
        return any(not isinstance(m, ast.Constant) or bool(set("wax+") & set(str(m.value))) for m in modes)

    def _is_path(self, node: ast.expr) -> bool:
        """Whether it is a path of `pathlib`, or what one of its attributes or methods gives."""
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and (self._is_path(node.left) or self._is_path(node.right))
        if isinstance(node, ast.Call):
            return self._called(node.func)[1] == "Path" or (
                isinstance(node.func, ast.Attribute) and node.func.attr not in _TEXTS and self._is_path(node.func.value)
            )
        if isinstance(node, ast.Attribute | ast.Subscript):
            texts = isinstance(node, ast.Attribute) and node.attr in _TEXTS
            return not texts and self._is_path(node.value)
        return isinstance(node, ast.Name) and (node.id in self._paths or self._called(node)[1] == "Path")

    def _names_a_file(self, node: ast.expr) -> bool:
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return text or isinstance(node, ast.JoinedStr) or self._is_path(node)


_TEXTS = frozenset({"name", "stem", "suffix", "parts", "read_text", "read_bytes", "as_posix", "open"})
"""What a path has that is no path."""


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_MODE.fullmatch(node.value))


def _base_of(node: ast.AST) -> ast.AST:
    """What attributes and items are taken of."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node
