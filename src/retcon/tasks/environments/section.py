"""What [task] sections of environments have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from retcon.config.schema import Recipe, TaskSection
from retcon.config.section import Probability, Several
from retcon.core.errors import RecipeError, told_as
from retcon.tasks.environments.sessions import Sessions
from retcon.tasks.environments.tasks import EnvironmentTasks
from retcon.tasks.environments.types import Environment
from retcon.tasks.registry import CountTokens


class EnvironmentSection(TaskSection):
    """A kind has `adapter()`."""

    rollback: Literal["auto", "unneeded", "copy", "replay", "impossible"] = Field("auto", description="how tools go "
        "back to where a failed call began: unneeded: they keep nothing; copy: their state is copied; replay: the "
        "environment begins anew and the calls before are made again; impossible: nothing can be repaired; auto: as "
        "the environment says")  # fmt: skip
    faults: Several = Field(("ConnectionError",), description="exceptions of tools, by the names of their "
                            "classes or bases, that are not the model's fault")  # fmt: skip
    right_from: float = Field(0.0, description="reward from which a rollout is right, and gets 1, else -1; 0: rewards "
                              "stay as the environment gives them, and above 0 is right")  # fmt: skip
    evaluation_share: Probability = Field(0.1, description="of the tasks that are held out, where the environment has "
                                          "none for evaluation")  # fmt: skip

    @abstractmethod
    def adapter(self) -> Environment:
        """Raises RecipeError where it cannot be had, MissingExtra without the package that it is for."""

    def build(self, count_tokens: CountTokens | None = None) -> EnvironmentTasks:
        return _opened(type(self), self.model_dump_json())

    def tools(self, recipe: Recipe) -> Sequence[Any]:
        """The environment's own."""
        return self.build().sessions.tools(recipe.sandbox.output_chars)

    def refuse_rollouts(self, recipe: Recipe) -> None:
        """Raises RecipeError where the recipe goes back to states, and that is impossible."""
        sessions = self.build().sessions
        name, how = sessions.environment.name, sessions.rollback
        if how == "impossible" and recipe.repair.kind != "none" and sessions.environment.specs:
            raise RecipeError(
                f"{name} keeps a state that cannot be gone back to, and a repair would go on from what the failed call "
                "left: set task.rollback to replay, where the same calls are always answered alike, or to unneeded, "
                "where an answer depends on the call alone; or repair.kind, of evaluations evaluate.repair, to none"
            )

    def refuse_branching(self, recipe: Recipe) -> None:
        """Raises RecipeError where rollouts branch, and would share a state."""
        if not recipe.strategy.branching:
            return
        sessions = self.build().sessions
        name, needless = sessions.environment.name, sessions.environment.rollback == "unneeded"
        if not (needless and sessions.rollback == "unneeded"):  # else each rollout has a state all the same
            raise RecipeError(
                f"strategy.kind = '{recipe.strategy.kind}': the state of {name} is one for all its tools, and rollouts "
                "cannot branch with it; set strategy.kind to independent"
            )


@lru_cache(maxsize=8)
def _opened(kind: type[EnvironmentSection], keys: str) -> EnvironmentTasks:
    """One for equal sections, as what grades must know the states that the tools left."""
    section = kind.model_validate_json(keys)
    with told_as(RecipeError, f"task.kind = '{section.kind}': the environment"):  # is made, and begun
        environment = section.adapter()
    how = environment.rollback if section.rollback == "auto" else section.rollback
    return EnvironmentTasks(
        Sessions(environment, how), evaluation_share=section.evaluation_share, right_from=section.right_from or None
    )
