"""Arithmetic as people write it in solutions: read, computed exactly, and written as Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction

MOST_CHARS = 200
MOST_POWER = 64
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TIMES = re.compile(r"(?<=[\d)\s])[xX×](?=[\s\d(.$])")
_PERCENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_SIGNS = str.maketrans({"÷": "/", "−": "-", "–": "-", "^": "**", "$": "", "€": "", "£": ""})
_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
_ALLOWED = re.compile(r"[\d\s.+\-*/()]+")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}


class NoArithmetic(Exception):
    """What was to be read is no arithmetic."""


def parse(text: str) -> ast.expr:
    """`12 x $1,000 * 50%` as Python's syntax tree: numbers, + - * / // ** and parentheses. Raises NoArithmetic."""
    plain = _THOUSANDS.sub("", text.strip())
    plain = _TIMES.sub("*", plain.translate(_SIGNS))
    plain = _ZEROS.sub("", _PERCENT.sub(r"(\1/100)", plain))
    if not plain.strip() or len(plain) > MOST_CHARS or not _ALLOWED.fullmatch(plain):
        raise NoArithmetic(text)
    try:
        tree = ast.parse(plain.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NoArithmetic(text) from error
    value_of(tree)
    return tree


def value_of(tree: ast.expr) -> Fraction:
    """The exact value. Raises NoArithmetic for a division by zero, a large power, and whatever is no arithmetic."""
    match tree:
        case ast.Constant(value=int() | float() as value):
            return Fraction(str(value))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return value_of(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = value_of(left), value_of(right)
            if power.denominator != 1 or not 0 <= power <= MOST_POWER:
                raise NoArithmetic("a power that is negative, fractional or too large")
            return base ** int(power)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            try:
                return _OPERATORS[type(operator)](value_of(left), value_of(right))
            except ZeroDivisionError:
                raise NoArithmetic("a division by zero") from None
    raise NoArithmetic(ast.unparse(tree))


def numbers_in(tree: ast.expr) -> list[Fraction]:
    """The numbers that stand in it."""
    return [Fraction(str(node.value)) for node in ast.walk(tree) if isinstance(node, ast.Constant)]


def written(tree: ast.expr, name_of: Callable[[Fraction], str | None]) -> str:
    """The tree as Python. name_of: the variable that stands for a number, None for the number itself."""

    class Named(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.expr:
            value = Fraction(str(node.value))
            if name := name_of(value):
                return ast.Name(name)
            return ast.Constant(int(value)) if value.denominator == 1 else node

        def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
            inner: ast.expr = self.visit(node.operand)
            return inner if isinstance(node.op, ast.UAdd) else ast.UnaryOp(node.op, inner)

    return ast.unparse(Named().visit(ast.parse(ast.unparse(tree), mode="eval").body))


def plain_number(text: str) -> str:
    """What a program printed as people write it: `24.0` is 24, `0.30000000000000004` is 0.3; other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text.strip()
    near = round(value, 6)
    if not abs(value) < 1e15 or abs(value - near) > 1e-9 * max(1.0, abs(value)):
        return text.strip()
    return str(int(near)) if near == int(near) else repr(near)
