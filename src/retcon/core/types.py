"""The trajectory and its vocabulary.

A trajectory stores only what each turn added, and why. The concatenated ids of its segments are exactly the engine's
input and output; masks, samples and costs are derived and never stored as the truth.
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
Relation = Literal["subcall", "subagent", "compaction", "fork", "beside"]

KINDS: tuple[Kind, ...] = get_args(Kind)
TRAINED: frozenset[Kind] = frozenset({"sampled", "spliced"})
REPLACED: frozenset[Decision] = frozenset({"shallow", "deep", "resampled"})
"""Decisions that replace a failed turn by its fix."""

NO_SECONDS = 0.0
"""The default of `Observation.seconds`: left out where it is this object, as any default is."""

EXPECTED_LENGTH = 4_000
"""Characters of `Trajectory.expected` at most: the tests of a programming task are longer, and in the task's file."""

Extra = Mapping[str, object]
"""Unknown fields, of a newer version: kept, and written back."""


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
    stands in a list after others, or where there are no ids. char: that place as an offset into the turn's generated
    text. language: of `code`, None for Python; the effects of a shell's commands (`shell`) are unknown.
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
        """Return the bare program, without wrapper and escapes; the raw text of a malformed call."""
        arguments = self.arguments
        return arguments if isinstance(arguments, str) else str(arguments.get("code", ""))


class Observation(Record, frozen=True, omit_defaults=True):
    """The answer of a tool; `status` comes typed from the tool, never from the text. seconds: wall.

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
    """Text that a repair cut because it mentions the removed failure.

    turn: of the raw trajectory, 0-based. rule: by which the mention was recognised (`purify.words`).
    """

    turn: int
    rule: str
    text: str

    def __lt__(self, other: Cut) -> bool:
        return (self.turn, self.rule, self.text) < (other.turn, other.rule, other.text)


class RepairRecord(Record, frozen=True, omit_defaults=True):
    """Audit record of a purifier: how a turn was repaired after a failure, and why.

    similarity: Sim(c_t, c'), None where no fix was compared. reason: a short phrase. attempts: number of attempts
    generated after the failure. fresh: how many of them, the first ones, followed the clean history, as if the failed
    call had not been made; the others were shown failures. cut: text removed from this turn and later ones because of
    the repair, in order.
    """

    decision: Decision
    attempts: int
    similarity: float | None = None
    reason: str = ""
    fresh: int = 0
    cut: tuple[Cut, ...] = ()


class Turn(Record, frozen=True, omit_defaults=True):
    """One generation of the model and the tools' answers.

    segments: the model's text (`sampled`, `spliced`), then for each call its observation, with the template's glue
    (`scaffold`) before, between and after, up to the opening of the model's next turn.
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
        """Return the segments that the model wrote (sampled or spliced)."""
        return tuple([s for s in self.segments if s.kind in TRAINED])

    @property
    def text(self) -> str:
        """Return the model's text of this turn."""
        return "".join([s.text for s in self.segments if s.kind in TRAINED])

    @property
    def failures(self) -> int:
        """Count this turn's failed calls; infrastructure faults do not count as failures."""
        return sum(o.status not in ("ok", "infrastructure") for o in self.observations)

    def raw(self) -> tuple[Turn, ...]:
        """Return the turn as sampled: itself, or the attempts that it replaced, in order."""
        if self.repair is None:
            return (self,)
        if self.repair.decision in ("unrepaired", "answered"):
            return (replace(self, abandoned=(), repair=None), *self.abandoned)
        return self.abandoned


class Provenance(Record, frozen=True, omit_defaults=True):
    """The origin of a rollout. purified: whether a purifier was armed for it. encoded_by: the model whose tokenizer
    stood in for that of a text-only model, so that the ids are not the model's and must not be trained on; None: they
    are the model's."""

    seed: int | None = None
    step: int | None = None
    index: int | None = None
    model: str | None = None
    purified: bool = False
    encoded_by: str | None = None


NO_PROVENANCE = Provenance()


class Branch(Record, frozen=True, omit_defaults=True):
    """Branch point of a rollout whose first turns were sampled for `parent`.

    parent, root: ids of the trajectory that it left, and of the root of its tree. turns, tokens: shared with its
    parent, the prompt's tokens included. uncertainty, rise: of the parent's next turn, for which it branched: nats a
    token, and by how much that exceeds its first turn. measure: of uncertainty: the entropy of the model's
    distributions, or the surprisal of the sampled tokens.
    """

    parent: str
    root: str
    turns: int
    tokens: int
    uncertainty: float
    rise: float
    measure: Measure = "entropy"


class Parent(Record, frozen=True, omit_defaults=True):
    """The turn and call of another trajectory that created this one.

    trajectory: its id. turn: index of the turn, -1 if unknown. call: id of the call whose program requested this
    trajectory; a call that the parent's turns lack belonged to an abandoned attempt; empty if none or several may have
    requested it. relation: subcall, of a program; subagent, of an agent with a URL of its own; fork, continues from
    there in another way; beside, in the same rollout, its place unknown.
    """

    trajectory: str
    turn: int
    call: str
    relation: Relation = "subcall"


class Origin(Record, frozen=True, omit_defaults=True):
    """The record of a file from which a trajectory was read.

    source: file and line, or number. format: the name of the transcript's format. record: the original, where nothing
    else holds it any more; as text where standard JSON cannot hold it.
    """

    source: str
    format: str
    record: object = None


class TrainingRecord(Record, frozen=True, omit_defaults=True):
    """Compact record of a rollout's arrays in a training step's loss.

    advantage: of the rollout, None where it was not trained on. advantages: (T,) per token, None where all equal it.
    mask: lengths of alternating runs of the loss mask, zeros first, None where the segments' kinds give it. weights:
    (T,) None where no token is weighed. staleness: age in steps of the oldest weights that sampled it, None where
    unknown. seconds: wall, from its group's start to its grade.
    """

    advantage: float | None = None
    advantages: tuple[float, ...] | None = None
    mask: tuple[int, ...] | None = None
    weights: tuple[float, ...] | None = None
    staleness: int | None = None
    seconds: float | None = None


class Trajectory(Record, frozen=True, omit_defaults=True):
    """A whole rollout, with its prompt, turns, reward and provenance.

    prompt: the model's input before its first turn; it belongs to no turn, so that an attempt at the first turn looks
    like any other. reward: None until graded and after an infrastructure fault. answer: the final answer that the
    grader read, None where the model gave none. origin: of one in an audit of transcripts. branch: of one that left
    another after some turns, which it holds too. returned: by its harness: the text that was graded in place of its
    last message, or the reward; or the answer that a program submitted; else None. parent: of a part of another
    trajectory's rollout, None at the root. children: trajectories made for this one, each with its own, by turn and
    id; files have them as lines before it. refused: model calls of its programs, and of its descendants', that a
    limit refused. selection: `kept`, or why a training step dropped it (`retcon.train.prompts.with_selections`); None
    elsewhere. grades: verdict of each judge, where its grader asks several (`livecodebench`: `lcb` and `strict`).
    expected: the task's right answer, cut to EXPECTED_LENGTH. reason: the grader's, a short phrase. training: record
    of its training step.
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
        """Yield its descendants, children before parents, then itself."""
        for child in self.children:
            yield from child.tree
        yield self

    @property
    def segments(self) -> Iterator[Segment]:
        """Yield the segments of prompt and turns; their concatenated ids are the whole history."""
        yield from self.prompt
        for turn in self.turns:
            yield from turn.segments

    @property
    def text(self) -> str:
        return "".join(s.text for s in self.segments)

    @property
    def calls(self) -> int:
        """Count the executed calls of the (purified) history."""
        return sum(len(t.observations) for t in self.turns)

    @property
    def failures(self) -> int:
        """Count the failed calls of the (purified) history."""
        return sum(t.failures for t in self.turns)

    @property
    def raw_calls(self) -> int:
        """Count the executed calls, abandoned attempts included."""
        return sum(len(a.observations) for t in self.turns for a in t.raw())

    @property
    def raw_failures(self) -> int:
        """Count the failed calls before purification."""
        return sum(a.failures for t in self.turns for a in t.raw())

    @property
    def shared_turns(self) -> int:
        """Count the first turns that were sampled for its parent branch; else 0."""
        return 0 if self.branch is None else self.branch.turns

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Return the turns that were sampled for this trajectory itself."""
        return self.turns[self.shared_turns :]

    @property
    def raw_seconds(self) -> float:
        """Sum the wall seconds of its own executed calls, abandoned attempts included."""
        return math.fsum(o.seconds for t in self.own_turns for a in t.raw() for o in a.observations)

    @property
    def sampled_tokens(self) -> int:
        """Count the tokens generated for this trajectory, abandoned attempts included."""
        return sum(len(s.ids or ()) for t in self.own_turns for a in t.raw() for s in a.generated)


def is_repaired(trajectory: Trajectory) -> bool:
    """Return whether a purifier replaced one of its turns."""
    return any(t.repair is not None and t.repair.decision in REPLACED for t in trajectory.turns)


for _kind in Record.__subclasses__():
    _kind.__dataclass_fields__ = {f.name: f for f in fields(make_dataclass(_kind.__name__, _kind.__struct_fields__))}


@dataclass(frozen=True, slots=True)
class Sample:
    """The token arrays of a trajectory that training uses.

    ids: (T,). mask: (T,) 1 on trained ids. logprobs: (T,) nats, None where mask is 0. spliced: (T,) 1 on spliced ids.
    advantages: (T,), or None before they are known. weights: (T,) factor of a token's loss, None for 1; None as a whole
    where nothing is weighed. reference: (T,) nats, log-probs under the reference policy, None without one. source: id
    of the trajectory, for errors. tree: the id of the root of its tree, whose prefix is computed once for all of them;
    empty for none. margin: of a rejected call, by how much it is less likely than its replacement (`rl.dpo_beta`).
    Equality ignores source, tree and margin.
    predicted: (T,) 1 on ids of tool outputs that the model is trained to predict (`rl.echo`), None for none.
    hindsights: turns with a failed call, in the context of a teacher that knows the error (`rl.sdpo`).
    scale: its weight in the means of a minibatch, numerators and denominators alike.
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
        """Return (T,) 1 on ids whose log-probs the loss reads: in the mask, or predicted."""
        if self.predicted is None:
            return self.mask
        return tuple(map(max, self.mask, self.predicted))


@dataclass(frozen=True, slots=True)
class Hindsight:
    """A sample's turn in the context of its call's error. start: its index in the sample."""

    start: int
    sample: Sample


ANYTHING: Mapping[str, object] = {"type": "object"}
"""The schema that accepts every object of arguments."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Tool description for the model. parameters: JSON schema of its arguments. recorded: the tool's original object in
    a transcript, passed to templates unchanged."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: ANYTHING, hash=False)
    recorded: Mapping[str, object] | None = field(default=None, hash=False)

    def as_function(self) -> dict[str, object]:
        """Return the tool in the format of chat templates and OpenAI's API."""
        if self.recorded is not None:
            return dict(self.recorded)
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


Message = Mapping[str, object]
Written = str | tuple[Message, ...]
"""Rendered text, template included; or chat messages, each with `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One side of a preference pair.

    ids: (T,) token ids, None where only text is known. mask: (T,) 1 on the tokens that the loss counts, None where
    unknown, so that all of the completion counts.
    """

    written: Written
    ids: tuple[int, ...] | None = None
    mask: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and (self.ids is None or len(self.mask) != len(self.ids)):
            raise ValueError(f"a mask of {len(self.mask)} for {counted(len(self.ids or ()), 'token')}")


@dataclass(frozen=True, slots=True)
class Pair:
    """A preference pair of DPO (arXiv 2305.18290): training makes `chosen` likelier than `rejected`.

    id: names the pair's source. prompt, chosen and rejected are all text or all messages. prompt_ids: (T,), None
    where only text is known. about: further columns for the file, such as the similarity of the two; their names must
    differ from the format's own (`retcon.store.jsonl`).
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
    """Return the concatenated ids of segments, (T,); a text-only one adds none."""
    return tuple(i for s in segments for i in s.ids or ())


def token_count(segments: Iterable[Segment]) -> int:
    """Count the ids of segments; a text-only one has none."""
    return sum(len(s.ids or ()) for s in segments)


def history_ids(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the trajectory's ids, (T,), exactly as the engine saw them.

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
    """Return a trajectory's sample; the mask is 1 on `sampled` and `spliced` ids, else 0.

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
    """Counts of first tries. made: turns that called and did not follow a failure. failed: those with a failed call."""

    made: int
    failed: int

    @property
    def rate(self) -> float | None:
        """Return the share that failed; None without first tries."""
        return self.failed / self.made if self.made else None


def count_first_tries(trajectory: Trajectory) -> FirstTries:
    """Count the first tries of a trajectory as sampled, before any repairs.

    An attempt right after a failed one, in the history or in a lookahead, is a repair and not a first try; so that the
    figure means the same with purification and without. Turns shared with a parent branch count there.
    """
    made = failed = 0
    repairing = False
    for number, turn in enumerate(trajectory.turns):
        for attempt in turn.raw():
            fails = attempt.failures > 0
            if number >= trajectory.shared_turns and attempt.observations and not repairing:
                made += 1
                failed += fails
            if attempt.observations:  # an attempt without a call, cut off or answering, does not undo the failure
                repairing = fails
        repairing = turn.failures > 0  # the next turn follows what was committed
    return FirstTries(made, failed)
