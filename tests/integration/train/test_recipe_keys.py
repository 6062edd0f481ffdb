"""Every key of a recipe reaches the place where it acts. To add a key is to add a case in tests/keys."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import keys
from keys.acting import CASES, Case, Lab
from retcon.config.load import all_keys
from retcon.config.schema import SECTIONS

for module in iter_modules(keys.__path__):
    import_module(f"keys.{module.name}")

pytestmark = pytest.mark.torch
KEYS = {f"{section}.{key}" for section in SECTIONS for key in all_keys(section)}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("keys"))


def test_every_key_of_a_recipe_is_shown_to_act() -> None:
    shown = {case.key for case in CASES}
    assert not KEYS - shown, "keys without a case in tests/keys: what they do is shown nowhere"
    assert not shown - KEYS, "cases of keys that are no more"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_key_reaches_the_place_where_it_acts(case: Case, lab: Lab) -> None:
    for value, seen in case.seen:
        assert case.observe(case.recipe(value, lab), lab) == seen, f"{case.key} = {value!r}"
