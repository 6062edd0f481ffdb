"""A supervised run without its optimiser: what it notes, what each of its steps draws and says, and when it measures.

The trainer is a notebook here; recipe, model, demonstrations and the run's folder are real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.core.seeds import derive
from retcon.core.types import Sample
from retcon.store.fingerprint import fingerprint
from retcon.train import sft as module
from retcon.train.batch import epoch_batch
from retcon.train.sft import Samples
from training import make_base, make_demonstrations, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("supervised")
    make_demonstrations(make_base(folder / "base", positions=400), folder / "demonstrations.jsonl")
    return folder


class Run:
    """One run in `out`. steps: of each what it was given, and the state of torch's random numbers. lines: its
    metrics. given: what its parts were given, by name."""

    def __init__(self, world: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> None:
        self.steps: list[dict[str, Any]] = []
        self.lines: list[dict[str, Any]] = []
        self.given: dict[str, Any] = {}
        self.samples: list[object] = []
        self.step = 0
        self.model, self.optimizer, self.computing = "model", "optimizer", "computing"
        clock = iter(time for n in range(99) for time in (10.0 * n, 10.0 * n + 2.25004))
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
        monkeypatch.setattr(module, "sft_step", self._step)
        monkeypatch.setattr(module, "mean_loss", self._mean_loss)
        monkeypatch.setattr(module, "train", self._train)
        monkeypatch.setattr(module, "to_sample", lambda recipe, start, out: f"samples of {out.name}")
        monkeypatch.setattr(module, "sample_final", self._sample_final)
        for name in ("place_training", "read_samples", "needs_of"):
            monkeypatch.setattr(module, name, self._noting(name, getattr(module, name)))
        self.recipe = small_recipe(world / "base", **sections)
        self.final = module.run_sft(
            self.recipe, world / "demonstrations.jsonl", out, on_step=self.lines.append, on_place=self._placed,
            on_samples=self.samples.append,
        )  # fmt: skip
        self.manifest = json.loads((out / "run.json").read_text())

    def _noting(self, name: str, work: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            made = work(*given, **named)
            self.given[name] = {"given": given, "made": made, **named}
            return made

        return noted

    def _placed(self, place: object) -> None: ...

    def _train(self, training: Any, steps: Any, *, on_step: Any, on_place: Any) -> str:
        assert (on_step, on_place) == (self.lines.append, self._placed)
        self.given["betas"] = training.betas
        steps(self)
        return "final"

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        yield
        assert self.step == self.recipe.sft.steps

    def done(self, metrics: dict[str, Any]) -> None:
        self.lines.append(metrics)
        self.step += 1

    def _step(
        self, model: object, optimizer: object, samples: list[Sample], section: object, step: int, *, computing: object
    ) -> dict[str, Any]:
        assert (model, optimizer, computing) == (self.model, self.optimizer, self.computing)
        assert (section, step) == (self.recipe.sft, self.step)
        self.steps.append({"samples": samples, "random": torch.initial_seed()})
        return {"loss": 0.5}

    def _mean_loss(self, model: object, samples: list[Sample], computing: object) -> tuple[str, int]:
        assert (model, computing) == (self.model, self.computing)
        return "of held out", len(samples)

    def _sample_final(self, wanted: object, run: Any) -> Samples:
        return Samples(1, 2, 0, run.root / str(wanted))


def test_a_step_draws_by_the_runs_seed_and_its_number(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Run(world, tmp_path / "out", monkeypatch, sft={"steps": 3, "batch": 4}, run={"seed": 5})
    learnt = found.given["read_samples"]["made"]
    assert [one["random"] for one in found.steps] == [derive("dropout", 5, step) for step in range(3)]
    assert [one["samples"] for one in found.steps] == [
        [learnt[n] for n in epoch_batch(len(learnt), 4, seed=5, step=step)] for step in range(3)
    ]
    assert found.lines == [{"loss": 0.5, "seconds": 2.25}] * 3
    assert found.given["betas"] == (0.9, 0.95)


def test_what_is_held_out_is_measured_every_so_often_and_at_the_end(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = {"steps": 5, "batch": 4, "validation_share": 0.2, "validate_every": 2}
    found = Run(world, tmp_path / "out", monkeypatch, sft=sections, run={"seed": 5})
    samples = found.given["read_samples"]["made"]
    held_out = module.split(samples, 0.2, 5)[1]
    assert [line.get("validation_loss") for line in found.lines] == [
        None, ("of held out", len(held_out)), None, *[("of held out", len(held_out))] * 2,
    ]  # fmt: skip
    assert not {sample.ids for one in found.steps for sample in one["samples"]} & {sample.ids for sample in held_out}


def test_a_run_notes_what_it_learns_from_and_is_reckoned_by_its_longest(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Run(world, tmp_path / "out", monkeypatch, sft={"steps": 1, "batch": 4})
    samples = found.given["read_samples"]["made"]
    assert found.given["read_samples"]["max_tokens"] == 400
    assert found.given["place_training"]["given"][2] == ("dtype",)
    assert found.given["needs_of"]["given"][0] == "sft"
    assert found.given["needs_of"]["longest"] == max(len(sample.ids) for sample in samples)
    inputs = found.manifest["inputs"]
    assert (found.manifest["kind"], inputs.keys()) == ("sft", {"model", "demonstrations", module.RENDERED})
    assert inputs["model"] == fingerprint(world / "base")
    assert all(inputs.values())


def test_what_the_model_has_become_solves_is_reported_after_its_last_step(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Run(world, tmp_path / "out", monkeypatch, sft={"steps": 1, "batch": 4})
    assert found.final == "final"
    assert found.samples == [Samples(1, 2, 0, tmp_path / "out" / "samples of out")]
