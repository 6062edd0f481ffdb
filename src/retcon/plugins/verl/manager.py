"""Who starts verl's workers: what cannot go together is said before any of them works, and whether verl validates."""

from __future__ import annotations

from typing import Any

from tensordict.tensorclass import NonTensorData
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

from retcon.plugins.verl.settings import SECTION, recipe_of, refuse_unfit
from retcon.plugins.verl.shared import VALIDATING


class RetconManager(AgentLoopManagerTQ):  # type: ignore[misc]  # verl has no types
    """`actor_rollout_ref.rollout.agent.agent_loop_manager_class`. Raises RecipeError, before a worker is started."""

    def __init__(self, config: Any, *about: Any, **more: Any) -> None:
        refuse_unfit(config, recipe_of(config.get(SECTION)))
        super().__init__(config, *about, **more)

    def generate_sequences(self, prompts: Any) -> None:
        """As verl's, with what its workers keep to themselves."""
        prompts[VALIDATING] = NonTensorData(bool(prompts["validate"]) if "validate" in prompts else False)
        super().generate_sequences(prompts)
