"""What `retcon reproduce` trains: a comparison, of which an earlier session may have made other arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retcon.cli.common.ledger import Ledger, read_book
from retcon.cli.common.targets import Target
from retcon.cli.compare.plan import FILE, CompareBook, ComparePlan, Wish, make_plan, open_ledger
from retcon.cli.reproduce.arms import SWITCHED, make_arms, told, write_recipes
from retcon.report.papers.types import Paper, Study


@dataclass(frozen=True, slots=True)
class Reproduction:
    """compared: all arms of the folder. arms: of those, the names that the studies are about. recipes: name to what
    an arm is trained with, in words."""

    paper: Paper
    studies: tuple[Study, ...]
    compared: ComparePlan
    ledger: Ledger[CompareBook]
    arms: tuple[str, ...]
    recipes: dict[str, str]

    @property
    def targets(self) -> list[Target]:
        """In the order in which they are to be done, seed by seed."""
        mine = {target.job.name for arm in self.arms for seed in self.compared.seeds
                for target in self.compared.trained[arm, seed]}  # fmt: skip
        cold = {target.job.name for target in self.compared.cold.values()}
        return [target for target in self.compared.targets if target.job.name in mine | cold]


def make_reproduction(
    wish: Wish, paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], overrides: Sequence[str]
) -> Reproduction:
    """The plan. Arms that the folder has already come first, in its order, so that a session can be about other studies
    than the one before; writes the recipes that are made for it once nothing refuses it. Raises as `make_plan`,
    `open_ledger` and `write_recipes` do."""
    wanted = {variant.name for variant in paper.arms_of(studies)}
    there = list(read_book(wish.out / FILE, CompareBook).arms)
    known = {variant.name: variant for variant in paper.variants}
    order = [name for name in there if name in known]
    order += [name for name in known if name in wanted and name not in order]
    variants = [known[name] for name in order]
    compared = make_plan(wish, make_arms(variants, recipes, overrides, wish.out), overrides)
    ledger = open_ledger(compared, ours=(SWITCHED,))
    write_recipes(compared.arms, wish.out)
    mine = [variant for variant in paper.variants if variant.name in wanted]
    about = {variant.name: told(variant, recipes) for variant in mine}
    return Reproduction(paper, studies, compared, ledger, tuple(about), about)
