"""Manager of verl's agent loops, which adds batch-wide data to each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict.tensorclass import NonTensorData, NonTensorStack
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from retcon.plugins.verl.settings import SECTION, check_compatible, recipe_of
from retcon.plugins.verl.shared import FIRST, SIZE, VALIDATING
from retcon.plugins.verl.tasks import OWN, Repeats

OWN_SIZE = "__rollout_n__"
"""verl's column of rows that are rolled out otherwise than `rollout.n` times."""


class RetconManager(AgentLoopManagerTQ):  # type: ignore[misc]  # verl has no types
    """Class for `actor_rollout_ref.rollout.agent.agent_loop_manager_class`. Raises RecipeError before agent loops.

    By then verl has its GPU workers up; `python -m retcon.plugins.verl` checks before them.
    """

    def __init__(self, config: Any, *about: Any, **more: Any) -> None:
        check_compatible(config, recipe_of(config.get(SECTION)))
        super().__init__(config, *about, **more)
        rollout = config.actor_rollout_ref.rollout
        self._sizes = {False: rollout.n, True: rollout.val_kwargs.n}
        self._repeats = {False: Repeats(), True: Repeats()}

    def generate_sequences(self, prompts: Any) -> None:
        """Add to each row its number of rollouts, first index and phase. Then generate as verl does."""
        validating = bool(prompts["validate"]) if "validate" in prompts else False
        columns = {name: prompts[name] for name in OWN if name in prompts}
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        own = prompts[OWN_SIZE] if OWN_SIZE in prompts else [self._sizes[validating]] * len(prompts)
        sizes = [int(size) for size in own]
        prompts[FIRST] = _column(self._repeats[validating].before(prompts["global_steps"], rows, sizes))
        prompts[SIZE], prompts[VALIDATING] = _column(sizes), NonTensorData(validating)
        super().generate_sequences(prompts)


def _column(values: Sequence[int]) -> NonTensorStack:
    return NonTensorStack(*map(NonTensorData, values))
