"""Hypothesis strategies for trajectories that could have happened: prompt, turns, repairs, in consistent order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from retcon.core.types import (
    Branch,
    Cut,
    Kind,
    Observation,
    Origin,
    Provenance,
    RepairRecord,
    Segment,
    Status,
    Stop,
    ToolCall,
    Trajectory,
    Turn,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
logprobs = st.floats(min_value=-50, max_value=0)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
extras = st.just({}) | st.dictionaries(texts.map("x-{}".format), json_values, max_size=2)
FAILED: tuple[Status, ...] = ("error", "timeout", "limit", "malformed")


@st.composite
def segments(draw: st.DrawFn, kind: Kind, *, scored: bool = True, max_tokens: int = 5) -> Segment:
    """A segment with ids; `sampled` and `spliced` ones have log-probs, unless scored=False."""
    ids = tuple(draw(st.lists(st.integers(0, 300), min_size=1, max_size=max_tokens)))
    known = scored and kind in ("sampled", "spliced")
    values = tuple(draw(st.lists(logprobs, min_size=len(ids), max_size=len(ids)))) if known else None
    sampled_by = st.none() | st.lists(st.integers(0, 9), min_size=len(ids), max_size=len(ids)).map(tuple)
    versions = draw(sampled_by) if known and kind == "sampled" else None
    return Segment(kind, draw(texts), ids, values, versions, extra=draw(extras))


@st.composite
def call_turns(draw: st.DrawFn, call_id: str, *, fails: bool) -> Turn:
    """A sampled turn with one call and its observation."""
    sampled = draw(segments("sampled"))
    malformed = fails and draw(st.booleans())
    arguments = draw(texts) if malformed else {"code": draw(texts)}
    call = ToolCall(call_id, "python", arguments, len(sampled.text), draw(st.none() | st.just(0)), extra=draw(extras))
    status: Status = "ok" if not fails else "malformed" if malformed else draw(st.sampled_from(FAILED))
    seconds = draw(st.floats(min_value=0, max_value=60))
    error = draw(st.none() | st.just("NameError")) if fails else None
    judged = {"rule": draw(st.none() | st.just("traceback")), "line": draw(st.none() | st.just(0))} if fails else {}
    observation = Observation(call_id, draw(texts), status, error, seconds, **judged, extra=draw(extras))
    around = draw(segments("scaffold")), draw(segments("observation")), draw(segments("scaffold"))
    entropy = draw(st.none() | st.floats(0, 12))
    return Turn((sampled, *around), (call,), (observation,), "call", entropy=entropy, extra=draw(extras))


@st.composite
def repaired_turns(draw: st.DrawFn, call_id: str, *, scored: bool = True) -> Turn:
    """A turn after a repair: shallow or deep with its attempts abandoned, or unrepaired with those that followed."""
    failures = draw(st.lists(call_turns(call_id, fails=True), min_size=1, max_size=3))
    decision = draw(st.sampled_from(["shallow", "deep", "unrepaired"]))
    if decision == "unrepaired":
        record = RepairRecord("unrepaired", len(failures) - 1, extra=draw(extras))
        return replace(failures[0], abandoned=tuple(failures[1:]), repair=record)
    fix = draw(call_turns(call_id, fails=False))
    cut = tuple(Cut(0, draw(texts), draw(texts), extra=draw(extras)) for _ in range(draw(st.integers(0, 2))))
    fresh = draw(st.integers(0, len(failures) - 1))
    record = RepairRecord(decision, len(failures), draw(st.floats(0, 1)), draw(texts), fresh, cut, extra=draw(extras))
    kept = (draw(segments("sampled")),) if decision == "shallow" else ()
    spliced = (*kept, draw(segments("spliced", scored=scored)), *fix.segments[1:])
    return replace(fix, segments=spliced, abandoned=(*failures, fix), repair=record)


@st.composite
def turns(draw: st.DrawFn, call_id: str, *, scored: bool = True) -> Turn:
    if draw(st.booleans()):
        return draw(repaired_turns(call_id, scored=scored))
    return draw(call_turns(call_id, fails=draw(st.booleans())))


@st.composite
def branches(draw: st.DrawFn, turns: int) -> Branch:
    """Where a rollout of so many turns left another one."""
    shared, tokens = draw(st.integers(0, turns)), draw(st.integers(1, 99))
    nats = draw(st.floats(0, 12)), draw(st.floats(-12, 12))
    return Branch(
        "t0", draw(texts), shared, tokens, *nats, draw(st.sampled_from(["entropy", "surprisal"])), extra=draw(extras)
    )


@st.composite
def trajectories(draw: st.DrawFn, *, scored: bool = True) -> Trajectory:
    """A whole rollout. scored=False leaves spliced ids without log-probs, as a purifier hands them over."""
    count = draw(st.integers(0, 2))
    lived = [draw(turns(f"{n}.0", scored=scored)) for n in range(count)]
    stop: Stop = draw(st.sampled_from(["answer", "turns", "length", "infrastructure"]))
    if stop in ("answer", "length"):
        lived.append(Turn((draw(segments("sampled")),), stop=stop))
    whole = st.none() | st.integers(0, 9)
    provenance = Provenance(
        draw(whole), draw(whole), draw(whole), draw(st.none() | texts), draw(st.booleans()), extra=draw(extras)
    )
    reward = None if stop == "infrastructure" else draw(st.none() | st.sampled_from([-1.0, 0.0, 1.0]))
    answer = draw(texts) if stop == "answer" else None
    prompt = tuple(draw(st.lists(segments("prompt"), min_size=1, max_size=2)))
    origin = draw(st.none() | st.builds(Origin, texts, texts, json_values, extra=extras))
    branch = draw(st.none() | branches(len(lived)))
    returned = draw(st.none() | texts | st.floats(allow_nan=False, allow_infinity=False))
    selection = draw(st.none() | texts)
    more = {"origin": origin, "branch": branch, "returned": returned, "selection": selection, "extra": draw(extras)}
    more["grades"] = draw(st.none() | st.dictionaries(texts, st.booleans(), max_size=2))
    return Trajectory("t1", draw(texts), prompt, tuple(lived), reward, stop, provenance, answer, **more)
