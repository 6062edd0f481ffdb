"""Rollouts in which no call fails are the same under every repair. Over the scripted engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playing import play
from retcon.purify.kinds.branch import Branch
from retcon.purify.kinds.describe import Describe
from retcon.purify.saar import Saar
from scripts import FINE, OUTCOMES, Script, calls, scripts


@pytest.mark.parametrize("repair", [Saar(), Branch(), Describe()], ids=lambda repair: type(repair).__name__)
@given(script=scripts(st.one_of(calls(FINE), st.just("x" * 300))))
def test_without_a_failure_nothing_changes(script: Script, repair: Any) -> None:
    off, on = (play(script, OUTCOMES, repair=r, max_tokens=200) for r in (None, repair))
    assert on.trajectory == replace(off.trajectory, provenance=on.trajectory.provenance)
    assert (on.engine.seen, on.engine.params) == (off.engine.seen, off.engine.params)
