from __future__ import annotations

import base64

import pytest

from retcon.sandbox.pool.profiles import Chooser, append_wrapped, build_profiles


def wrapped(program: str) -> str:
    text = base64.b64encode(program.encode()).decode()
    return f'import base64\nexec(base64.b64decode("{text}".encode()).decode())\n'


def test_a_program_in_base64_finds_the_profile_of_its_imports() -> None:
    choose = Chooser(build_profiles(()))
    assert choose(wrapped("import numpy as np\nprint(np.arange(3))")) == choose("import numpy as np")
    assert choose(wrapped("x = 1") + wrapped("from sympy import solve")) == choose("from sympy import solve")
    assert choose(wrapped("print(1)")) == choose("import base64")


@pytest.mark.parametrize("text", ["", "abc", "/w==", "====", "A" * 5])
def test_what_is_no_program_in_base64_is_let_be(text: str) -> None:
    code = f"b64decode('{text}')"
    assert append_wrapped(code).startswith(code)
