"""The trajectory and its vocabulary.

A trajectory stores only what each turn added, and why. The concatenated ids of its segments are exactly what the
engine saw; masks, samples and costs are derived from it and never stored as the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass
from typing import Any, ClassVar, Literal, get_args

import msgspec
from msgspec.structs import replace

from retcon.core.errors import MissingIds, UnscoredTokens
from retcon.core.texts import counted

Kind = Literal["prompt", "scaffold", "sampled", "spliced", "observation"]
Status = Literal["ok", "error", "timeout", "limit", "malformed", "infrastructure"]
TurnStop = Literal["call", "answer", "length"]
Stop = Literal["answer", "turns", "length", "infrastructure"]
Decision = Literal["shallow", "deep", "resampled", "described", "unrepaired", "answered"]
Measure = Literal["entropy", "surprisal"]
Relation = Literal["subcall", "subagent", "compaction", "fork"]

KINDS: tuple[Kind, ...] = get_args(Kind)
TRAINED: frozenset[Kind] = frozenset({"sampled", "spliced"})
REPLACED: frozenset[Decision] = frozenset({"shallow", "deep", "resampled"})
"""Decisions that put what worked in the place of a failed turn."""

NO_SECONDS = 0.0
"""The default of `Observation.seconds`: left out where it is this object, as any default is."""

EXPECTED_LENGTH = 4_000
"""Characters of `Trajectory.expected` at most: the tests of a programming task are longer, and in the task's file."""

Extra = Mapping[str, object]
"""Fields that a newer version wrote and this one does not know: kept, and written back."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An immutable value; `dataclasses.replace` and `dataclasses.fields` take it as well."""

    extra: Extra = msgspec.field(default_factory=dict)
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = {}


class Segment(Record, frozen=True, omit_defaults=True):
    """A stretch of text with one origin.

    ids: (T,) token ids, None where the engine speaks text only. logprobs: (T,) nats, of the untempered model, None
    where unknown; only `sampled` and `spliced` segments have them. versions: (T,), of the weights that sampled each
    token: how many steps had trained them; None where they do not change meanwhile, or are unknown.
    """

    kind: Kind
    text: str
    ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    versions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown segment kind {self.kind!r}; one of {', '.join(KINDS)}")
        if self.logprobs is not None:
            if self.kind not in TRAINED:
                raise ValueError(f"a {self.kind} segment has no log-probs")
            if self.ids is None or len(self.logprobs) != len(self.ids):
                raise ValueError(
                    f"{counted(len(self.logprobs), 'log-prob')} for {counted(len(self.ids or ()), 'token')}"
                )
        if self.versions is not None and len(self.versions) != len(self.ids or ()):
            raise ValueError(f"{counted(len(self.versions), 'version')} for {counted(len(self.ids or ()), 'token')}")


class ToolCall(Record, frozen=True, omit_defaults=True):
    """A call that the model wrote.

    arguments: the parsed arguments, or the raw text where they could not be parsed. start: index into the turn's
    generated ids at which the call's marker begins, None where the marker is not on a token boundary, where the call
    stands in a list after others, or where there are no ids. char: the same as an offset into the turn's generated
    text. language: of `code`, None for Python; of a shell's commands (`shell`) the effects cannot be told.
    """

    id: str
    name: str
    arguments: Mapping[str, object] | str
    char: int
    start: int | None = None
    language: str | None = None

    @property
    def malformed(self) -> bool:
        return isinstance(self.arguments, str)

    @property
    def code(self) -> str:
        """The program alone: no wrapper, no escapes. Of a malformed call, the raw text."""
        arguments = self.arguments
        return arguments if isinstance(arguments, str) else str(arguments.get("code", ""))


class Observation(Record, frozen=True, omit_defaults=True):
    """What a tool answered; `status` comes from the tool, typed, and is never read out of the text. seconds: wall.

    no_checkpoint: why the tool's state before the call's turn could not be kept, so that no repair could go back to it.
    rule: in other people's transcripts that have no status, by what the text was taken for a failure or for unclear
    (docs/purify/transcripts.md). line: of the program, 1-based, at which it failed, as far as the text says so; 0: none
    of it ran. submitted: the rollout's answer, where the call's program gave it; it ends the rollout.
    """

    call_id: str
    text: str
    status: Status
    error_type: str | None = None
    seconds: float = NO_SECONDS
    rule: str | None = None
    line: int | None = None
    no_checkpoint: str | None = None
    submitted: str | None = None


class Cut(Record, frozen=True, omit_defaults=True):
    """A sentence or comment that a repair left out, as it spoke of what the repair took out.

    turn: of the raw trajectory, 0-based. rule: by which it was seen to speak of that (`purify.words`).
    """

    turn: int
    rule: str
    text: str

    def __lt__(self, other: Cut) -> bool:
        return (self.turn, self.rule, self.text) < (other.turn, other.rule, other.text)


class RepairRecord(Record, frozen=True, omit_defaults=True):
    """Why a turn is as it is after a failure: the audit trail of a purifier.

    similarity: Sim(c_t, c'), None where no fix was compared. reason: a short phrase. attempts: how many attempts were
    generated after the failure. fresh: how many of them, the first ones, followed the clean history, as if the failed
    call had not been made; the others were shown failures. cut: what was left out of this turn and later ones for the
    repair's sake, in their order.
    """

    decision: Decision
    attempts: int
    similarity: float | None = None
    reason: str = ""
    fresh: int = 0
    cut: tuple[Cut, ...] = ()


class Turn(Record, frozen=True, omit_defaults=True):
    """One generation of the model and what the tools answered.

    segments: what the model wrote (`sampled`, `spliced`), then for each call its observation, with the template's glue
    (`scaffold`) before, between and after, up to where the model's next turn opens.
    abandoned: attempts that a purifier took out, in the order in which they were sampled, each as it was. After a
    repair (REPLACED) they are all attempts, the fix as it was sampled last among them; after `described` the failure
    alone, of which the turn keeps what stands before the call; after `unrepaired` the lookahead attempts that followed
    the committed failure; after `answered` those that the answer had not seen: cut off after this turn, so that nothing
    could follow, or not shown; the others are turns of their own.
    """

    segments: tuple[Segment, ...]
    calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()
    stop: TurnStop = "answer"
    abandoned: tuple[Turn, ...] = ()
    repair: RepairRecord | None = None
    entropy: float | None = None

    @property
    def generated(self) -> tuple[Segment, ...]:
        """The segments that the model wrote (sampled or spliced)."""
        return tuple([s for s in self.segments if s.kind in TRAINED])

    @property
    def text(self) -> str:
        """What the model wrote in this turn."""
        return "".join([s.text for s in self.segments if s.kind in TRAINED])

    @property
    def failures(self) -> int:
        """Calls of this turn whose observation is not `ok` (infrastructure faults are nobody's failure)."""
        return sum(o.status not in ("ok", "infrastructure") for o in self.observations)

    def raw(self) -> tuple[Turn, ...]:
        """The turn as it was sampled: itself, or the attempts that it replaced, in order."""
        if self.repair is None:
            return (self,)
        if self.repair.decision in ("unrepaired", "answered"):
            return (replace(self, abandoned=(), repair=None), *self.abandoned)
        return self.abandoned


class Provenance(Record, frozen=True, omit_defaults=True):
    """Where a trajectory comes from. purified: whether a purifier was armed for this rollout. encoded_by: whose
    tokenizer stood in for that of a model that speaks text only: the ids are not those that the model saw, and nothing
    is to be learnt from them. None: they are."""

    seed: int | None = None
    step: int | None = None
    index: int | None = None
    model: str | None = None
    purified: bool = False
    encoded_by: str | None = None


NO_PROVENANCE = Provenance()


class Branch(Record, frozen=True, omit_defaults=True):
    """Where a rollout left another one, whose beginning is its own: those turns were sampled once, for `parent`.

    parent, root: ids of the trajectory that it left, and of the one that its tree began with. turns, tokens: that it
    shares with its parent, the prompt's tokens among them. uncertainty, rise: of the parent's next turn, for which it
    branched: nats a token, and by how much that is more than in its first turn. measure: what that is: the entropy of
    the model's distributions, or the surprisal of what was drawn from them.
    """

    parent: str
    root: str
    turns: int
    tokens: int
    uncertainty: float
    rise: float
    measure: Measure = "entropy"


class Parent(Record, frozen=True, omit_defaults=True):
    """The place in another trajectory at which this one was made.

    trajectory: its id. turn: index of the turn. call: id of the call whose program asked for this trajectory; where the
    parent's turns do not have that call, it belonged to an attempt that was abandoned.
    """

    trajectory: str
    turn: int
    call: str
    relation: Relation = "subcall"


class Origin(Record, frozen=True, omit_defaults=True):
    """Which record of a file a trajectory was read from.

    source: file and line, or number. format: the name of the transcript's format. record: as it was, where nothing else
    holds it any more; as text where it is beyond standard JSON.
    """

    source: str
    format: str
    record: object = None


class TrainingRecord(Record, frozen=True, omit_defaults=True):
    """What a training step made of a rollout: the arrays that its loss used, in short.

    advantage: of the rollout, None where it was not trained on. advantages: (T,) per token, None where all are equal to
    it. mask: lengths of alternating runs of the loss mask, zeros first, None where it is what the segments' kinds say.
    weights: (T,) None where no token is weighed. staleness: how many steps older than this one the oldest weights were
    that sampled it, None where unknown. seconds: wall, from its group's start to its grade.
    """

    advantage: float | None = None
    advantages: tuple[float, ...] | None = None
    mask: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None
    staleness: int | None = None
    seconds: float | None = None


class Trajectory(Record, frozen=True, omit_defaults=True):
    """A whole rollout. reward is None until graded, and stays None after an infrastructure fault.

    prompt: what the model was given before its first turn; it belongs to no turn, so that an attempt at the first turn
    looks like any other. answer: the final answer that the grader read, None where the model gave none. origin: of one
    in an audit of transcripts. branch: of one that left another after some turns, which are its own all the same.
    returned: by the harness that made it: the text that was graded in place of its last message, or the reward; None
    where it returned neither, or there was none; or the answer that a program submitted. parent: of a part of another
    trajectory's rollout, None at the root. children: those that were made for this one, each with its own, by turn and
    id; files have them as lines before it. refused: calls of the model by its programs that a limit refused, those of
    its descendants among them. selection: what became of it in a step of training, `kept` or why not
    (see `retcon.train.prompts.selected`); None elsewhere. grades: whether it is right to each judge, where its
    grader asks several (`livecodebench`: `lcb` and `strict`). expected: the task's right
    answer, cut to EXPECTED_LENGTH. reason: the grader's, a short phrase. training: what a training step made of it.
    """

    id: str
    task: str
    prompt: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    reward: float | None = None
    stop: Stop = "answer"
    provenance: Provenance = NO_PROVENANCE
    answer: str | None = None
    origin: Origin | None = None
    branch: Branch | None = None
    returned: str | float | None = None
    selection: str | None = None
    grades: Mapping[str, bool] | None = None
    parent: Parent | None = None
    expected: str | None = None
    reason: str | None = None
    training: TrainingRecord | None = None
    children: tuple[Trajectory, ...] = ()
    refused: int = 0

    @property
    def tree(self) -> Iterator[Trajectory]:
        """Its descendants, each after its own, then itself."""
        for child in self.children:
            yield from child.tree
        yield self

    @property
    def segments(self) -> Iterator[Segment]:
        """Prompt and turns: their ids, concatenated, are the whole history."""
        yield from self.prompt
        for turn in self.turns:
            yield from turn.segments

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments)

    @property
    def calls(self) -> int:
        """Executed calls of the (purified) history."""
        return sum(len(t.observations) for t in self.turns)

    @property
    def failures(self) -> int:
        """Failed calls of the (purified) history."""
        return sum(t.failures for t in self.turns)

    @property
    def raw_calls(self) -> int:
        """Executed calls, those of abandoned attempts among them."""
        return sum(len(a.observations) for t in self.turns for a in t.raw())

    @property
    def raw_failures(self) -> int:
        """Failed calls as they happened, before purification."""
        return sum(a.failures for t in self.turns for a in t.raw())

    @property
    def shared_turns(self) -> int:
        """How many of its first turns were sampled for the trajectory that it branched off; 0 for one that did not."""
        return 0 if self.branch is None else self.branch.turns

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Those that were sampled for this trajectory, not for one that it branched off."""
        return self.turns[self.shared_turns :]

    @property
    def raw_seconds(self) -> float:
        """Wall seconds of calls executed for this trajectory, those of abandoned attempts among them."""
        return math.fsum(o.seconds for t in self.own_turns for a in t.raw() for o in a.observations)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the model generated for this trajectory, abandoned attempts among them."""
        return sum(len(s.ids or ()) for t in self.own_turns for a in t.raw() for s in a.generated)


def is_repaired(trajectory: Trajectory) -> bool:
    """Whether a purifier replaced a turn of it."""
    return any(t.repair is not None and t.repair.decision in REPLACED for t in trajectory.turns)


for _kind in Record.__subclasses__():
    _kind.__dataclass_fields__ = {f.name: f for f in fields(make_dataclass(_kind.__name__, _kind.__struct_fields__))}


@dataclass(frozen=True, slots=True)
class Sample:
    """What training sees of a trajectory.

    ids: (T,). mask: (T,) 1 where the id is learnt from. logprobs: (T,) nats, None where mask is 0. spliced: (T,) 1 on
    spliced ids. advantages: (T,), or None before they are known. weights: (T,) what a token's loss is multiplied by,
    None for 1; None as a whole where nothing is weighed. reference: (T,) nats, log-probs under the reference policy,
    None where there is none. source: id of the trajectory, by which errors name it; it tells no samples apart, nor does
    tree: the id of the trajectory that its tree began with, whose beginning is computed once for all of them; empty for
    none; nor margin: of a rejected call, by how much it is less likely than what replaced it (`rl.dpo_beta`).
    predicted: (T,) 1 on ids of tool outputs that the model is trained to predict (`rl.echo`), None for none.
    hindsights: turns with a failed call, as a teacher that knows the error is shown them (`rl.sdpo`).
    scale: what all of it weighs in the means of a minibatch, numerators and denominators alike.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    spliced: tuple[int, ...]
    advantages: tuple[float, ...] | None = None
    weights: tuple[float | None, ...] | None = None
    reference: tuple[float, ...] | None = None
    source: str = field(default="", compare=False)
    tree: str = field(default="", compare=False)
    margin: float | None = field(default=None, compare=False)
    predicted: tuple[int, ...] | None = None
    hindsights: tuple[Hindsight, ...] = ()
    scale: float = 1.0

    @property
    def scored(self) -> tuple[int, ...]:
        """(T,) 1 on ids whose log-probs the loss reads: those in the mask, and those that are predicted."""
        if self.predicted is None:
            return self.mask
        return tuple(map(max, self.mask, self.predicted))


@dataclass(frozen=True, slots=True)
class Hindsight:
    """A turn of a sample after what its failed call led to. start: where it begins in that sample."""

    start: int
    sample: Sample


ANYTHING: Mapping[str, object] = {"type": "object"}
"""The schema that every object of arguments has."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is shown it. parameters: JSON schema of the object that its arguments are. recorded: how a
    transcript has the tool, which templates are given as it stands."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: ANYTHING, hash=False)
    recorded: Mapping[str, object] | None = field(default=None, hash=False)

    def as_function(self) -> dict[str, object]:
        """As chat templates and OpenAI's API are given it."""
        if self.recorded is not None:
            return dict(self.recorded)
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


Message = Mapping[str, object]
Written = str | tuple[Message, ...]
"""Text as the model saw it, template and all; or chat messages, each with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One side of a pair.

    ids: (T,) token ids, None where only text is known. mask: (T,) 1 on the tokens that the loss is to count, None where
    they are not known apart, so that all of the completion counts.
    """

    written: Written
    ids: tuple[int, ...] | None = None
    mask: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and (self.ids is None or len(self.mask) != len(self.ids)):
            raise ValueError(f"a mask of {len(self.mask)} for {counted(len(self.ids or ()), 'token')}")


@dataclass(frozen=True, slots=True)
class Pair:
    """chosen is to become more likely after prompt, rejected less: the data of DPO (arXiv 2305.18290).

    id: says where the pair is from. prompt, chosen and rejected are all text or all messages. prompt_ids: (T,), None
    where only text is known. about: further columns for the file, such as the similarity of the two; they must not be
    named as one of the format's own (`retcon.store.jsonl`).
    """

    id: str
    prompt: Written
    chosen: Completion
    rejected: Completion
    prompt_ids: tuple[int, ...] | None = None
    about: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({isinstance(w, str) for w in (self.prompt, self.chosen.written, self.rejected.written)}) > 1:
            raise ValueError(f"pair {self.id} mixes text and messages")


def ids_of(segments: Iterable[Segment]) -> tuple[int, ...]:
    """The concatenated ids of segments, (T,); one that holds text only adds none."""
    return tuple(i for s in segments for i in s.ids or ())


def token_count(segments: Iterable[Segment]) -> int:
    """How many ids segments have; one that holds text only has none."""
    return sum(len(s.ids or ()) for s in segments)


def history_ids(trajectory: Trajectory) -> tuple[int, ...]:
    """The ids of the whole trajectory, (T,): exactly what the engine saw.

    Raises MissingIds where a segment holds text only, or another tokenizer stood in for the model's.
    """
    if trajectory.provenance.encoded_by is not None:
        raise MissingIds(
            f"trajectory {trajectory.id}: its model speaks text only, and its ids are those of "
            f"{trajectory.provenance.encoded_by}, which stood in for the model's tokenizer"
        )
    ids: list[int] = []
    for segment in trajectory.segments:
        if segment.ids is None:
            raise MissingIds(f"trajectory {trajectory.id}: a {segment.kind} segment has no ids (text-only engine?)")
        ids.extend(segment.ids)
    return tuple(ids)


def to_sample(trajectory: Trajectory, *, scored: bool = True) -> Sample:
    """The sample of a trajectory; the mask is 1 on `sampled` and `spliced` ids, 0 elsewhere.

    scored=False (for supervised training) allows ids without log-probs. Raises MissingIds, and UnscoredTokens where ids
    in the loss mask have no log-probs.
    """
    mask: list[int] = []
    spliced: list[int] = []
    logprobs: list[float | None] = []
    ids = history_ids(trajectory)
    for segment in trajectory.segments:
        count = len(segment.ids or ())
        learnt = segment.kind in TRAINED
        if learnt and scored and segment.logprobs is None and count:
            raise UnscoredTokens(
                f"trajectory {trajectory.id}: {counted(count, f'{segment.kind} token')} without log-probs; "
                "score them under the purified prefix first"
            )
        mask.extend([int(learnt)] * count)
        spliced.extend([int(segment.kind == "spliced")] * count)
        logprobs.extend(segment.logprobs if segment.logprobs is not None else [None] * count)
    return Sample(ids, tuple(mask), tuple(logprobs), tuple(spliced), source=trajectory.id)


@dataclass(frozen=True, slots=True)
class FirstTries:
    """made: turns that called and did not answer a failure. failed: those of them in which a call failed."""

    made: int
    failed: int

    @property
    def rate(self) -> float | None:
        """Share that failed; None where nothing was tried."""
        return self.failed / self.made if self.made else None


def first_tries(trajectory: Trajectory) -> FirstTries:
    """The first tries of a trajectory as it was sampled, whether or not failures were then repaired.

    An attempt that comes right after a failed one, in the history or in a lookahead, is a repair and no first try; so
    that the figure means the same with purification and without. Those of a beginning that it shares are another's.
    """
    made = failed = 0
    repairing = False
    for number, turn in enumerate(trajectory.turns):
        for attempt in turn.raw():
            fails = attempt.failures > 0
            if number >= trajectory.shared_turns and attempt.observations and not repairing:
                made += 1
                failed += fails
            if attempt.observations:  # an attempt that was cut off, or answered in vain, leaves the failure standing
                repairing = fails
        repairing = turn.failures > 0  # the next turn follows what was committed
    return FirstTries(made, failed)
