from __future__ import annotations

from retcon.sandbox.pool.profiles import BUILT_IN, Chooser, build_profiles, find_imports


def test_a_large_text_is_scanned_in_linear_time() -> None:
    assert find_imports("import " + "x\\\n" * 300_000) == set()
    assert find_imports("import numpy\n" * 100_000) == {"numpy"}


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


def test_several_packages_have_a_profile_of_their_own_each_and_one_together() -> None:
    choose = Chooser(build_profiles(("pandas", "torch")))
    assert choose("import torch") == "torch"
    assert choose("import pandas, torch") == "pandas+torch"
    assert choose("x = 1", besides=("pandas", "torch")) == "pandas+torch"
    assert choose("import pandas", warm=("pandas+torch",)) == "pandas+torch"
    assert "pandas+torch" not in Chooser(build_profiles({"a": ("pandas",), "b": ("torch",)})).profiles


def test_a_mapping_names_profiles_and_replaces_those_built_in() -> None:
    choose = Chooser(build_profiles({"numpy": ("numpy", "numpy.fft"), "web": ("bs4", "lxml.html")}))
    assert choose("from lxml import html") == "web"
    assert "numpy.fft" in choose.profiles["numpy"].modules
