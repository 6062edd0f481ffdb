"""What is answered from memory is what a fresh interpreter would say: programs that follow from their text, run in two
sandboxes under different seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from retcon.core.types import Observation, ToolCall
from retcon.sandbox.pool import SandboxPool
from retcon.tools.kinds.python import PythonTool, is_deterministic

PROGRAMS = (
    "print({'a', 'b', 'c', 'd', 'e'}, frozenset('xyz'))",
    "from collections import Counter\nprint(Counter('mississippi').most_common())",
    "print([f for f in (print, len, lambda a: a, object())], (n for n in range(3)))",
    "class A:\n    pass\nprint(A(), A)\nraise ValueError(A())",
    "import math\nfrom decimal import Decimal\nprint(math.comb(40, 20), Decimal(1) / 7, 0.1 + 0.2)\nmath.pi",
    "def f(n):\n    return f(n + 1)\nf(0)", "print(2 ** 100)\nassert 1 == 2, {'b', 'a'}",
    "import re\nprint(re.compile('a+').sub('b', 'caat'))\nexit(3)", "10 ** 5000", "print((1", "if 1:\nprint(2)",
    "a = 5\na\nundefined",
)  # fmt: skip


@pytest.mark.timeout(120)
def test_two_sandboxes_say_the_same_of_what_follows_from_its_text() -> None:
    async def observed(call_id: str) -> Sequence[Observation]:
        async with SandboxPool(workers=2) as sandbox:
            tool = PythonTool(sandbox)
            calls = [ToolCall(call_id, "python", {"code": code}, 0) for code in PROGRAMS]
            return await asyncio.gather(*map(tool, calls))

    one, other = (asyncio.run(observed(call_id)) for call_id in ("0.0.0", "7.1.2"))
    assert [(o.text, o.status, o.error_type) for o in one] == [(o.text, o.status, o.error_type) for o in other]
    assert all(is_deterministic(code) is not False for code in PROGRAMS)
