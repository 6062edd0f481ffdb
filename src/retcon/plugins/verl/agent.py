"""Agent loop for verl: `rollout/loop.py` over verl's servers (state: `plugins.verl.shared`)."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from retcon.core.errors import InfrastructureFault
from retcon.plugins.verl.choosing import to_outputs
from retcon.plugins.verl.shared import shared


@register("retcon")
class RetconAgentLoop(AgentLoopBase):  # type: ignore[misc]  # verl has no types
    """Agent loop that rolls out the recipe in verl's section `retcon`."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Roll out, repair, grade. row: of verl's data set, with what its worker and our manager add.

        Returns the rollout, last, and before it those of its children that [credit] trains, to which verl gives the
        rollout's advantage.

        Raises InfrastructureFault for a rollout that a fault ended: verl then has no output of it, and no reward. Its
        own buffer trains on the others of the group; ours sees to it that two or more are left.
        """
        opened = await shared(self.server_manager, self.config, self.tokenizer)
        rolled = await opened.rollout(row, sampling_params)
        if rolled.fault:
            raise InfrastructureFault(f"rollout {rolled.trajectory.id} has no reward: {rolled.fault}")
        return [AgentLoopOutput(**fields) for fields in to_outputs(rolled, opened.recipe)]
