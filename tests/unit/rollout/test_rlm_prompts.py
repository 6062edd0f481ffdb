"""Prompts of recursive language models by name."""

from importlib.util import find_spec

import pytest

from retcon.build import build_subcalls
from retcon.config.load import load_recipe
from retcon.core.errors import MissingExtra, RecipeError
from retcon.tools.kinds.rlm import find_prompts

ABSENT = pytest.mark.skipif(find_spec("rlm") is not None, reason="the package rlms is installed")


def test_a_rollout_below_is_asked_in_the_words_of_the_named_prompts() -> None:
    plain, ours = (load_recipe(None, ["rollout.tools=rlm", f"subcalls.prompts={name}"]) for name in ("", "retcon"))
    asked = build_subcalls(plain).question("a pea")
    assert build_subcalls(ours).question("a pea") == f"{asked}\n\n`context` is a str of 5 characters."


@ABSENT
def test_prompts_of_a_package_that_is_missing_say_what_to_install() -> None:
    with pytest.raises(MissingExtra, match=r"subcalls\.prompts = 'rlms' needs its package: pip install rlms==0\.1\.3"):
        find_prompts("rlms")


def test_prompts_without_the_tool_that_they_explain_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"they explain the tool rlm: set rollout\.tools=rlm"):
        load_recipe(None, ["subcalls.prompts=rlms"])
