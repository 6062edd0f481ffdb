"""A run that is killed, at any moment and however often, ends with the weights of one that never was: bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from retcon.store import jsonl
from training import Zygote, make_base, make_demonstrations, small_recipe

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TIMES = {
    "cpu_s", "wall_s", "seconds", "rollout_seconds", "train_seconds", "sync_seconds", "step_seconds",
    "tokens_per_second",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resume")
    make_demonstrations(make_base(folder / "base"), folder / "demonstrations.jsonl")
    return folder


@pytest.fixture(scope="module")
def cold(zygote: Zygote, world: Path) -> Path:
    """The unbroken supervised run."""
    recipe = small_recipe(world / "base")
    assert list(zygote.run("sft", recipe, world / "demonstrations.jsonl", world / "sft"))[-1] == ("exit", "0")
    return world / "sft"


def killed_three_times(zygote, kind, recipe, start, out, *, steps, seed):
    """The run, killed after up to `steps` steps of a session and some milliseconds; returns where each began."""
    rng = random.Random(seed)
    begun = []
    for _ in range(3):
        left, pid = rng.randint(1, steps), 0
        first = None
        for name, value in zygote.run(kind, recipe, start, out):
            if name == "pid":
                pid = int(value)
            elif name == "step":
                first = first or int(value)
                left -= 1
                if left == 0:
                    zygote.quiet(rng.uniform(0, 0.03))
                    os.kill(pid, signal.SIGKILL)
            else:
                assert (name, int(value)) == ("exit", -signal.SIGKILL)
        begun.append(first)
    events = list(zygote.run(kind, recipe, start, out))
    assert events[-1] == ("exit", "0")
    return [*begun, next(int(value) for name, value in events if name == "step")]


def metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES and not k.startswith("engine_")} for line in lines]


def assert_same_run(one, other):
    for name in ("final/model.safetensors", "final/config.json", "final/tokenizer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    newest = [max((run / "checkpoints").iterdir()) for run in (one, other)]
    assert newest[0].name == newest[1].name
    assert len({(n / "trainer.safetensors").read_bytes() for n in newest}) == 1
    assert metrics(one) == metrics(other)


def test_supervised(zygote, world, cold):
    recipe = small_recipe(world / "base")
    start = world / "demonstrations.jsonl"
    begun = killed_three_times(zygote, "sft", recipe, start, world / "sft-killed", steps=17, seed=1)
    assert begun[0] == 1
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(cold, world / "sft-killed")


def test_reinforced(zygote, world, cold):
    recipe = small_recipe(world / "base")
    assert list(zygote.run("rl", recipe, cold / "final", world / "rl"))[-1] == ("exit", "0")
    lines = metrics(world / "rl")
    assert any(line["grad_norm"] > 0 for line in lines), "there was something to learn"
    assert sum(line["shallow"] + line["deep"] for line in lines) > 0, "there was something to repair"
    assert (world / "rl/final/model.safetensors").read_bytes() != (cold / "final/model.safetensors").read_bytes()

    begun = killed_three_times(zygote, "rl", recipe, cold / "final", world / "rl-killed", steps=2, seed=2)
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(world / "rl", world / "rl-killed")
    kept = [sorted(p.name for p in (run / "trajectories").iterdir()) for run in (world / "rl", world / "rl-killed")]
    assert kept[0] == kept[1] == [f"step-00000{step}.jsonl.zst" for step in range(1, 9)]


def test_reinforced_with_prompts_drawn_in_place_of_others(zygote, world, cold):
    """How many prompts a step draws depends on what came of them: the position in the stream is part of the state."""
    recipe = small_recipe(world / "base", rl={"group": 2}, select={"dynamic": True})
    assert list(zygote.run("rl", recipe, cold / "final", world / "dynamic"))[-1] == ("exit", "0")
    lines = metrics(world / "dynamic")
    assert any(line["extra_groups"] > 0 for line in lines[:-2]), "some groups were replaced"
    assert any(line["grad_norm"] > 0 for line in lines), "there was something to learn"

    begun = killed_three_times(zygote, "rl", recipe, cold / "final", world / "dynamic-killed", steps=3, seed=3)
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(world / "dynamic", world / "dynamic-killed")
    for step in range(1, 9):
        runs = ("dynamic", "dynamic-killed")
        made = [list(jsonl.read(world / run / f"trajectories/step-00000{step}.jsonl")) for run in runs]
        assert [t.id for t in made[0]] == [t.id for t in made[1]] != [], "the rollouts of a step, each once"


def test_reinforced_with_children(zygote, world, cold):
    """Children are rollouts of their own, whose ids and seeds follow from the call that asked for them."""
    given = {
        "rollout": {"max_tokens": 128, "max_turns": 3, "tools": ["asking:AskingKind"]},
        "rl": {"steps": 4, "group": 4},
    }
    recipe = small_recipe(world / "base", credit={"kind": "node", "delegation": 0.4}, **given)
    assert list(zygote.run("rl", recipe, cold / "final", world / "trees"))[-1] == ("exit", "0")
    lines = metrics(world / "trees")
    assert all(line["children_trained"] > 0 for line in lines)
    assert any(line["grad_norm"] > 0 for line in lines), "there was something to learn"

    begun = killed_three_times(zygote, "rl", recipe, cold / "final", world / "trees-killed", steps=2, seed=5)
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(world / "trees", world / "trees-killed")
    stored = [list(jsonl.read(world / run / "trajectories/step-000004.jsonl")) for run in ("trees", "trees-killed")]
    without = [[msgspec.structs.replace(n, training=None) for t in made for n in t.tree] for made in stored]
    assert without[0] == without[1], "every node, in its place"
    fates = Counter(node.selection for made in stored for t in made for node in t.tree if node is not t)
    assert fates.keys() >= {"kept", "rolled_back"}, "repairs took some with them"


def test_reinforced_in_stages(zygote, world, cold):
    """A kill may fall anywhere, also between a stage's last step and the next one's first, which begins with a new
    optimiser, another number of prompts, and no repairs."""
    stages = [
        {"name": "short", "steps": 2, "rollout": {"max_turns": 2}},
        {"name": "raw", "steps": 3, "optimizer": "new", "repair": {"kind": "none"}, "rl": {"prompts": 3}},
        {"name": "long", "rl": {"lr": 1e-4}},
    ]
    bare = small_recipe(world / "base", rl={"checkpoint_every": 3}, select={"dynamic": True, "max_rounds": 1})
    values = bare.model_dump(mode="json", exclude_unset=True)
    recipe = type(bare).model_validate({**values, "stages": stages})
    assert list(zygote.run("rl", recipe, cold / "final", world / "staged"))[-1] == ("exit", "0")
    lines = metrics(world / "staged")
    assert [line["stage"] for line in lines] == [1, 1, 2, 2, 2, 3, 3, 3]
    assert all(any(line["grad_norm"] > 0 for line in part) for part in (lines[:2], lines[2:5], lines[5:]))

    out = world / "staged-killed"
    begun = []
    for last in (2, 3, 1, 2):  # at a border, before or after its checkpoint; past it; then at the next one
        pid = first = 0
        for name, value in zygote.run("rl", recipe, cold / "final", out):
            if name == "pid":
                pid = int(value)
            elif name == "step":
                first = first or int(value)
                if int(value) - first + 1 == last:
                    os.kill(pid, signal.SIGKILL)
        begun.append(first)
    events = list(zygote.run("rl", recipe, cold / "final", out))
    assert events[-1] == ("exit", "0")
    begun.append(next(int(value) for name, value in events if name == "step"))
    assert begun[0] == 1
    assert begun[2] > 2, "went on from the border's checkpoint, or a later one"
    assert_same_run(world / "staged", out)
    kept = [sorted(p.name for p in (run / "trajectories").iterdir()) for run in (world / "staged", out)]
    assert kept[0] == kept[1] == [f"step-00000{step}.jsonl.zst" for step in range(1, 9)]


def assert_same_adapters(one, other):
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (one / "final/adapter" / name).read_bytes() == (other / "final/adapter" / name).read_bytes(), name


def test_supervised_with_adapters_and_dropout(zygote, world):
    """Dropout is drawn anew in each step, whatever was drawn before."""
    lora = {"rank": 4, "dropout": 0.2}
    recipe = small_recipe(world / "base", lora=lora, sft={"steps": 20, "checkpoint_every": 3})
    start = world / "demonstrations.jsonl"
    assert list(zygote.run("sft", recipe, start, world / "lora-sft"))[-1] == ("exit", "0")
    begun = killed_three_times(zygote, "sft", recipe, start, world / "lora-sft-killed", steps=8, seed=4)
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(world / "lora-sft", world / "lora-sft-killed")
    assert_same_adapters(world / "lora-sft", world / "lora-sft-killed")


def test_reinforced_with_adapters_in_bfloat16(zygote, world, cold):
    lora, compute = {"rank": 4, "targets": ("q_proj", "down_proj")}, {"dtype": "bfloat16", "rollout_dtype": "bfloat16"}
    recipe = small_recipe(world / "base", lora=lora, compute=compute, rl={"lr": 5e-3, "steps": 6})
    assert list(zygote.run("rl", recipe, cold / "final", world / "lora"))[-1] == ("exit", "0")
    lines = metrics(world / "lora")
    assert any(line["grad_norm"] > 0 for line in lines), "there was something to learn"
    assert any((line["mismatch_mean"] or 0) > 1e-4 for line in lines), "bfloat16 rounds"
    assert (world / "lora/final/model.safetensors").read_bytes() != (cold / "final/model.safetensors").read_bytes()
    assert not list((world / "lora/checkpoints").rglob("model.safetensors")), "weights that do not change are not kept"

    begun = killed_three_times(zygote, "rl", recipe, cold / "final", world / "lora-killed", steps=2, seed=5)
    assert begun[-1] > 1, "went on from a checkpoint"
    assert_same_run(world / "lora", world / "lora-killed")
    assert_same_adapters(world / "lora", world / "lora-killed")


def test_a_finished_run_returns_at_once_and_touches_nothing(zygote, world, cold):
    before = {p: p.stat().st_mtime_ns for p in cold.rglob("*")}
    events = list(zygote.run("sft", small_recipe(world / "base"), world / "demonstrations.jsonl", cold))
    assert [name for name, _ in events] == ["pid", "exit"]
    assert {p: p.stat().st_mtime_ns for p in cold.rglob("*")} == before
