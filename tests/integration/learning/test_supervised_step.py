"""A step of supervised training written plainly beside it, what is held out of it, and what it draws at random."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from retcon.config.schema import DPOSection, SFTSection
from retcon.core.errors import RecipeError, TaskWarning, TrainingDiverged
from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.store import jsonl
from retcon.train import sft as module
from retcon.train.batch import collate
from retcon.train.datasets.preferences import Preference
from retcon.train.dpo import dpo_step
from retcon.train.kernels.logprobs import token_logprobs
from retcon.train.sft import mean_loss, run_sft, sft_step, split_validation
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch
WAYS = [Computing(), Computing(micro_batch_tokens=8)]


def model(dropout: float = 0.0, attention: float = 0.0) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": attention}
    return GPT2LMHeadModel(GPT2Config(vocab_size=31, n_embd=32, n_layer=1, n_head=2, n_positions=64, **rates))


def sample(length: int, learnt: int, first: int = 1) -> Sample:
    ids = tuple((first + 7 * i) % 31 for i in range(length))
    return Sample(ids, (0,) * (length - learnt) + (1,) * learnt, (None,) * length, (0,) * length)


SAMPLES = [sample(9, 4), sample(13, 6, 3), sample(7, 1, 5)]


def by_hand(of: GPT2LMHeadModel) -> torch.Tensor:
    """-log π, the mean over all learnt ids of SAMPLES."""
    batch = collate(SAMPLES)
    return -token_logprobs(of, batch.ids, batch.mask).sum() / 11


@pytest.mark.parametrize("computing", WAYS)
def test_every_learnt_id_of_a_batch_weighs_the_same_however_it_is_cut(computing: Computing) -> None:
    stepped, plain = model(), model()
    section = SFTSection(lr=0.1, warmup=0.0, steps=2, max_grad_norm=1e9)
    sgd = torch.optim.SGD(stepped.parameters())
    found = sft_step(stepped, sgd, SAMPLES, section, 0, computing=computing)
    loss = by_hand(plain)
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (found["tokens"], found["lr"]) == (11, 0.1)
    norm = torch.stack([p.grad.norm() for p in plain.parameters() if p.grad is not None]).norm()
    assert found["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.detach() - 0.1 * parameter.grad
        torch.testing.assert_close(stepped.get_parameter(name).detach(), wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("computing", WAYS)
def test_by_sequences_a_long_sample_weighs_as_much_as_a_short_one(computing: Computing) -> None:
    plain, batch = model(), collate(SAMPLES)
    means = -token_logprobs(plain, batch.ids, batch.mask).sum(dim=1) / torch.tensor([4, 6, 1])
    section, sgd = SFTSection(aggregate="sequence"), torch.optim.SGD(plain.parameters())
    assert sft_step(plain, sgd, SAMPLES, section, 0, computing=computing)["loss"] == pytest.approx(means.mean().item())


@pytest.mark.parametrize("computing", WAYS)
def test_a_loss_that_is_measured_is_that_of_a_step_without_dropout(computing: Computing) -> None:
    dropping = model(0.5).train()
    with torch.no_grad():
        wanted = by_hand(copy.deepcopy(dropping).eval()).item()
    assert mean_loss(dropping, SAMPLES, computing) == pytest.approx(wanted, rel=1e-5)
    assert dropping.training
    assert not any(p.grad is not None for p in dropping.parameters())


@pytest.mark.parametrize("rates", [(0.5, 0.0), (0.0, 0.5)], ids=["of layers", "of attention"])
def test_a_step_drops_out_whatever_was_measured_before(rates: tuple[float, float]) -> None:
    dropping = model(*rates)
    mean_loss(dropping.eval(), SAMPLES, Computing())
    sgd, section = torch.optim.SGD(dropping.parameters()), SFTSection(lr=1e-12)
    one, other = (sft_step(dropping, sgd, SAMPLES, section, 0)["loss"] for _ in range(2))
    assert one != pytest.approx(other, rel=1e-3)


def test_a_share_is_held_out_by_content_and_seed() -> None:
    samples = [sample(9, 4, n) for n in range(20)]
    learnt, held = split_validation(samples, 0.3, 0)
    assert (len(learnt), len(held)) == (14, 6)
    assert {s.ids for s in learnt}.isdisjoint(s.ids for s in held)
    assert split_validation(samples[::-1], 0.3, 0)[1] == held[::-1], "whatever their order in the file"
    assert split_validation(samples, 0.3, 1)[1] != held
    assert [len(side) for side in split_validation(samples, 0.01, 0)] == [19, 1], "one at least"
    assert [len(side) for side in split_validation(samples, 0.0, 0)] == [20, 0]
    twice, held_twice = split_validation([*samples, *samples], 0.3, 0)
    assert {s.ids for s in twice}.isdisjoint(s.ids for s in held_twice), "those that are alike are on one side"
    with pytest.raises(RecipeError, match=r"sft\.validation_share = 0\.3: of 2 demonstrations none is left"):
        split_validation(samples[:1] * 2, 0.3, 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    make_demonstrations(make_base(folder / "base"), folder / "demonstrations.jsonl")
    return folder


def test_a_share_that_leaves_nothing_to_learn_from_is_refused_before_there_is_a_run(
    world: Path, tmp_path: Path
) -> None:
    """Else the folder would be that of a run with this share, and refuse another."""
    jsonl.write(tmp_path / "one.jsonl", islice(jsonl.read(world / "demonstrations.jsonl"), 1))
    with pytest.raises(RecipeError, match="of 1 demonstration none is left for training"):
        run_sft(small_recipe(world / "base", sft={"validation_share": 0.5}), tmp_path / "one.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def steps_of(
    world: Path, out: Path, monkeypatch: pytest.MonkeyPatch, seed: int = 0, **section: object
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of a run what each step was given, and its line."""
    seen: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    step = module.sft_step

    def watched(of: Any, optimizer: Any, samples: Any, *more: Any, **named: Any) -> dict[str, float]:
        betas = {group["betas"] for group in optimizer.param_groups}
        seen.append({"betas": betas, "samples": samples, "random": torch.initial_seed()})
        return step(of, optimizer, samples, *more, **named)

    monkeypatch.setattr(module, "sft_step", watched)
    recipe = small_recipe(world / "base", sft=section, run={"seed": seed})
    run_sft(recipe, world / "demonstrations.jsonl", out, on_step=lambda line: lines.append(dict(line)))
    monkeypatch.undo()
    return seen, lines


def test_what_is_held_out_is_measured_and_never_learnt(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[Sample]] = []
    measure = module.mean_loss
    monkeypatch.setattr(module, "mean_loss", lambda of, samples, how: (
        measured.append(samples), measure(of, samples, how)
    )[1])  # fmt: skip
    sections = {"steps": 2, "batch": 21, "lr": 1e-12, "validation_share": 0.3, "validate_every": 1}
    seen, lines = steps_of(world, tmp_path / "out", monkeypatch, **sections)
    shown = [tuple(i for s in t.segments for i in s.ids or ()) for t in jsonl.read(world / "demonstrations.jsonl")]
    ids, plain = set(shown), [Sample(i, (0,) * len(i), (None,) * len(i), (0,) * len(i)) for i in shown]
    learnt, held = ({s.ids for s in samples} for samples in (seen[0]["samples"], measured[0]))
    assert learnt.isdisjoint(held)
    assert len(held) >= 2
    assert learnt | held == ids
    assert held == {s.ids for s in split_validation(plain, 0.3, 0)[1]}, "by the seed of the run"
    assert all("validation_loss" in line for line in lines)


def test_a_run_leaves_out_what_its_model_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions beyond those that it knows mean nothing to it, and no error says so."""
    base = make_base(tmp_path / "base", positions=40)
    demonstrations = make_demonstrations(base, tmp_path / "demonstrations.jsonl")
    lengths = [sum(len(s.ids or ()) for s in t.segments) for t in jsonl.read(demonstrations)]
    assert min(lengths) <= 40 < max(lengths)
    with pytest.warns(TaskWarning, match=rf"{sum(n > 40 for n in lengths)} of 30 demonstrations are longer than the"):
        seen, _ = steps_of(tmp_path, tmp_path / "out", monkeypatch, steps=3)
    assert max(len(sample.ids) for one in seen for sample in one["samples"]) <= 40


def test_dropout_and_order_are_drawn_by_the_seed_of_the_run(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, drawn = [], []
    for n, seed in enumerate((0, 0, 1)):
        seen, _ = steps_of(world, tmp_path / str(n), monkeypatch, seed, steps=3, batch=2)
        found.append([one["random"] for one in seen])
        drawn.append([[sample.ids for sample in one["samples"]] for one in seen])
        assert {betas for one in seen for betas in one["betas"]} == {(0.9, 0.95)}, "AdamW's, of supervised training"
    assert found[0] == found[1]
    assert len({*found[0], *found[2]}) == 6
    assert drawn[0] == drawn[1] != drawn[2], "as is the order of the demonstrations"


def test_the_rate_of_preference_training_falls_in_a_cosine() -> None:
    """Of 4 steps without a warm-up but the one that there always is."""
    pairs, trained = [Preference(SAMPLES[0], SAMPLES[1])], model()
    section = DPOSection(lr=0.1, warmup=0.0, steps=4)
    sgd = torch.optim.SGD(trained.parameters())
    rates = [dpo_step(trained, sgd, pairs, torch.zeros(1, 2), section, step=step)["lr"] for step in range(4)]
    assert rates == pytest.approx([0.1, 0.1, 0.075, 0.025])


@pytest.mark.parametrize("kind", ["supervised", "preferences"])
def test_a_gradient_that_is_no_number_is_reported_with_its_step_and_moves_nothing(kind: str) -> None:
    """The loss is one all the same."""
    broken = model()
    before = copy.deepcopy(broken.state_dict())
    next(broken.parameters()).register_hook(lambda gradient: gradient * math.inf)
    sgd, pairs = torch.optim.SGD(broken.parameters()), [Preference(SAMPLES[0], SAMPLES[1])]
    steps: dict[str, Callable[[], object]] = {
        "supervised": lambda: sft_step(broken, sgd, SAMPLES, SFTSection(), 3),
        "preferences": lambda: dpo_step(broken, sgd, pairs, torch.zeros(1, 2), DPOSection(), step=3),
    }
    with pytest.raises(TrainingDiverged, match=r"^step 4: the gradient norm is (inf|nan)$"):
        steps[kind]()
    assert all(torch.equal(before[name], tensor) for name, tensor in broken.state_dict().items())
