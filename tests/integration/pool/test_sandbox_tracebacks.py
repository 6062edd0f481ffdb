"""What a program's errors look like is what `python file.py` prints, but for the name of the file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result

PROGRAMS = {
    "name": "value = 1\nprint(valeu)",
    "far down": "def f(n):\n    value = 1\n    f(n - 1) if n else valu\nf(5)",
    "module's attribute": "import math\nmath.sqr(2)",
    "no attribute that is near": "[].push(1)",
    "own class of error": "class E(NameError): pass\nvalue = 1\nraise E('valu', name='valu')",
    "raised by hand": "value = 1\nraise NameError('nope', name='valu')",
    "imported name": "from collections import defaultdit",
    "cause": "value = 1\ntry:\n    valu\nexcept NameError as e:\n    raise KeyError('k') from e",
    "context": "value = 1\ntry:\n    valu\nexcept NameError:\n    import os\n    os.pth",
    "group": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [KeyError('k')])])",
    "group with names": "e = []\nfor f in (lambda: nam, lambda: [].appnd):\n    name = 1\n    try: f()\n"
    "    except Exception as x: e.append(x)\nraise ExceptionGroup('g', e)",
    "notes": "value = 1\ntry: valu\nexcept NameError as e:\n    e.add_note('first\\nsecond')\n    raise",
    "marks": "d = {'a': {'b': None}}\nprint(d['a']['b']['c'])",
    "over lines": "x = [\n  1,\n  1 / 0,\n]",
    "generator": "def g():\n    yield 1\n    raise RuntimeError('g')\nlist(g())",
    "assert": "assert 1 == 2, 'no'",
    "message of lines": "class E(Exception):\n    def __str__(self): return 'a\\nb'\nraise E",
    "message that fails": "class E(Exception):\n    def __str__(self): 1/0\nraise E('x')",
    "library": "import json\njson.loads('{')",
    "never closed": "x = (1,\ny = 2",
    "tabs": "if True:\n\tx=1\n        y=2",
    "return": "x = 1\nreturn x",
    "global": "def f():\n    x = 1\n    global x",
    "future": "from __future__ import brces",
    "form feed": "x = 'a\\x0cb'\ny = '\x0c'\n1/0",
    "line separator": "y = '\u2028'\n\n1/0\nz = 1",
    "carriage returns": "x = 1\r\n1/0\r\n",
    "warning": "import warnings\nwarnings.warn('careful')",
    "printed": "import traceback\ntry: 1/0\nexcept ZeroDivisionError: traceback.print_exc()",
}


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    async def main() -> list[Result]:
        async with SandboxPool(workers=2) as pool:
            return await asyncio.gather(*(pool.run(code, echo=False) for code in PROGRAMS.values()))

    return dict(zip(PROGRAMS, asyncio.run(main()), strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_error_is_reported_as_python_reports_it(name: str, results: dict[str, Result], tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[name], encoding="utf-8", newline="")
    command = [sys.executable, "-I", "-S", "-X", "utf8", str(file)]
    python = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert results[name].stderr == python.stderr.replace(str(file), "<python>")
    assert results[name].status == ("ok" if python.returncode == 0 else "error")
