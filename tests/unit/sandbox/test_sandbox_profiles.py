from __future__ import annotations

import pytest

from retcon.sandbox.pool.profiles import BUILT_IN, Chooser, imports, with_packages


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", set()),
        ("import numpy as np", {"numpy"}),
        ("import os, sys as system, numpy.linalg as la", {"os", "sys", "numpy"}),
        ("from scipy.optimize import minimize, root", {"scipy"}),
        ("from sympy import (\n    symbols,\n    solve)", {"sympy"}),
        ("def f():\n    import random\n    return random.random()", {"random"}),
        ("x = 1; import json; from math import pi", {"json", "math"}),
        ("if True: import re", {"re"}),
        ("import a, \\\n    b", {"a", "b"}),
        ("import numpy  # and scipy", {"numpy"}),
        ("this is not Python (\nimport numpy", {"numpy"}),
        ("from . import sibling", set()),
        ("important = 1\nfromage = 2\nx = 'import '", set()),
        ("print('hello')\n#import numpy", set()),
        ("import", set()),
        ("import \0, numpy", {"numpy"}),
    ],
)
def test_imports_are_found_without_parsing(code: str, expected: set[str]) -> None:
    assert imports(code) == expected


def test_a_large_text_is_scanned_in_linear_time() -> None:
    assert imports("import " + "x\\\n" * 300_000) == set()
    assert imports("import numpy\n" * 100_000) == {"numpy"}


@pytest.mark.parametrize(
    ("code", "profile"),
    [
        ("print(1)", "bare"),
        ("import sys", "bare"),
        ("numpy = 3", "bare"),
        ("import random", "stdlib"),
        ("import random, numpy", "numpy"),
        ("import sympy, math", "sympy"),
        ("from mpmath import mp", "sympy"),
        ("from scipy import stats\nimport numpy", "scipy"),
        ("import numpy, sympy", "science"),
        ("import numpy, requests", "numpy"),
    ],
)
def test_the_smallest_profile_that_covers_the_imports_is_chosen(code: str, profile: str) -> None:
    assert Chooser(BUILT_IN)(code) == profile


def test_a_warm_one_is_preferred_where_it_covers_as_much() -> None:
    choose = Chooser(BUILT_IN)
    assert choose("import numpy", warm=("scipy", "science")) == "scipy"
    assert choose("import numpy, sympy", warm=("numpy", "sympy")) == "science"


def test_one_that_is_dropped_is_replaced_by_the_next_best() -> None:
    choose = Chooser(BUILT_IN)
    choose.drop("numpy")
    assert choose("import numpy") == "scipy"
    for name in ("scipy", "science"):
        choose.drop(name)
    assert choose("import numpy") == "bare"


def test_custom_packages_come_first_and_cover_what_they_bring() -> None:
    choose = Chooser(with_packages(("pandas",)))
    assert choose("import pandas") == "pandas"
    assert choose("import pandas, numpy") == "pandas"
    assert choose("import pandas, numpy, scipy") == "scipy"
    choose.learn("pandas", ["pandas", "numpy", "scipy", "_hidden"])
    assert choose("import pandas, numpy, scipy") == "pandas"
    assert choose("import numpy") == "numpy"


def test_several_packages_have_a_profile_of_their_own_each_and_one_together() -> None:
    choose = Chooser(with_packages(("pandas", "torch")))
    assert choose("import torch") == "torch"
    assert choose("import pandas, torch") == "pandas+torch"
    assert choose("x = 1", besides=("pandas", "torch")) == "pandas+torch"
    assert choose("import pandas", warm=("pandas+torch",)) == "pandas+torch"
    assert "pandas+torch" not in Chooser(with_packages({"a": ("pandas",), "b": ("torch",)})).profiles


def test_a_mapping_names_profiles_and_replaces_those_built_in() -> None:
    choose = Chooser(with_packages({"numpy": ("numpy", "numpy.fft"), "web": ("bs4", "lxml.html")}))
    assert choose("from lxml import html") == "web"
    assert "numpy.fft" in choose.profiles["numpy"].modules
