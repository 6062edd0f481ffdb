"""Turns with a failed call as a teacher that knows the error is shown them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from playing import LIMITS, call, play
from retcon.core.types import Observation, Segment, ToolCall, Trajectory, Turn, to_sample
from retcon.models.devices import DEFAULT_COMPUTING
from retcon.train.algorithms.dapo import Dapo
from retcon.train.objective.contrast import make_hindsights, with_hindsight
from retcon.train.update import to_samples, update

BAD, GOOD, DONE = "print(6 * valu)", "print(6 * value)", "It is 42."


def test_the_teacher_reads_the_answer_before_the_turn_and_not_the_failed_call() -> None:
    p = play([call("1"), call(BAD, "So. "), call(GOOD), DONE], {BAD: "error"})
    (found,) = make_hindsights(p.trajectory)
    whole, failed = to_sample(p.trajectory), p.turns[1]
    written = tuple(i for s in failed.generated for i in s.ids or ())
    answer = tuple(i for s in failed.segments if s not in failed.generated for i in s.ids or ())
    assert whole.ids[found.start : found.start + len(written)] == written
    assert found.sample.ids == (*whole.ids[: found.start], *answer, *written)
    assert found.sample.mask == (0,) * (found.start + len(answer)) + (1,) * len(written)


def test_a_last_turn_has_no_teacher() -> None:
    p = play([call(BAD)] * 2, {BAD: "error"}, limits=replace(LIMITS, max_turns=2))
    assert [one.start for one in make_hindsights(p.trajectory)] == [sum(len(s.ids or ()) for s in p.trajectory.prompt)]


def rollout(logprobs: tuple[float, ...] = (-3.0, -4.0), last: float = -2.0) -> Trajectory:
    """Prompt 1, 2; a failed turn 3, 4, answered by 5; a turn 6."""
    failed = Turn(
        (Segment("sampled", "a", (3, 4), logprobs), Segment("observation", "o", (5,))),
        (ToolCall("c", "python", {}, 0),),
        (Observation("c", "o", "error"),),
        stop="call",
    )
    turns = (failed, Turn((Segment("sampled", "b", (6,), (last,)),)))
    return Trajectory("t/0", "t", (Segment("prompt", "p", (1, 2)),), turns)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=11, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
            num_key_value_heads=1, head_dim=16, max_position_embeddings=16,
        )
    ).eval()  # fmt: skip


def test_an_advantage_is_what_the_teacher_adds_to_a_log_prob_within_the_limit(model: Qwen3ForCausalLM) -> None:
    samples = to_samples([rollout()], [0.5], Dapo(sdpo=2.0))
    logprobs = model(torch.tensor([[1, 2, 5, 3, 4]])).logits[0].log_softmax(-1)
    gaps = (logprobs[2, 3] + 3.0).item(), (logprobs[3, 4] + 4.0).item()
    (found,), metrics = with_hindsight(model, samples, DEFAULT_COMPUTING, weight=2.0, limit=1.0)
    expected = [2.0 * max(-1.0, min(1.0, gap)) for gap in gaps]
    assert found.advantages == pytest.approx((0.5, 0.5, *expected, 0.5, 0.5), rel=1e-5)
    assert metrics == {"sdpo_tokens": 2, "sdpo_gap": pytest.approx(sum(gaps) / 2, rel=1e-5)}


def test_a_failed_turn_is_learnt_from_in_a_group_without_an_advantage(model: Qwen3ForCausalLM) -> None:
    found = model(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits[0].log_softmax(-1)
    one = replace(rollout((found[1, 3].item(), found[2, 4].item()), found[4, 6].item()), stop="length")
    for config, moves in ((Dapo(), False), (Dapo(sdpo=1.0), True), (Dapo(sdpo=1.0, truncated="mask"), False)):
        trained = copy.deepcopy(model)
        samples = to_samples([one], [0.0], config)
        update(trained, torch.optim.SGD(trained.parameters()), samples, config, seed=0, step=1)
        before = model.state_dict()
        assert any(not torch.equal(v, before[k]) for k, v in trained.state_dict().items()) == moves
