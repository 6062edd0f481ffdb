"""Describe: replace a failed call by a line that says what failed. Ours.

A call that failed, word for word in the context, makes its own repetition likelier. Here the model goes on from a
history that has lost those words and not the failure: nothing is taken out of order, put in or sampled again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace
from pydantic import Field

from retcon.config.schema import RepairSection
from retcon.config.section import Positive
from retcon.core.texts import error_line
from retcon.core.types import Observation, RepairRecord, Segment, Status, ToolCall, Turn, token_count
from retcon.purify.failing import FAILURES, check_failures, has_failed
from retcon.purify.kinds.saar import FailureStatus
from retcon.purify.splice import UNALIGNED, cut
from retcon.purify.types import Lookahead, Repair

LATER = "a later call of the turn succeeded"
"""Why a failure stays: the rest of its turn was written after its words."""


@dataclass(frozen=True, slots=True)
class Describe:
    """Repair that describes a failure. chars: most of the line. failures: statuses that count as one.

    What the model wrote before its first failed call stays as it was sampled, with its log-probs, and so do the calls
    before that one and their observations. From that call on, what it wrote is gone, and each observation is a line
    instead. The line is the tool's and the template's, of no kind that is learnt from; later turns are sampled after
    it. Where the call does not begin on a token boundary, all that the turn wrote is gone; where that would take a call
    that succeeded along, or one succeeded after the failure, the failure stays as it happened."""

    chars: int = 80
    failures: frozenset[Status] = FAILURES

    def __post_init__(self) -> None:
        if self.chars < 1:
            raise ValueError(f"chars must be 1 or more, not {self.chars}")
        check_failures(self.failures)

    @property
    def attempts(self) -> int:
        return 0

    def failed(self, turn: Turn) -> bool:
        """Whether this turn counts as a failure."""
        return has_failed(turn, self.failures)

    async def repair(self, turn: Turn, lookahead: Lookahead) -> Sequence[Turn]:
        """Return the turn with the failure described, or unchanged. The tools stay as the failure left them."""
        first = next(n for n, o in enumerate(turn.observations) if o.status in self.failures)
        failing = turn.calls[first]
        aligned = failing.start is not None or all(s.ids is None for s in turn.generated)
        if any(o.status == "ok" for o in turn.observations[first:]) or (first and not aligned):
            return (replace(turn, repair=RepairRecord("unrepaired", 0, reason=UNALIGNED if not aligned else LATER)),)
        kept: Sequence[Segment] = cut(turn.generated, failing)[0] if aligned else ()
        calls = (*turn.calls[:first], *(_emptied(call, kept) for call in turn.calls[first:]))
        seen = (
            *turn.observations[:first],
            *(
                replace(observation, text=describe_failure(call, observation, self.chars))
                for call, observation in zip(turn.calls[first:], turn.observations[first:], strict=True)
            ),
        )
        record = RepairRecord("described", 0, reason="" if aligned else UNALIGNED)
        return (
            Turn((*kept, *lookahead.render_observations(kept, calls, seen)), calls, seen, turn.stop, (turn,), record),
        )


def describe_failure(call: ToolCall, observation: Observation, chars: int) -> str:
    """Return a failed call's line: `[python failed: NameError: name 'x' is not defined]`.

    It has at most `chars` characters, with the observation's line that names the type of error, or else that type; of a
    call that reached no tool, the observation's first line."""
    lines = [line.strip() for line in observation.text.splitlines() if line.strip()]
    of_error = error_line(lines, observation.error_type)
    if observation.status == "malformed":
        of_error = next(iter(lines), None)
    line = f"[{call.name} failed: {of_error or observation.error_type or observation.status}]"
    return line if len(line) <= chars else f"{line[: max(0, chars - 2)]}…]"[:chars]


def _emptied(call: ToolCall, kept: Sequence[Segment]) -> ToolCall:
    """Return the call without its text, placed after the kept segments."""
    ids = None if any(s.ids is None for s in kept) else token_count(kept)
    return replace(call, arguments="" if call.malformed else {}, char=sum(len(s.text) for s in kept), start=ids)


class DescribeSection(RepairSection):
    """Section of `kind = "describe"`, for `Describe`."""

    chars: Positive = Field(80, description="most characters of the line that replaces a failed call")
    failures: tuple[FailureStatus, ...] = ("error", "timeout", "limit", "malformed")

    def build(self) -> Repair:
        return Describe(self.chars, frozenset(self.failures))
