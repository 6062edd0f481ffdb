"""What of a step's groups is trained on, and what dynamic sampling draws besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.select.dynamic import DynamicSampling, informative
from retcon.train.objective.shaping import has_void_turn, is_masked


@dataclass(slots=True)
class Drawn:
    """The groups of a step, in the order in which their prompts were drawn.

    made: all rollouts, (groups, G'). kept: what selection left of each, (groups, up to G), none where faults and masks
    left fewer than two (`comparable`). rounds: how often more prompts were drawn.
    """

    made: list[list[Trajectory]] = field(default_factory=list)
    kept: list[list[Trajectory]] = field(default_factory=list)
    rounds: int = 0

    def add(self, made: Sequence[Trajectory], kept: Sequence[Trajectory]) -> None:
        self.made.append(list(made))
        self.kept.append(list(kept))


def to_train(recipe: Recipe, drawn: Drawn) -> list[list[Trajectory]]:
    """The groups that an update is made of: with dynamic sampling those that teach something, else all that are left.

    A group whose rewards are all equal has no gradient, but counts where the loss is averaged over ids or samples.
    """
    return [group for group in drawn.kept if (informative(group) if recipe.select.dynamic else group)]


def selected(recipe: Recipe, drawn: Drawn) -> Iterator[Trajectory]:
    """All rollouts of a step, each with what became of it as its `selection`.

    kept: trained on. infrastructure: lost to a fault. masked: out of the loss by `rl.void_turns` or `rl.truncated`.
    few: its group has fewer than two rollouts to compare. flat: dynamic sampling left its group out. Otherwise why the
    selection dropped it (`SelectSection.why`).
    """
    for made, kept in zip(drawn.made, drawn.kept, strict=True):
        chosen = {t.id for t in kept}
        why = iter(recipe.select.why([t for t in made if t.id not in chosen], kept))
        group = "few" if not kept else "flat" if recipe.select.dynamic and not informative(kept) else ""
        for t in made:
            selection = "kept" if t.id in chosen else next(why)
            lost = "infrastructure" if t.stop == "infrastructure" else "masked" if is_masked(t, recipe.rl) else group
            yield replace(t, selection=lost or selection)


def selection_metrics(recipe: Recipe, drawn: Drawn) -> dict[str, float]:
    """Metrics of a step's groups.

    kept: rollouts that are trained on; kept_right: those of positive reward. groups_drawn, groups_kept: in all, and
    those that are trained on. groups_skipped: groups of which faults and masks left fewer than two. groups_flat: those
    whose rewards are all equal, after selection. extra_groups, extra_rollouts, extra_rounds: what dynamic sampling
    cost. groups_short: by how many informative groups the step stayed behind at its bound. dropped_…: rollouts that
    selection left out, by its reason. void_masked, truncated_masked: rollouts that these keys of [rl] mask.
    """
    prompts, trained = recipe.rl.prompts, to_train(recipe, drawn)
    fates = Counter(t.selection for t in selected(recipe, drawn))
    ended = [t for group in drawn.made for t in group if t.stop != "infrastructure"]
    told = sum(map(informative, drawn.kept))
    skipped = sum(not group for group in drawn.kept)
    return {
        "kept": sum(map(len, trained)),
        "kept_right": sum((t.reward or 0) > 0 for group in trained for t in group),
        "groups_drawn": len(drawn.made),
        "groups_kept": sum(map(bool, trained)),
        "groups_skipped": skipped,
        "groups_flat": len(drawn.kept) - skipped - told,
        "extra_groups": len(drawn.made) - prompts,
        "extra_rollouts": sum(map(len, drawn.made[prompts:])),
        "extra_rounds": drawn.rounds,
        "groups_short": max(0, prompts - told) if recipe.select.dynamic else 0,
        **{f"dropped_{reason}": fates[reason] for reason in recipe.select.reasons},
        **({"void_masked": sum(map(has_void_turn, ended))} if recipe.rl.void_turns == "mask" else {}),
        **({"truncated_masked": sum(t.stop == "length" for t in ended)} if recipe.rl.truncated == "mask" else {}),
    }


def dynamic_sampling(recipe: Recipe) -> DynamicSampling | None:
    """The dynamic sampling that a recipe asks for."""
    section, prompts = recipe.select, recipe.rl.prompts
    if not section.dynamic:
        return None
    return DynamicSampling.bounded(prompts, section.max_extra, section.max_rounds)
