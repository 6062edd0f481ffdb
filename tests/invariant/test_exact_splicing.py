"""Token-exact splicing with the local engine: log-probs after rollbacks equal a fresh forward over all ids."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from playing import LIMITS, TASK, run_python
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.types import Trajectory, history_ids, to_sample
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.purify.saar import Saar
from retcon.purify.splice import splice_weights
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_group
from retcon.tools.scripted import ScriptedSessions
from scripts import SETTING, calls

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from exact_trees import Found, check_trees  # benchmarks/exact_trees.py

pytestmark = pytest.mark.torch
TOKENIZER = ByteTokenizer()
END = TOKENIZER.special_id("<|im_end|>")


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=16, max_position_embeddings=2048, tie_word_embeddings=True,
                initializer_range=0.3,
            )
        ).eval()  # fmt: skip


class Dictated:
    """The local engine, told what to write: its keys, values and log-probs are its own. After the script, it writes."""

    def __init__(self, engine: LocalEngine, scripts: Sequence[Sequence[str]]) -> None:
        self._engine = engine
        self._left = {f"{TASK.id}/0/{n}": list(script) for n, script in enumerate(scripts)}

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        left = self._left[request_id]
        if not left:
            return await self._engine.generate(request_id, ids, params)
        written = (*TOKENIZER.encode(left.pop(0)), END)
        return Generation(written, tuple(await self._engine.score(request_id, [*ids, *written], len(ids))), "stop")

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        return await self._engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        await self._engine.release(request_id)


def roll_out(model: Qwen3ForCausalLM, scripts: Sequence[Sequence[str]], repair: Saar) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        async with LocalEngine(model, max_len=2048, max_requests=4) as engine:
            tools = {"python": ScriptedSessions(run_python)}
            sampling = SamplingParams(max_tokens=12)
            context = RolloutContext(Dictated(engine, scripts), Chat(TOKENIZER), tools, LIMITS, sampling, repair)
            return await rollout_group(
                TASK, context, count=len(scripts), seed=1, step=0, grade=lambda _, trajectory: trajectory
            )

    return asyncio.run(run())


def fresh(model: Qwen3ForCausalLM, ids: Sequence[int]) -> list[float]:
    """Log-probs of ids[1:], (T - 1,), by one forward with nothing cached."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None]).squeeze(1).tolist()


one_script = st.lists(calls(SETTING), min_size=1, max_size=6)
repairs = st.builds(
    Saar, st.sampled_from([3, 1]), st.sampled_from([0.5, 0.0, 1.0]), st.sampled_from(["all", "first", "latest"])
)


@settings(max_examples=8)
@given(st.lists(one_script, min_size=1, max_size=3), repairs)
def test_logprobs_are_those_of_a_fresh_scoring_of_the_purified_sequence(model, scripts, repair):
    for trajectory in roll_out(model, scripts, repair):
        sample = to_sample(trajectory)
        expected = [None, *fresh(model, history_ids(trajectory))]
        for found, logprob, learnt in zip(sample.logprobs, expected, sample.mask, strict=True):
            assert (found is not None) == learnt
            if learnt:
                assert found == pytest.approx(logprob, abs=2e-4)


def test_nodes_of_trees_are_scored_exactly_and_trained_once(model):
    """Children, repairs, branches, faults and cuts at random; `python benchmarks/exact_trees.py` has 500."""
    found = Found()
    for seed in range(8):
        check_trees(model, seed, found)
    assert found.errors == []
    assert found.worst < 1e-4
    assert found.fates.keys() >= {"trained", "rolled_back", "infrastructure"}
    assert min(found.branches, found.repaired) > 0


def test_a_spliced_id_is_another_under_the_purified_prefix_and_its_weight_says_how_much(model):
    bad, good = "```python\nx = 1 + nn\n```", "```python\nx = 1 + 2\n```"
    (trajectory,) = roll_out(model, [[f"Let me. {bad}", f"Not that. {good}"]], Saar())
    turn = trajectory.turns[0]
    assert turn.repair.decision == "shallow"
    spliced, was = turn.generated[1], turn.abandoned[-1].generated[0]
    before = [i for s in (*trajectory.prompt, turn.generated[0]) for i in s.ids]
    shown = [i for s in (*trajectory.prompt, *turn.abandoned[0].segments) for i in s.ids]
    under_purified = fresh(model, [*before, *spliced.ids])[-len(spliced.ids) :]
    under_lookahead = fresh(model, [*shown, *was.ids])[-len(spliced.ids) :]
    assert max(abs(a - b) for a, b in zip(under_purified, under_lookahead, strict=True)) > 0.1
    ratios = torch.tensor(under_purified).sub(torch.tensor(under_lookahead)).exp()
    weights = [w for w in splice_weights(trajectory, 1.5) if w is not None]
    torch.testing.assert_close(torch.tensor(weights), ratios.clamp(max=1.5), atol=1e-3, rtol=1e-3)
