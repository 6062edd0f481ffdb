"""The measurement behind a plan: what of it is timed, and what steps and evaluations are reckoned to take by that.

All is real but the clock. Of the tiny model's rollouts none comes to an end before its 16 tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.build import build_chat
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Sample
from retcon.models.placing import place_training, start_model
from retcon.rollout.lengths import count_prompt_ids
from retcon.tasks.types import Task
from retcon.train import measuring as module
from retcon.train.measuring import Measurement, measure_evaluation, measure_rl, measure_updates
from retcon.train.prompts import PromptStream
from retcon.train.rollouts import EngineWeights
from training import Graded, Ones, make_base

pytestmark = pytest.mark.torch
KEYS = ("compute.device=cpu", "sandbox.workers=1", "rollout.max_tokens=16", "rollout.max_turns=1", "run.seed=5",
        "rl.prompts=3", "rl.group=2", "rl.epochs=2")  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("measured") / "base")


@pytest.fixture(scope="module")
def written(base: Path) -> int:
    """Tokens of a rollout that the model writes."""
    return 16 - count_prompt_ids(build_chat(load_recipe(None, KEYS), base), Task("", "go", ""))


def sample(length: int) -> Sample:
    return Sample((1,) * length, (0, *[1] * (length - 1)), (None, *[-1.0] * (length - 1)), (0,) * length)


def at(monkeypatch: pytest.MonkeyPatch, *seconds: float, given: float = 60.0) -> None:
    """The looks at the clock that are to come. given: seconds that rollouts have."""
    times = iter(seconds)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(module, "ROLLOUT_SECONDS", given)


def told(found: Measurement) -> Measurement:
    """What does not hang on the machine."""
    assert found.peak > 2**20
    return replace(found, peak=0)


@pytest.fixture
def peaks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The places whose peaks are asked for: a GPU has another than the process."""
    found, peak = [], module._peak
    monkeypatch.setattr(module, "_peak", lambda *place: (found.append(place), peak(*place))[1])
    return found


@pytest.mark.parametrize(("rank", "adapted"), [(0, []), (2, [5])])
def test_updates_are_reckoned_by_the_second_of_two_and_the_mean_of_all_samples(
    rank: int, adapted: list[int], base: Path, peaks: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 60 tokens in 4 s, where a step takes 5 samples of 20 tokens in the mean."""
    seeds: list[int] = []
    adapter = module.Adapter
    monkeypatch.setattr(module, "Adapter", lambda *given, seed: (seeds.append(seed), adapter(*given, seed=seed))[1])
    at(monkeypatch, 0.0, 100.0, 200.0, 204.0)
    recipe = load_recipe(None, [*KEYS, f"lora.rank={rank}"])
    samples = [sample(length) for length in (10, 20, 30)]
    found = measure_updates(recipe, base, place_training(recipe, base), samples, 5)
    assert told(found) == Measurement(None, 100 / 15, True, 100, 0.0, 15.0, 0)
    assert seeds == adapted
    assert [place.device for (place,) in peaks] == ["cpu"]


def test_an_update_is_measured_on_as_many_samples_as_fill_a_micro_batch(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory and speed go by full ones. Of 500 samples of 20 ids, 17 are a prompt that all of them have."""
    measured: list[tuple[int, list[int]]] = []
    samples = [Sample((*range(17), *[n] * 3), (0,) * 17 + (1,) * 3, (None,) * 20, (0,) * 20) for n in range(500)]
    forwards = module.forwards

    @contextmanager
    def seen(model: Any, some: Any, computing: Any) -> Iterator[Any]:
        with forwards(model, some, computing) as parts:
            kept: list[int] = []
            measured.append((len(some), kept))
            yield (kept.append(part.ids) or part for part in parts)

    monkeypatch.setattr(module, "forwards", seen)
    for keys in ([], ["compute.micro_batch_tokens=1000"], ["compute.micro_batch_tokens=5000"]):
        recipe = load_recipe(None, [*KEYS, *keys])
        measure_updates(recipe, base, place_training(recipe, base), samples, 5)
    assert measured[::2] == [(500, [1517]), (408, [998, 260]), (500, [1517])]


def planned(base: Path, tasks: Ones, *keys: str) -> Measurement:
    recipe = load_recipe(None, [*KEYS, *keys])
    stream = PromptStream(recipe, tasks, chat=build_chat(recipe, base, tasks), model="m")
    return told(measure_rl(recipe, base, stream, place_training(recipe, base)))


ROLLED, UPDATED = (1.0, 5.0), (10.0, 110.0, 200.0, 202.0)


@pytest.mark.parametrize(
    ("keys", "passes"),
    [
        ((), 0),
        (("rl.old_logprobs=recompute",), 1),
        (("rollout.temperature=0.7",), 1),
        (("rl.old_logprobs=recompute", "rollout.temperature=0.7"), 1),
        (("rl.kl=0.1",), 1),
        (("rl.algorithm=aepo",), 1),
        (("rl.algorithm=aepo", "rl.entropy_advantage=0"), 0),
        (("rl.old_logprobs=recompute", "rl.kl=0.1"), 2),
    ],
)
def test_a_step_takes_its_rollouts_forward_passes_and_the_updates_of_each_epoch(
    keys: tuple[str, ...], passes: int, base: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 rollouts in 4 s, whose 96 tokens are updated in 2 s, and in 6 s more passed through the model."""
    at(monkeypatch, *ROLLED, *UPDATED, 300.0, 306.0)
    found = planned(base, Ones(), *keys)
    assert found == Measurement(4.0, 2 * 2.0, True, 2 * 96, 6 * written / 4, 48.0, 0, passes * 6.0)
    assert found.step_seconds == 4 + 4 + passes * 6


@pytest.mark.parametrize(
    ("keys", "made"), [((), 6), (("select.kind=roc", "select.oversample=4"), 24), (("lora.rank=2",), 6)]
)
def test_a_first_step_that_does_not_end_in_time_is_reckoned_by_its_limit(
    keys: tuple[str, ...], made: int, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing has come of it yet; its updates are of samples of that length, as many as are trained on."""
    at(monkeypatch, *ROLLED, *UPDATED, given=0.0)
    found = planned(base, Ones(), *keys)
    assert found.rollout_seconds == pytest.approx(made * 16 / 1e-9)
    assert replace(found, rollout_seconds=0.0) == Measurement(0.0, 4.0, False, 2 * 96, 0.0, 48.0, 0)


def rolled(base: Path, tasks: Graded) -> Any:
    recipe = load_recipe(None, KEYS)
    stream = PromptStream(recipe, tasks, chat=build_chat(recipe, base, tasks), model="m")
    weights = EngineWeights(start_model(base, 0), torch.float32)
    return asyncio.run(module._rollouts(recipe, base, weights, stream))


def test_a_first_step_that_faults_take_as_a_whole_is_no_measurement(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, *ROLLED)
    with pytest.raises(SandboxUnavailable, match=r"^infrastructure faults took all rollouts of the measurement"):
        rolled(base, Graded(rewards=((None, None),)))


def evaluated(base: Path, problems: int, samples: int, *keys: str) -> Measurement:
    recipe = load_recipe(None, [*KEYS, f"evaluate.samples={samples}", *keys])
    return told(measure_evaluation(recipe, base, Ones().evaluation(problems, 0), Ones()))


def test_an_evaluation_that_does_not_end_in_time_is_reckoned_by_its_limit(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, 5.0, 8.0, given=0.0)
    found = evaluated(base, 2, 3)
    assert found.rollout_seconds == pytest.approx(16 / 1e-9)
    assert replace(found, rollout_seconds=0.0) == Measurement(0.0, 0.0, False, 0, 0.0, 0.0, 0)


def test_an_engine_that_counts_nothing_cannot_be_measured(base: Path) -> None:
    with pytest.raises(RecipeError, match=r"^engine\.kind = 'scripted' counts no tokens: its speed cannot be"):
        evaluated(base, 2, 3, "engine.kind=scripted")


def test_a_peak_is_of_the_gpu_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch.cuda, "max_memory_reserved", lambda device: {"cuda:1": 7}[str(device)])
    place: Any = SimpleNamespace(device="cuda:1")
    assert module._peak(place) == 7
