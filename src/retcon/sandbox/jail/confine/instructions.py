"""Classic BPF: the few instructions of which the system call filters (`seccomp`) are put together.

Man page seccomp(2); kernel documentation userspace-api/seccomp_filter.
"""

from __future__ import annotations

from collections.abc import Sequence

KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NR, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; both architectures are little-endian
LOAD, EQUAL, GREATER, SET, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06

Instruction = tuple[int, int, int, int]
"""(operation, instructions to skip where it holds, where it does not, operand)"""
Rule = tuple[str, Sequence[Instruction]]
"""A system call's name, and what is done at it; where the instructions run through, it is allowed."""


def give(action: int) -> Instruction:
    return (RETURN, 0, 0, action)


def refuse(code: int) -> Instruction:
    """The call is not made and fails with the error number `code`; with 0 it seems to succeed."""
    return give(ERRNO | code)


def argument(index: int) -> Instruction:
    """Load the lower half of an argument, which is all that the kernel takes of an int."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * index)


def upper(index: int) -> Instruction:
    """Load the other half, of a pointer."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * index + 4)


def only_zero(index: int, code: int) -> list[Instruction]:
    return [argument(index), (EQUAL, 1, 0, 0), refuse(code)]


def where_one_of(values: Sequence[int], action: Instruction) -> list[Instruction]:
    """`action` where what was loaded is among `values`."""
    last = len(values) - 1
    tests = [(EQUAL, last - place, int(place == last), value) for place, value in enumerate(values)]
    return [*tests, action]


def where_within(low: int, high: int, action: Instruction) -> list[Instruction]:
    """`action` where what was loaded is from `low` (above 0) to `high`."""
    return [(GREATER, 0, 2, low - 1), (GREATER, 1, 0, high), action]
