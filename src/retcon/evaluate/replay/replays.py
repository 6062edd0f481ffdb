"""The counterfactuals at a failed call, each executed to the end of the rollout, many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args

from retcon.core.errors import InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.together import together
from retcon.core.types import Observation, Provenance, ToolCall, Trajectory, Turn
from retcon.evaluate.replay.states import FailedCall
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.tasks.registry import Grade, graded
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool, OpenTool, StatefulTool

Way = Literal["fresh", "raw", "fixed"]
"""How a rollout goes on at a failed call: from the history before it, as if the call had not been made; from the
failure; from what SAAR put in its place."""
WAYS: tuple[Way, ...] = get_args(Way)


def starts(call: FailedCall) -> dict[Way, tuple[Turn, ...]]:
    """The turns that each counterfactual goes on from; none where nothing was put in the failure's place."""
    found: dict[Way, tuple[Turn, ...]] = {"fresh": call.before, "raw": (*call.before, call.failure)}
    return found if call.fix is None else {**found, "fixed": (*call.before, call.fix)}


@dataclass(frozen=True, slots=True)
class Replays:
    """Of one failed call. faults: of those without a reward, the ones that were lost to something else than a state
    that cannot be rebuilt, and that may come to their end the next time."""

    made: list[Trajectory]
    faults: int


async def replay(
    call: FailedCall, task: Task, context: RolloutContext, *, times: int, seed: int, grade: Grade
) -> Replays:
    """Every counterfactual `times` times, graded, their ids `{rollout}/{way}/{n}`; nothing is repaired in them, so that
    they differ in where they begin alone.

    Seeds derive from (seed, rollout, way, n). Where tools keep state, what was called before is called again, and a
    replay that is told something else then ends as an infrastructure fault, without a reward. So does one that calls
    nothing: which replays are lost must not depend on what the model does in them.
    """

    async def one(way: Way, turns: tuple[Turn, ...], n: int) -> tuple[Trajectory, bool]:
        after = Trajectory(call.id, call.raw.task, call.raw.prompt, turns)
        rebuilt = _rebuilding(context.tools, turns, call.id)
        made = await run_rollout(
            task,
            replace(context, repair=None, tools={**context.tools, **rebuilt}),
            id=f"{call.id}/{way}/{n}",
            seed=derive("replay", seed, call.id, way, n),
            provenance=Provenance(index=n, model=context.model),
            after=after,
        )
        made = await _checked(made, list(rebuilt.values()), context.faults.add)
        made = await graded(task, made, grade, context.faults.add)
        return made, made.reward is None and not any(tool.differs for tool in rebuilt.values())

    ends = await together(one(way, turns, n) for way, turns in starts(call).items() for n in range(times))
    return Replays([made for made, _ in ends], sum(at_fault for _, at_fault in ends))


def _rebuilding(tools: Mapping[str, AnyTool], turns: Sequence[Turn], rollout: str) -> dict[str, Rebuilt]:
    told = [pair for turn in turns for pair in zip(turn.calls, turn.observations, strict=True)]
    return {
        name: Rebuilt(tool, [pair for pair in told if pair[0].name == name], rollout)
        for name, tool in tools.items()
        if isinstance(tool, StatefulTool)
    }


async def _checked(made: Trajectory, tools: Sequence[Rebuilt], lost: Callable[[str, str], None]) -> Trajectory:
    """The replay, lost if the state of a tool that it has not called cannot be rebuilt."""
    try:
        for tool in tools:
            if made.stop != "infrastructure" and tool.has_state and not tool.tried:
                opened = await tool.open(made.id)
                with suppress(InfrastructureFault):
                    await opened.close()
    except InfrastructureFault as fault:
        lost(made.id, str(fault))
        return replace(made, stop="infrastructure")
    return made


class Rebuilt:
    """A tool that keeps state, opened in the state that calls have left; implements `StatefulTool`. told: those calls,
    and what the tool said to them. rollout: in which they were made: a tool may draw random numbers by its id.

    tried: it was opened, or was to be. differs: it said something else this time.
    """

    def __init__(self, tool: StatefulTool, told: Sequence[tuple[ToolCall, Observation]], rollout: str) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self._tool = tool
        self._told = tuple(told)
        self._rollout = rollout
        self.has_state = bool(told)
        self.tried = self.differs = False

    async def open(self, trajectory: str) -> OpenTool:
        """Raises InfrastructureFault where the tool says something else this time."""
        self.tried = True
        opened = await self._tool.open(self._rollout)
        try:
            for call, said in self._told:
                self._compare(trajectory, call, said, await opened(call))
        except BaseException:
            with suppress(InfrastructureFault):
                await opened.close()
            raise
        return opened

    def _compare(self, trajectory: str, call: ToolCall, said: Observation, again: Observation) -> None:
        if (again.text, again.status) == (said.text, said.status):
            return
        self.differs = again.status != "infrastructure"
        raise InfrastructureFault(
            f"rollout {trajectory}: call {call.id} was told {said.status} {said.text[:80]!r}, and is now told "
            f"{again.status} {again.text[:80]!r}: its state cannot be rebuilt"
        )
