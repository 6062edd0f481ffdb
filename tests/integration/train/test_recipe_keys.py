"""Every key of a recipe reaches the place where it acts. To add a key is to add a case in tests/keys."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import get_args

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import keys
from keys.acting import CASES, Case, Lab
from retcon.config.load import all_keys, variants
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
def test_a_case_sees_every_value_do_something_else(case: Case) -> None:
    section, _, key = case.key.partition(".")
    fields = [about.model_fields[key] for about in variants(section).values() if key in about.model_fields]
    values = get_args(fields[0].annotation)
    assert len(case.seen) > 1 or len(values) == 1, "one value shows nothing, unless there is no other"
    assert len({repr(seen) for _, seen in case.seen}) == len(case.seen)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_key_reaches_the_place_where_it_acts(case: Case, lab: Lab) -> None:
    for value, seen in case.seen:
        assert case.observe(case.recipe(value, lab), lab) == seen, f"{case.key} = {value!r}"
