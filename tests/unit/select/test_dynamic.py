"""Dynamic sampling: which groups teach something, and how many prompts are drawn in place of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, stages_of
from retcon.core.types import Trajectory
from retcon.select.filters import DynamicSampling, is_informative
from retcon.train.prompts import StepGroups, dynamic_sampling, groups_to_train, selection_metrics


def group(*rewards: float | None) -> list[Trajectory]:
    return [Trajectory(f"t/{n}", "t", (), (), reward) for n, reward in enumerate(rewards)]


FLAT, MIXED = group(1, 1), group(1, -1)


def recipe(*, dynamic: bool) -> Recipe:
    select = {"dynamic": dynamic, "max_extra": 0.9, "max_rounds": 3}
    return Recipe.model_validate({"rl": {"prompts": 3}, "select": select})


def test_a_recipe_bounds_what_is_drawn() -> None:
    assert dynamic_sampling(recipe(dynamic=False)) is None
    assert dynamic_sampling(recipe(dynamic=True)) == DynamicSampling(prompts=3, extra=2, rounds=3)  # 2.7, rounded down


@pytest.mark.parametrize(
    ("prompts", "max_extra", "extra"), [(100, 0.29, 29), (3, 0.9, 2), (50, 1.1, 55), (7, 0.0, 0), (4, 0.7499999, 3)]
)
def test_a_share_of_the_prompts_is_the_one_that_is_written(prompts: int, max_extra: float, extra: int) -> None:
    assert DynamicSampling.bounded(prompts, max_extra, 1) == DynamicSampling(prompts, extra, 1)


def test_what_a_step_trains_on_and_says_of_its_groups() -> None:
    drawn = StepGroups(rounds=1)
    lost, more = group(1, None, None), group(1, -1, 1)
    for made, kept in ((FLAT, FLAT), (lost, []), (MIXED, MIXED), (more, more[:2]), (FLAT, FLAT)):
        drawn.add(made, kept)
    assert groups_to_train(recipe(dynamic=True), drawn) == [MIXED, more[:2]]
    assert groups_to_train(recipe(dynamic=False), drawn) == [FLAT, MIXED, more[:2], FLAT]
    found = {"groups_skipped": 1, "groups_flat": 2, "extra_groups": 2, "extra_rollouts": 5, "extra_rounds": 1}
    fills = {"kept": 4, "kept_right": 2, "groups_drawn": 5, "groups_kept": 2, "groups_short": 1}
    assert selection_metrics(recipe(dynamic=True), drawn) == {**fills, **found}
    all_left = {"kept": 8, "kept_right": 6, "groups_drawn": 5, "groups_kept": 4, "groups_short": 0}
    assert selection_metrics(recipe(dynamic=False), drawn) == {**all_left, **found}
    drawn.add(MIXED, MIXED)
    assert selection_metrics(recipe(dynamic=True), drawn)["groups_short"] == 0, "three are what a step wants"


@pytest.mark.parametrize("name", ["rl", "stage1", "stage2", "stage3"])
def test_rstar2s_recipes_drop_what_teaches_nothing_and_draw_nothing_in_its_place(name: str) -> None:
    drawn = StepGroups()
    for made in (FLAT, MIXED, group(0, 0)):
        drawn.add(made, made)
    for stage in stages_of(load_recipe(f"rstar2-14b/{name}", [])):
        assert groups_to_train(stage.recipe, drawn) == [MIXED]
        bound = dynamic_sampling(stage.recipe)
        assert bound is not None
        assert bound.extra == bound.to_draw(drawn.kept, rounds=0) == 0


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((), False),
        ((1,), False),
        ((1, 1, 1), False),
        ((-1, -1), False),
        ((0.5, 0.5), False),
        ((1, None, 1), False),
        ((1, -1), True),
        ((0.1, 0.2, 0.1), True),
    ],
)
def test_a_group_teaches_something_where_its_rewards_differ(rewards, expected):
    assert is_informative(group(*rewards)) is expected


def test_it_draws_what_is_missing_within_both_bounds():
    sampling = DynamicSampling(prompts=4, extra=3, rounds=2)
    assert sampling.to_draw([MIXED] * 4, rounds=0) == 0
    assert sampling.to_draw([MIXED, FLAT, MIXED, []], rounds=0) == 2
    assert sampling.to_draw([FLAT] * 4, rounds=0) == 3, "no more than extra"
    assert sampling.to_draw([FLAT] * 6, rounds=1) == 1, "of which two are used up"
    assert sampling.to_draw([FLAT] * 7, rounds=1) == 0
    assert sampling.to_draw([FLAT] * 4, rounds=2) == 0, "no round is left"


@given(
    prompts=st.integers(1, 6),
    extra=st.integers(0, 12),
    rounds=st.integers(0, 5),
    outcomes=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_sampling_ends_within_its_bounds_and_never_has_too_many(prompts, extra, rounds, outcomes):
    sampling = DynamicSampling(prompts, extra, rounds)
    stream = iter(outcomes)
    groups = [MIXED if next(stream) else FLAT for _ in range(prompts)]
    made = 0
    while more := sampling.to_draw(groups, rounds=made):
        groups += [MIXED if next(stream) else FLAT for _ in range(more)]
        made += 1
    told = sum(map(is_informative, groups))
    assert made <= rounds
    assert len(groups) <= prompts + extra
    assert told <= prompts
    assert told == prompts or made == rounds or len(groups) == prompts + extra
