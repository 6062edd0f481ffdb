"""Where ARPO and AEPO branch, against numbers worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.engine.types import Generation
from retcon.rollout.strategies.aepo import Aepo
from retcon.rollout.strategies.arpo import Arpo
from retcon.rollout.strategy import Measured, Point, Uncertainty, uncertainty

V = 1000


def point(rise: float = 0.0, *, in_a_row: int = 0, left: int = 8) -> Point:
    """The uncertainty has risen by so many nats a token."""
    return Point(turn=1, nats=0.5 + rise, first=0.5, vocabulary=V, in_a_row=in_a_row, left=left)


def share(strategy: Arpo | Aepo, at: Point) -> float:
    draws = random.Random(0)
    return sum(strategy.branches(at, draws) for _ in range(2000)) / 2000


def test_the_chance_of_a_branch_rises_with_the_entropy() -> None:
    """α + β · 20 ΔH / log V: .5 + .2 · 20 · .3 / 6.9078 = .6737."""
    arpo = Arpo()
    assert arpo.chance(point()) == 0.5
    assert arpo.chance(point(0.3)) == pytest.approx(0.6737, abs=1e-4)
    assert arpo.chance(point(-0.3)) == pytest.approx(0.3263, abs=1e-4)
    assert arpo.chance(point(9)) == 1.0
    assert share(arpo, point(0.3)) == pytest.approx(0.6737, abs=0.04)


def test_above_a_threshold_it_branches_always_and_else_never() -> None:
    paper = Arpo(threshold=0.5, siblings=2)
    assert {paper.branches(point(0.01), random.Random(n)) for n in range(9)} == {2}
    assert {paper.branches(point(0.0), random.Random(n)) for n in range(9)} == {0}
    assert paper.branches(point(0.01, left=1), random.Random(0)) == 1


def test_siblings_are_drawn_one_by_one() -> None:
    drawn = {Arpo(siblings=3).branches(point(), random.Random(n)) for n in range(99)}
    assert drawn == {0, 1, 2, 3}


def test_a_path_that_has_branched_is_less_likely_to_branch_again() -> None:
    aepo = Aepo(penalty=0.05)
    assert [aepo.chance(point(in_a_row=n)) for n in (0, 1, 2, 30)] == pytest.approx([0.5, 0.475, 0.45, 0.0])


def test_the_budget_is_split_by_where_the_model_is_unsure() -> None:
    """⌊16 σ(β · 20 · gap / log V)⌋ + 1: gap 1 and β = .5 give σ(1.4476) = .8096, so 13; gap -1 gives 4; 0 gives 9."""
    aepo = Aepo()
    assert aepo.measures
    assert aepo.from_start(16, Measured(1.5, [0.2, 0.8], V)) == 13
    assert aepo.from_start(16, Measured(0.5, [1.2, 1.8], V)) == 4
    assert aepo.from_start(16, Measured(0.5, [], V)) == 9
    assert aepo.from_start(16, None) == 9
    assert aepo.from_start(16, Measured(99.0, [0.0], V)) == 16
    assert [Aepo(balance=1e6).from_start(16, Measured(h, [1.0], V)) for h in (9.0, 0.0)] == [16, 1]


def test_a_number_that_is_given_is_not_measured_for() -> None:
    aepo = Aepo(initial=6)
    assert not aepo.measures
    assert aepo.from_start(16, None) == 6


def test_the_entropy_that_an_engine_tells_goes_before_its_log_probs() -> None:
    both = Generation((1, 2, 3), (-1.0, -2.0, -6.0), "stop", entropies=(0.5, 1.5, 4.0))
    assert uncertainty(both, 2) == Uncertainty(1.0, "entropy")
    assert uncertainty(Generation((1, 2, 3), (-1.0, -2.0, -6.0), "stop"), 2) == Uncertainty(1.5, "surprisal")
    assert uncertainty(Generation((1,), (-math.log(4),), "stop"), 20).nats == pytest.approx(math.log(4))
    with pytest.raises(EngineError, match="gives neither"):
        uncertainty(Generation((1,), None, "stop"), 2)


@pytest.mark.parametrize("kind", ["arpo", "aepo"])
def test_more_rollouts_from_the_start_than_are_made_are_refused(kind: str) -> None:
    with pytest.raises(RecipeError, match=r"strategy: initial = 9 is more than the 8 rollouts"):
        load_recipe(None, [f"strategy.kind={kind}", "strategy.initial=9", "rl.group=8"])
    load_recipe(None, [f"strategy.kind={kind}", "strategy.initial=9", "rl.group=8", "select.kind=roc"])


def test_an_own_strategy_is_named_by_its_import_path() -> None:
    recipe = load_recipe(None, ["strategy.kind=retcon.rollout.strategies.arpo:Arpo", "strategy.initial=2"])
    assert isinstance(recipe.strategy, Arpo)
    with pytest.raises(RecipeError, match=r"no strategy .*did you mean 'arpo'"):
        load_recipe(None, ["strategy.kind=arpa"])
