"""A trajectory for the eye: what the model wrote, what the tools answered, and what a purifier changed.

Bars tell origin without colour: `│` is as it was sampled, `+` was spliced in, `-` was taken out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from retcon.core.texts import counted
from retcon.core.types import Observation, RepairRecord, Trajectory, Turn
from retcon.report.rows import Beside, Row, plain, written

_CHATML_END = "<|im_end|>"
_CHATML_TURN = re.compile(rf"<\|im_start\|>(\w++)\n(.*?){re.escape(_CHATML_END)}", re.DOTALL)
_STATUS_STYLES = {"ok": "green", "infrastructure": "yellow"}
_SHORT_STATUS = {"infrastructure": "infra"}


@dataclass(frozen=True, slots=True)
class _Fate:
    """How a part of an attempt is drawn, by what became of it."""

    text: str
    margin: str
    bar: str


_STAYS = _Fate("", "dim", "│")
_OUT = _Fate("red strike", "red", "-")
_IN = _Fate("green", "green", "+")


def show_trajectory(trajectory: Trajectory) -> RenderableType:
    """The (purified) history, turn by turn; spliced parts are marked, the template's glue is left out."""
    rows: list[RenderableType] = [_header(trajectory), *_prompt(trajectory)]
    for n, turn in enumerate(trajectory.turns, 1):
        rows += [*_opening(n, turn), *_turn(turn)]
    rows.append(_outcome(trajectory))
    return Group(*rows)


def show_purification(trajectory: Trajectory) -> RenderableType:
    """Before and after: for every turn that a purifier looked at, the attempts as sampled and what stands there now."""
    rows: list[RenderableType] = [_header(trajectory), *_prompt(trajectory)]
    for n, turn in enumerate(trajectory.turns, 1):
        rows += _opening(n, turn)
        if turn.repair is None or turn.repair.decision == "answered":
            rows += _turn(turn)
        else:
            before = Group(_heading("before: as it was sampled"), *_attempts(turn, turn.repair))
            after = Group(_heading("after: what is learnt from"), *_turn(turn))
            rows.append(Beside(before, after))
    if not any(turn.repair for turn in trajectory.turns):
        rows.append(plain("No turn was repaired: before and after are the same.", "dim italic"))
    rows.append(_outcome(trajectory))
    return Group(*rows)


def show_turn(number: int, turn: Turn) -> RenderableType:
    """One turn as it stands in the history; number: 1-based."""
    return Group(*_opening(number, turn), *_turn(turn))


def _header(trajectory: Trajectory) -> RenderableType:
    branch = trajectory.branch
    left = [] if branch is None else [
        f"branches off {branch.parent} after turn {branch.turns}, {branch.tokens} tokens shared",
        f"{branch.measure} there {branch.uncertainty:.2f} nats a token, {branch.rise:+.2f} over the first turn's",
    ]  # fmt: skip
    facts = [
        f"task {trajectory.task}",
        *left,
        _calls(trajectory.calls, trajectory.failures),
        f"as sampled: {_calls(trajectory.raw_calls, trajectory.raw_failures)}",
        f"{counted(trajectory.sampled_tokens, 'token')} sampled",
        "purifier armed" if trajectory.provenance.purified else "no purifier",
    ]
    return Group(Rule(plain(f"trajectory {trajectory.id}", "bold"), style="bold"), plain(" · ".join(facts), "dim"))


def _calls(calls: int, failures: int) -> str:
    return f"{calls} call{'s' * (calls != 1)}, {failures} failed"


def _prompt(trajectory: Trajectory) -> Iterator[RenderableType]:
    text = "".join(s.text for s in trajectory.prompt)
    last_end = text.rfind(_CHATML_END) + len(_CHATML_END)  # beyond it every opening would be looked through to the end
    messages = _CHATML_TURN.findall(text, 0, last_end) or [("prompt", text)]
    for role, message in messages:
        yield Row(role[:9], plain(message), "cyan")


def _opening(n: int, turn: Turn) -> Iterator[RenderableType]:
    """A line that begins the turn and, where a purifier looked at it, one with what it decided."""
    yield Rule(plain(f"turn {n} · {turn.stop}"), align="left", style="dim", characters="─")
    if turn.repair is not None:
        style = dict.fromkeys(("described", "unrepaired", "answered"), "yellow").get(turn.repair.decision, "green")
        yield Row("repair", plain(_decision(turn.repair)), style)


def _decision(repair: RepairRecord) -> str:
    """The audit trail in a line: decision, similarity where a fix was compared, attempts, reason."""
    names = {
        "shallow": "shallow: program replaced",
        "deep": "deep: reasoning and program replaced",
        "resampled": "resampled: a fresh try in place of the failed one",
        "described": "described: a line in place of the failed call",
        "unrepaired": "not repaired",
        "answered": "the lookahead answered without a call",
    }
    parts = [names[repair.decision]]
    if repair.similarity is not None:
        parts.append(f"similarity {repair.similarity:.2f}")
    parts.append(f"{repair.attempts} attempt{'s' * (repair.attempts != 1)}")
    if repair.reason:
        parts.append(repair.reason)
    return " · ".join(parts)


def _heading(text: str) -> Text:
    return plain(text, "bold")


def _turn(turn: Turn) -> Iterator[RenderableType]:
    """A turn as it stands in the history."""
    offset = 0
    for segment in turn.generated:
        body = written(segment.text, turn.calls, offset)
        if body.plain:
            fate = _IN if segment.kind == "spliced" else _STAYS
            yield Row(segment.kind, body, fate.margin, fate.bar)
        offset += len(segment.text)
    yield from map(_observation, turn.observations)


def _observation(observation: Observation) -> Row:
    style = _STATUS_STYLES.get(observation.status, "red")
    body = plain(observation.text.rstrip("\n") or "(no output)", style)
    if observation.seconds:
        body.append(f"  {observation.seconds:.2f} s", "dim")
    return Row(_SHORT_STATUS.get(observation.status, observation.status), body, style)


def _attempts(turn: Turn, repair: RepairRecord) -> Iterator[RenderableType]:
    """What was sampled at this turn, in order: what left the history is struck out, what was spliced in is green.

    Shallow keeps the first attempt's reasoning and takes the last one's program; deep takes the last one whole; where
    nothing was repaired the first attempt stays as it is.
    """
    raw = turn.raw()
    for n, attempt in enumerate(raw):
        origin, final = n == 0, n == len(raw) - 1
        if repair.decision == "unrepaired":
            prose, program = (_STAYS, _STAYS) if origin else (_OUT, _OUT)
        elif repair.decision in ("deep", "resampled"):
            prose, program = (_IN, _IN) if final else (_OUT, _OUT)
        elif repair.decision == "described":
            prose, program = _STAYS, _OUT
        else:
            prose, program = _STAYS if origin else _OUT, _IN if final else _OUT
        label = "first" if origin else f"attempt {n}"
        split = attempt.calls[0].char if attempt.calls else len(attempt.text)
        said = plain(attempt.text[:split].rstrip("\n"), prose.text)
        if said.plain:
            yield Row(label, said, prose.margin, prose.bar)
            label = ""
        body = written(attempt.text[split:], attempt.calls, split, prose=program.text, code=program.text or None)
        if body.plain:
            yield Row(label, body, program.margin, program.bar)
        yield from map(_observation, attempt.observations)


def _outcome(trajectory: Trajectory) -> RenderableType:
    reward = "not graded" if trajectory.reward is None else f"reward {trajectory.reward:g}"
    good = trajectory.reward is not None and trajectory.reward > 0
    style = "bold green" if good else "bold" if trajectory.reward is None else "bold red"
    line = plain(reward, style)
    line.append(f" · stop {trajectory.stop} · ", "dim")
    none = "no marked answer" if trajectory.stop == "answer" else "no answer"  # which may be right all the same
    line.append_text(plain(none if trajectory.answer is None else f"answer {trajectory.answer}", ""))
    return Group(Rule(style="dim"), line)
