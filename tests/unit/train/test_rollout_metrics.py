"""What a step's rollouts say, counted by hand."""

from dataclasses import replace

import pytest

from playing import call, play
from retcon.core.types import Observation, Segment, ToolCall, Turn
from retcon.purify.saar import Saar
from retcon.purify.splice import purify
from retcon.train.watch.rollout_metrics import rollout_metrics


def attempt(code, status, *, start):
    text = call(code)
    made = ToolCall("0", "python", {"code": code}, char=0, start=start)
    return Turn((Segment("sampled", text, tuple(text.encode())),), (made,), (Observation("0", "", status),), "call")


def test_repairs_are_counted_by_decision_and_those_that_could_not_be_cut():
    outcomes = {"print(x)": "error", "fail()": "error"}
    shallow = play([call("print(x)"), call("print(y)"), "42"], outcomes, repair=Saar()).trajectory
    unrepaired = play([call("print(x)"), call("fail()"), "42"], outcomes, repair=Saar(attempts=1)).trajectory
    uncut = purify([attempt("print(x)", "error", start=None), attempt("print(y)", "ok", start=0)], 0.5)
    unaligned = replace(shallow, turns=(uncut,))
    group = [replace(t, reward=r) for t, r in ((shallow, 1.0), (unrepaired, 0.0), (unaligned, 1.0))]
    metrics = rollout_metrics([group, [replace(shallow, reward=None)]])
    counted = {name: metrics[name] for name in ("shallow", "deep", "unrepaired", "answered", "unaligned")}
    assert counted == {"shallow": 2, "deep": 1, "unrepaired": 1, "answered": 0, "unaligned": 1}
    assert (metrics["rollouts"], metrics["infrastructure"]) == (4, 1)
    assert metrics["raw_failures"] == pytest.approx((1 + 2 + 1) / 3)
    assert metrics["failures"] == pytest.approx((0 + 1 + 0) / 3)
    assert metrics["raw_calls"] == pytest.approx((2 + 2 + 2) / 3)
    assert metrics["pass_rate"] == pytest.approx(2 / 3)
    everything = [*group, shallow]  # the one without a reward was sampled as well
    assert metrics["sampled_tokens"] == sum(t.sampled_tokens for t in everything)
    learnt = [s for t in group for s in t.segments if s.kind in ("sampled", "spliced")]
    spliced = sum(len(s.ids) for s in learnt if s.kind == "spliced")
    assert metrics["spliced_share"] == pytest.approx(spliced / sum(len(s.ids) for s in learnt))
