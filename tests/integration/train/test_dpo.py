"""Preference training: the loss by hand, its gradient, what is compared, and what is refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import DPOSection
from retcon.core.errors import RecordError, TaskWarning, TrainingDiverged
from retcon.core.types import Completion, Pair, Sample
from retcon.models import devices, placing
from retcon.models.devices import Computing
from retcon.store.jsonl import write_pairs
from retcon.train import dpo as module
from retcon.train.batch import collate
from retcon.train.datasets.preferences import Preference, read_preferences
from retcon.train.dpo import dpo_loss, dpo_step, run_dpo, sum_logprobs
from retcon.train.kernels.logprobs import token_logprobs
from training import make_base

pytestmark = pytest.mark.torch
TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER)


def test_the_loss_is_the_papers():
    chosen, rejected = torch.tensor([-3.0, -5.0]), torch.tensor([-4.0, -2.0])
    reference = torch.tensor([-3.5, -5.0]), torch.tensor([-3.0, -4.0])
    loss, margins = dpo_loss(chosen, rejected, reference=reference, beta=0.5)
    by_hand = [0.5 * ((-3 + 3.5) - (-4 + 3)), 0.5 * ((-5 + 5) - (-2 + 4))]
    assert margins.tolist() == pytest.approx(by_hand)
    assert loss.item() == pytest.approx(sum(math.log(1 + math.exp(-m)) for m in by_hand) / 2)


def test_where_the_policy_is_its_reference_nothing_is_known():
    same = torch.tensor([-3.0, -7.0])
    loss, margins = dpo_loss(same, same - 1, reference=(same, same - 1), beta=0.1)
    assert loss.item() == pytest.approx(math.log(2))
    assert margins.tolist() == [0.0, 0.0]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=31, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=1,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=64, tie_word_embeddings=True,
        )
    ).eval()  # fmt: skip


def sample(first: int, length: int, learnt: int) -> Sample:
    ids = tuple((first + 7 * i) % 31 for i in range(length))
    return Sample(ids, (0,) * (length - learnt) + (1,) * learnt, (None,) * length, (0,) * length)


PAIRS = [Preference(sample(1, 9, 4), sample(2, 12, 5)), Preference(sample(3, 20, 3), sample(4, 7, 2))]


def direct(model, reference: torch.Tensor, beta: float) -> torch.Tensor:
    """The loss of PAIRS, each sample alone in one plain forward."""
    sums = []
    for pair in PAIRS:
        for one in (pair.chosen, pair.rejected):
            batch = collate([one])
            sums.append(token_logprobs(model, batch.ids, batch.mask).sum())
    found = torch.stack(sums).view(-1, 2)
    return dpo_loss(found[:, 0], found[:, 1], reference=(reference[:, 0], reference[:, 1]), beta=beta)[0]


@pytest.mark.parametrize("computing", [Computing(), Computing(micro_batch_tokens=8), Computing(share_prompts=False)])
def test_the_step_is_down_the_gradient_of_the_loss_however_it_is_cut(model, computing):
    reference = torch.tensor([[-14.0, -15.0], [-9.0, -8.0]])
    section = DPOSection(beta=0.3, lr=0.1, warmup=0.0, steps=2, max_grad_norm=1e9)
    stepped, plain = copy.deepcopy(model), copy.deepcopy(model)
    metrics = dpo_step(
        stepped, torch.optim.SGD(stepped.parameters()), PAIRS, reference, section, step=0, computing=computing
    )
    loss = direct(plain, reference, 0.3)
    loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in plain.named_parameters():
        wanted = parameter.detach() - metrics["lr"] * parameter.grad
        torch.testing.assert_close(stepped.get_parameter(name).detach(), wanted, atol=1e-6, rtol=1e-4)
    assert max(p.grad.abs().max() for p in plain.parameters()) > 1e-3
    norm = torch.stack([parameter.grad.norm() for parameter in plain.parameters()]).norm()
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    samples = [s for pair in PAIRS for s in (pair.chosen, pair.rejected)]
    with torch.no_grad():
        before, after = (sum_logprobs(m, samples, Computing()).view(-1, 2) for m in (model, stepped))
    margin = (after - before)[:, 0] - (after - before)[:, 1]
    assert (margin > 0).all(), "the chosen gain on the rejected"


def test_the_figures_of_a_step_are_those_before_it(model):
    samples = [s for pair in PAIRS for s in (pair.chosen, pair.rejected)]
    with torch.no_grad():
        policy = sum_logprobs(model, samples, Computing()).view(-1, 2)
    section = DPOSection(beta=0.3, lr=0.1, warmup=0.0, steps=2, max_grad_norm=1e9)

    def figures(reference: torch.Tensor) -> dict[str, float]:
        trained = copy.deepcopy(model)
        return dpo_step(trained, torch.optim.SGD(trained.parameters()), PAIRS, reference, section, step=0)

    level = figures(policy)
    assert (level["accuracy"], level["margin"]) == (0.0, 0.0), "a margin of nothing is not positive"
    found = figures(policy - torch.tensor([[2.0, 1.0], [4.0, 1.0]]))
    assert (found["chosen"], found["rejected"]) == pytest.approx((0.3 * 3, 0.3 * 1), rel=1e-4)
    assert (found["accuracy"], found["margin"]) == (1.0, pytest.approx(0.3 * 2, rel=1e-4))


def test_a_step_that_diverges_is_named(model):
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(broken.model.norm.weight, math.nan)
    with pytest.raises(TrainingDiverged, match="step 3: the loss is nan"):
        dpo_step(broken, torch.optim.SGD(broken.parameters()), PAIRS, torch.zeros(2, 2), DPOSection(), step=2)


def test_dropout_plays_no_part():
    sizes = {"vocab_size": 31, "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 1}
    dropping = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.5, embd_pdrop=0.5)).train()
    section = DPOSection(lr=1e-12)
    one, other = (
        dpo_step(dropping, torch.optim.SGD(dropping.parameters()), PAIRS, torch.zeros(2, 2), section, step=0)["margin"]
        for _ in range(2)
    )
    assert one == pytest.approx(other, abs=1e-6)


def read(tmp_path: Path, *rows: object, **how: int) -> list[Preference]:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_preferences(file, CHAT, **{"vocabulary": TOKENIZER.size, **how})


def compared(sample: Sample) -> tuple[str, str]:
    """What stands before what is compared, and that."""
    parts = [[i for i, m in zip(sample.ids, sample.mask, strict=True) if m == wanted] for wanted in (0, 1)]
    return TOKENIZER.decode(parts[0]), TOKENIZER.decode(parts[1])


CALL = {"function": {"name": "python", "arguments": '{"code": "print(1)"}'}}
ANSWERS = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
ASKED = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]


def test_messages_are_compared_from_the_call_on_in_the_models_own_words(tmp_path):
    chosen = [{"role": "assistant", "content": "I try.", "tool_calls": [CALL]}]
    rejected = [{"role": "assistant", "content": "I try.\n```python\nprint(\n```"}]
    (pair,) = read(tmp_path, {"prompt": ASKED, "chosen": chosen, "rejected": rejected})
    before = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nI try.\n"
    assert compared(pair.chosen) == (before, "```python\nprint(1)\n```<|im_end|>")
    assert compared(pair.rejected) == (before, "```python\nprint(\n```<|im_end|>")


def test_ids_and_masks_of_our_own_pairs_are_taken_as_they_are(tmp_path):
    pair = Pair("p", "ab", Completion("cd", (99, 100), (0, 1)), Completion("e", (101,)), (97, 98))
    write_pairs(tmp_path / "pairs.jsonl", [pair])
    (found,) = read_preferences(tmp_path / "pairs.jsonl", CHAT, vocabulary=TOKENIZER.size)
    assert (found.chosen.ids, found.chosen.mask) == ((97, 98, 99, 100), (0, 0, 0, 1))
    assert (found.rejected.ids, found.rejected.mask) == ((97, 98, 101), (0, 0, 1))


ROW = {"prompt": "U", "chosen": "good", "rejected": "bad"}


def test_pairs_with_nothing_to_tell_apart_are_counted(tmp_path):
    with pytest.warns(TaskWarning, match=r"pairs\.jsonl: both sides of 1 of 2 pairs are the same: nothing is learnt"):
        read(tmp_path, ROW, {**ROW, "rejected": "good"})


def test_an_id_that_nothing_predicts_is_not_compared(tmp_path):
    (pair,) = read(tmp_path, {**ROW, "prompt": ""})
    assert (pair.chosen.mask, pair.rejected.mask) == ((0, 1, 1, 1), (0, 1, 1))


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"messages": ASKED}, "line 2: not a pair: it needs prompt, chosen and rejected"),
        ({**ROW, "chosen": ASKED}, "line 2: prompt, chosen and rejected must all be text, or all be lists"),
        ({**ROW, "system": "S"}, "line 2: 'system' beside a prompt that is text"),
        ({**ROW, "rejected": ""}, "line 2: a side of the pair is empty"),
        ({"prompt": ASKED, "chosen": [], "rejected": []}, "line 2: no message of the model"),
        ({**ROW, "tokens": {"prompt": [1], "chosen": [2], "chosen_mask": [1, 1], "rejected": [3]}}, "a mask of 2"),
        ({**ROW, "tokens": {"prompt": [1], "chosen": [999], "rejected": [3]}}, "line 2: id 999"),
        ({**ROW, "tokens": {"prompt": [1], "chosen": [2], "rejected": [999]}}, "line 2: id 999"),
        ({**ROW, "tokens": {"prompt": [1], "rejected": [3]}}, "line 2: tokens.prompt and tokens.chosen must be lists"),
        ({"prompt": ["U"], **ANSWERS}, "line 2: no transcript"),
    ],
)
def test_what_is_no_pair_is_refused_by_line(tmp_path, row, part):
    with pytest.raises(RecordError, match=part):
        read(tmp_path, ROW, row)


def test_long_pairs_are_counted_and_left_out(tmp_path):
    with pytest.warns(TaskWarning, match=r"pairs\.jsonl: 1 of 2 pairs are longer than the model's 20 positions"):
        assert len(read(tmp_path, ROW, {**ROW, "chosen": "x" * 30}, max_tokens=20)) == 1
    with pytest.raises(RecordError, match="holds no pair"):
        read(tmp_path)


def test_a_run_draws_every_pair_once_an_epoch_and_compares_it_with_its_own_reference(tmp_path, monkeypatch):
    base = make_base(tmp_path / "base")
    rows = [{**ROW, "prompt": f"U{n}" * (n + 1)} for n in range(4)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn: list[tuple[int, ...]] = []
    step = module.dpo_step
    monkeypatch.setattr(module, "dpo_step", lambda model, optimizer, pairs, *more, **named: (
        drawn.append(tuple(len(pair.chosen.ids) for pair in pairs)), step(model, optimizer, pairs, *more, **named)
    )[1])  # fmt: skip

    def run(seed: int) -> tuple[list[tuple[int, ...]], list[float]]:
        drawn.clear()
        keys = ["dpo.steps=4", "dpo.batch=2", "dpo.lr=1e-12", "compute.device=cpu", f"run.seed={seed}"]
        lines: list[dict[str, float]] = []
        run_dpo(load_recipe(None, keys), tmp_path / "pairs.jsonl", base, tmp_path / f"{seed}", on_step=lines.append)
        return list(drawn), [abs(line["chosen"]) + abs(line["rejected"]) for line in lines]

    first, apart = run(0)
    assert sorted(first[0] + first[1]) == sorted(first[2] + first[3])
    assert len({*first[0], *first[1]}) == 4
    assert max(apart) < 1e-5, "a policy that stays where it was is its reference"
    assert run(1)[0] != first


def test_a_run_gets_no_advice_on_rollouts_of_which_it_makes_none(tmp_path, monkeypatch):
    base = make_base(tmp_path / "base")
    (tmp_path / "pairs.jsonl").write_text(json.dumps(ROW) + "\n")
    monkeypatch.setattr(placing, "look_at_machine", lambda: devices.Machine("Intel Xeon", 0.5, cores=64))
    keys = ["dpo.steps=1", "dpo.batch=1", "compute.dtype=bfloat16", "compute.rollout_dtype=bfloat16"]
    places = []
    run_dpo(load_recipe(None, keys), tmp_path / "pairs.jsonl", base, tmp_path / "out", on_place=places.append)
    ((hint,),) = (place.hints for place in places)
    assert "compute.dtype=float32" in hint
