"""Checks that a call fixes an earlier failure, by both turns alone.

Each check returns its finding, as text for the record, or None. What is in doubt is no fix.
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePath

from retcon.core.types import Observation, ToolCall, Turn
from retcon.purify.failing import has_program, is_lookup, is_program, words_of_name
from retcon.purify.kept import prose, strip_references
from retcon.purify.programs import (
    below,
    definitions,
    goals,
    only_constants,
    parse,
    runs_nothing,
    source,
    statements,
    works_out,
)
from retcon.purify.similarity import at_least
from retcon.purify.words import comments, gives_up_plan, says_something, without_comments

_MISSING = re.compile(r"name '(\w+)' is not defined")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NOTHING = r"(?:\[\]|\(\)|\{\}|set\(\)|None|nan|zoo|EmptySet(?:\(\))?|∅)"
_EMPTY = re.compile(rf"\s*(?:Out\[\d+\]:\s*)?(?:{_NOTHING}|[\[(]{_NOTHING}(?:, {_NOTHING})*[\])])\s*")
_SOLVERS = frozenset(
    {"solve", "solveset", "linsolve", "nonlinsolve", "nsolve", "fsolve", "dsolve", "solve_ivp", "minimize", "integrate"}
    | {"quad", "dblquad", "odeint", "root", "roots", "brentq", "linprog", "curve_fit", "diff", "limit", "degree"}
)
"""Functions that work out what the program is for."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_PART = re.compile(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}")
"""A word of a text, or of a name that is put together of several: `extended_gcd`, `isPrime`."""
_EVERYWHERE = frozenset((*keyword.kwlist, *dir(builtins)))
_UNBOUNDED = frozenset({"ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError"})
"""Errors that no range has a part in."""


def find_evasion(failure: Turn, fix: Turn, known: Callable[[str], bool]) -> tuple[str, str] | None:
    """Find how a fix computes nothing, runs nothing, or evades what failed.

    known: whether a number stands before the fix."""
    pairs = [(f.code, g.code) for f in failure.calls for g in fix.calls if is_program(f) and is_program(g)]
    lost = next((name for f, g in pairs for name in (only_constants(f, g),) if name is not None), None)
    if lost is None:
        lost = next((value for f, g in pairs for value in (_by_hand(f, g, prose(fix)),) if value is not None), None)
    if lost is not None:
        return "constant", lost
    if pairs and all(runs_nothing(g) and not runs_nothing(f) for f, g in pairs):
        return "unexecuted", ""
    return _avoided(failure, fix, pairs, known)


def _avoided(
    failure: Turn, fix: Turn, pairs: Sequence[tuple[str, str]], known: Callable[[str], bool]
) -> tuple[str, str] | None:
    """Find how a fix evades what failed, in both turns' programs."""
    empty = next((o.text.strip() for o in fix.observations if _EMPTY.fullmatch(o.text)), None)
    if empty is not None and not all(_only_imports(before, after) for before, after in pairs):
        return "avoided", f"the result is {empty}"
    missing = {name for o in failure.observations for name in _MISSING.findall(o.text)}
    bounded = all(o.error_type not in _UNBOUNDED for o in failure.observations)
    lines = [line for o in failure.observations if (line := line_of(o))]
    for before, after in pairs:
        ways = (
            _made_up(after, missing, known),
            _otherwise(before, after, fix.observations),
            *(_left_out(before, after, line) for line in lines),
            *((_narrower(before, after), _filtered(before, after)) if bounded else ()),
        )
        if (way := next(filter(None, ways), None)) is not None:
            return "avoided", way
    return None


def _only_imports(before: str, after: str) -> bool:
    """Whether two programs differ in their imports alone."""
    trees = parse(before), parse(after)
    rest = [
        [ast.dump(node) for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
        for tree in trees
        if tree is not None
    ]
    return len(rest) == 2 and rest[0] == rest[1]


def find_lost_plan(failure: Turn, later: Sequence[Turn]) -> str | None:
    """Find the text by which a later attempt abandons the failure's plan."""
    if any(o.error_type == "AssertionError" for o in failure.observations):
        given_up: str | None = "an assertion failed"
    else:
        given_up = next((found for turn in later for found in (gives_up_plan(prose(turn)),) if found is not None), None)
    return given_up if given_up is not None and says_something(prose(failure)) else None


def keeps_plan(failure: Turn, fix: Turn) -> bool:
    """Whether the fix's words keep the failure's plan: if that names something of both programs, they do so, too. Else
    they only describe the change, and the plan would be gone."""
    first, second = (set[str]().union(*(_names(c.code) for c in t.calls if is_program(c))) for t in (failure, fix))
    shared = {part for name in first & second for part in _words(name)}
    planned, repeated = (shared & _words(strip_references(prose(turn), "fix")) for turn in (failure, fix))
    return bool(repeated) or not planned


def _names(code: str) -> set[str]:
    return set(_NAME.findall(without_comments(code, list(comments(code))))) - _EVERYWHERE


def _words(text: str) -> set[str]:
    return {part.lower().removesuffix("s") for part in _PART.findall(text)}


def shares_goal(failure: Turn, fix: Turn) -> bool:
    """Whether the fix pursues what the failed program was for.

    It binds one of that program's goals, or computes the very expression that failed. Of a program that failed on
    an import nothing ran, so any name that it binds counts."""
    bound = _bound(fix)
    again = frozenset().union(*(works_out(c.code, whole=True) for c in fix.calls if is_program(c)))
    for call, observation in zip(failure.calls, failure.observations, strict=True):
        if not is_program(call) or observation.status == "ok":
            continue
        wanted = goals(call.code, line_of(observation))
        if observation.error_type in ("ImportError", "ModuleNotFoundError"):
            wanted = definitions(call.code)
        if wanted & bound or works_out(call.code, line_of(observation)) & again:
            return True
    return False


def misses_goal(failure: Turn, fix: Turn) -> str | None:
    """Find the failed program's goal that a fix with others lost."""
    programs = [c.code for c, o in zip(failure.calls, failure.observations, strict=True) if o.status != "ok"]
    wanted = frozenset().union(*map(goals, programs))
    own = frozenset().union(*(goals(call.code) for call in fix.calls if is_program(call))) if wanted else wanted
    if not own or shares_goal(failure, fix):
        return None
    bound = _bound(fix) | own
    alike = any(one.startswith(other) or other.startswith(one) for one in wanted for other in bound)
    return None if alike else min(wanted)


def find_change(failure: Turn, fix: Turn, gamma: float) -> str | None:
    """Find the argument in which a fix asks for something else.

    For calls without a program; None where both try one thing. A lookup with another value is another call, however
    similar. For other tools a value is a correction that the error names, if it is no entity; free text may be
    reworded, and an edit be made in another place. An argument is dropped or added where the error names it. One
    argument has to stay."""
    made = [call for call in fix.calls if not has_program(call)]
    for call, observation in zip(failure.calls, failure.observations, strict=True):
        if observation.status == "ok" or call.malformed or has_program(call):
            continue
        differs = [_differs(call, other, observation.text, gamma) for other in made if other.name == call.name]
        if None not in differs:
            return next(filter(None, differs), call.name)
    return None


def _differs(call: ToolCall, other: ToolCall, error: str, gamma: float) -> str | None:
    """Find the argument in which two calls differ in purpose."""
    old, new = call.arguments, other.arguments
    if isinstance(old, str) or isinstance(new, str) or old == new:
        return None
    looks_up = is_lookup(call)
    stays = False
    for key in [*old, *(key for key in new if key not in old)]:
        if key not in old or key not in new:
            value, rest = (new[key], old) if key in new else (old[key], new)
            if value is not None and value not in rest.values() and not _speaks_of(error, key, value):
                return key
        elif _plain(old[key]) == _plain(new[key]):
            stays = stays or not isinstance(old[key], bool | None)
        elif key in _PATHS:
            alone = all(new.get(name) == value for name, value in old.items() if name != key)
            if not _is_one_path(old[key], new[key], looks_up or not (alone or _base(old[key]) == _base(new[key]))):
                return key
            stays = True
        elif looks_up or not _corrects(key, old[key], new[key], error, gamma):
            return key
        else:
            stays = stays or _is_text(old[key])
    return None if stays else next(iter(old), call.name)


def _corrects(key: str, old: object, new: object, error: str, gamma: float) -> bool:
    """Whether a new value of an argument is a correction."""
    before, after = _as_text(old), _as_text(new)
    if _is_text(old) and _is_text(new):
        literals = set(_LITERAL.findall(before)) - set(_LITERAL.findall(after))
        return at_least(before, after, gamma) and all(literal in error for literal in literals)
    named = _ENTITY_KEYS.isdisjoint(words_of_name(key)) and not re.search(r"[A-Za-z]\d|\d[A-Za-z]", before + after)
    return named and _speaks_of(error, key, old)


def _speaks_of(error: str, key: str, value: object) -> bool:
    """Whether an error names an argument, or its value."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", error) for word in (key, _as_text(value)) if word)


def _is_text(value: object) -> bool:
    """Whether a value is free text, a list or an object."""
    return isinstance(value, list | dict) or (isinstance(value, str) and " " in value.strip())


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _plain(value: object) -> str:
    """Normalise a value's spelling: spaces, quotes, case, type."""
    return re.sub(r"[\s'\"]+", "", _as_text(value)).casefold()


def _is_one_path(old: object, new: object, strict: bool) -> bool:
    """Whether two paths may be those of one file: one ends with the other, or, if not strict, in any case."""
    parts = [PurePath(str(path)).parts for path in (old, new)]
    shorter, longer = sorted(([part for part in own if part not in "./\\"] for own in parts), key=len)
    return not strict or (bool(shorter) and longer[-len(shorter) :] == shorter)


def _base(path: object) -> str:
    return PurePath(str(path)).name


_PATHS = ("path", "file_path", "filepath", "filename")
_LITERAL = re.compile(r"\d+(?:\.\d+)?|'[^'\n]*'|\"[^\"\n]*\"")
"""What a text such as SQL asks for: its numbers, and what it quotes."""
_ENTITY_KEYS = frozenset(
    {"id", "ids", "uuid", "key", "name", "user", "email", "order", "account", "number", "no", "slug", "title", "url"}
    | {"address", "to", "recipient", "query", "city", "symbol", "ticker", "date", "customer", "product", "item"}
    | {"items"}
)
"""Words in the names of arguments that say which thing a call is about."""


def line_of(observation: Observation) -> int | None:
    """Return the line where a program failed, if its output has it; None: all of it may have run."""
    return observation.line if observation.status != "ok" else None


def _bound(turn: Turn) -> frozenset[str]:
    return frozenset().union(*(definitions(c.code) for c in turn.calls if is_program(c)))


def _by_hand(before: str, after: str, words: str) -> str | None:
    """Find a hardcoded value that a solver computed before, and no words derive."""
    if _SOLVERS.isdisjoint(_NAME.findall(before)):
        return None
    tree, fixed = parse(before), parse(after)
    if tree is None or fixed is None or not _called(tree) & _SOLVERS:
        return None
    if _called(fixed) - {"print", "round", "int", "float"} or any(
        isinstance(n, ast.For | ast.While | ast.comprehension) for n in below(fixed)
    ):
        return None
    shown = re.sub(r"\s+", "", words + "\n".join(line.partition("#")[2] for line in after.split("\n")))
    for node in fixed.body:
        value = getattr(node, "value", None)
        if isinstance(value, ast.BinOp) and not any(isinstance(n, ast.Name) for n in below(value)):
            text = source(value)
            if re.sub(r"\s+", "", text) not in shown:
                return text
    return None


def _called(tree: ast.AST) -> set[str]:
    """Return the names of called functions and methods."""
    functions = [node.func for node in below(tree) if isinstance(node, ast.Call)]
    return {getattr(f, "id", "") or getattr(f, "attr", "") for f in functions}


def _narrower(before: str, after: str) -> str | None:
    """Find a range that has become less than half as long."""
    lengths = zip(_ranges(before), _ranges(after), strict=False)
    return next((text for (old, _), (new, text) in lengths if 2 * new < old), None)


def _ranges(code: str) -> Iterator[tuple[float, str]]:
    """Yield each range of numbers: its length, and its source."""
    tree = parse(code) if "range" in code else None
    for node in below(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range" and node.args:
            bounds = [_number(argument) for argument in node.args[:2]]
            if None not in bounds:
                start, stop = bounds if len(bounds) == 2 else (0.0, bounds[0])
                yield (stop or 0) - (start or 0), source(node)


def _number(node: ast.expr) -> float | None:
    """Return a number as it is written, or a power of two such; None for others and huge ones."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = _number(node.left), _number(node.right)
        small = base and power is not None and abs(base) <= 1000 and 0 <= power <= 30
        return base**power if base and power is not None and small and power.is_integer() else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return None if (inner := _number(node.operand)) is None else -inner
    known = isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) < 10**30
    return float(node.value) if known and isinstance(node, ast.Constant) else None  # type: ignore[arg-type]


def _filtered(before: str, after: str) -> str | None:
    """Find a condition by which a comprehension drops more than before."""
    tree, fixed = (parse(before), parse(after)) if "for" in after and "if" in after else (None, None)
    if tree is None or fixed is None:
        return None
    had = dict(_conditions(tree))
    return next((tests[-1] for over, tests in _conditions(fixed) if len(tests) > len(had.get(over, tests))), None)


def _conditions(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """Yield what each comprehension iterates over, and its conditions."""
    for node in below(tree):
        if isinstance(node, ast.comprehension):
            yield source(node.iter), [source(test) for test in node.ifs]


def _left_out(before: str, after: str, line: int) -> str | None:
    """Find the failing line's name if the fix no longer binds it."""
    for node, at_line, _ in statements(before, line) or ():
        if at_line and isinstance(node, ast.Assign) and parse(after) is not None:
            targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
            has = [name for name in definitions(after) if len(name) >= 3 or name in targets]
            if targets and has and not any(n.startswith(t) or t.startswith(n) for n in has for t in targets):
                return f"{targets[0]} is left out"
    return None


def _made_up(after: str, missing: Collection[str], known: Callable[[str], bool]) -> str | None:
    """Find a missing name that the fix binds to an invented value.

    Such a value is `None`, a number that stands nowhere before, or one that the program discards. Counters and lists
    that the program goes on to change do not count."""
    tree = parse(after) if any(name in after for name in missing) else None
    if tree is None:
        return None
    changed = {n.target.id for n in below(tree) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for name, value in _bindings(node):
            if name not in missing or name in changed or not isinstance(value, ast.Constant | ast.UnaryOp):
                continue
            text = source(value)
            number = _NUMBER.search(text)
            later = any(isinstance(n, ast.Assign) and n is not node and name in dict(_bindings(n)) for n in tree.body)
            if text == "None" or (number is not None and (later or not known(number[0]))):
                return f"{name} = {text}"
    return None


def _bindings(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(target.elts)
            for one, value in zip(target.elts, values, strict=False):
                if isinstance(one, ast.Name):
                    yield one.id, value


def _otherwise(before: str, after: str, seen: Sequence[Observation]) -> str | None:
    """Find output that a new `if` prints in place of a result."""
    tree, fixed = (parse(before), parse(after)) if "if" in after else (None, None)
    if tree is None or fixed is None:
        return None
    had, has = (sum(isinstance(node, ast.If | ast.IfExp) for node in below(one)) for one in (tree, fixed))
    new = _texts(fixed) - _texts(tree) if has > had else ()
    lines = [line.strip() for o in seen for line in o.text.split("\n") if line.strip()]
    return lines[0] if lines and all(line in new for line in lines) else None


def _texts(tree: ast.AST) -> set[str]:
    return {n.value.strip() for n in below(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
