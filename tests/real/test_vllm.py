"""A real vLLM against the engine in this process: the same ids, the same log-probs, the same training."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from retcon.build import build_tasks
from retcon.chat.opening import open_chat
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Adapters, Generation, Generator, SamplingParams
from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from retcon.engine.vllm.process import Server
from retcon.evaluate.result import read_result
from retcon.evaluate.runner import run_evaluation
from retcon.models.loading import load_model
from retcon.models.locating import BASE
from retcon.store import jsonl
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from servers.vllm import Start, children, kill_in_the_middle, metric

pytestmark = pytest.mark.timeout(3600)  # seconds; each starts a server, a minute on idle cores and ten on busy ones
MAX_LEN = 640
NEAR = 1e-3
"""Two best logits that are nearer than this may change places."""
PROMPTS = 24
GREEDY = SamplingParams(temperature=0, max_tokens=64)


def engine_of(server: Server, folder: Path, **about: Any) -> VLLMEngine:
    chat = open_chat(folder, style="markdown")
    settings = VLLMSettings((server.url,), **about)
    return VLLMEngine(settings, chat.tokenizer, max_len=MAX_LEN, model=lambda: load_model(folder))


def some_prompts(folder: Path) -> list[list[int]]:
    """Problems of the quickstart, and ids at random."""
    chat, draw = open_chat(folder, style="markdown"), random.Random(5)
    tasks = islice(build_tasks(load_recipe(None)).train(3), PROMPTS // 2)
    asked = [[i for s in chat.prompt(task.question) for i in s.ids or ()] for task in tasks]
    return [*asked, *([draw.randrange(10, 2000) for _ in range(draw.randrange(5, 80))] for _ in range(PROMPTS // 2))]


async def generated(engine: Generator, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Generation]:
    return await asyncio.gather(*(engine.generate(str(n), ids, params) for n, ids in enumerate(prompts)))


async def scored(
    engine: Generator, whole: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]
) -> list[Sequence[float]]:
    """The log-probs of what follows each prompt."""
    found = [await engine.score(str(n), ids, len(p)) for n, (ids, p) in enumerate(zip(whole, prompts, strict=True))]
    return [one for one in found if one is not None]


def gap_at(model: Any, ids: Sequence[int]) -> float:
    """Between the two best logits after `ids`."""
    with torch.inference_mode():
        best = model(torch.tensor([list(ids)])).logits[0, -1].float().topk(2).values
    return float(best[0] - best[1])


@pytest.fixture(params=["base", "smollm2"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = BASE if request.param == "base" else request.getfixturevalue("smollm2")
    return found


def test_greedy_ids_are_those_of_the_engine_here_and_so_are_the_log_probs(start: Start, folder: Path) -> None:
    model, prompts = load_model(folder), some_prompts(folder)
    here = asyncio.run(generated(LocalEngine(model, max_len=MAX_LEN), prompts, GREEDY))
    engine = engine_of(start(folder), folder)

    async def there() -> tuple[list[Generation], list[Sequence[float]]]:
        async with engine.connected():
            made = await generated(engine, prompts, GREEDY)
            whole = [[*ids, *g.ids] for ids, g in zip(prompts, here, strict=True)]
            return made, await scored(engine, whole, prompts)

    made, scores = asyncio.run(there())
    same = 0
    for prompt, one, other in zip(prompts, here, made, strict=True):
        at = next((n for n, (a, b) in enumerate(zip(one.ids, other.ids, strict=True)) if a != b), len(one.ids))
        same += at
        if at < len(one.ids):
            assert gap_at(model, [*prompt, *one.ids[:at]]) <= NEAR
        assert other.logprobs is not None
        assert other.logprobs[:at] == pytest.approx(one.logprobs[:at], abs=NEAR)  # type: ignore[index]
    for one, score in zip(here, scores, strict=True):
        assert list(score) == pytest.approx(list(one.logprobs or ()), abs=NEAR)
    print(f"\n{folder.name}: {same / (PROMPTS * GREEDY.max_tokens):.2%} of greedy ids are equal up to a first tie")


def test_in_bfloat16_log_probs_are_those_of_float32_to_its_precision(start: Start, folder: Path) -> None:
    model, prompts = load_model(folder), some_prompts(folder)
    here = asyncio.run(generated(LocalEngine(model, max_len=MAX_LEN), prompts, replace(GREEDY, temperature=1.0)))
    engine = engine_of(start(folder, dtype="bfloat16"), folder)

    whole = [[*p, *g.ids] for p, g in zip(prompts, here, strict=True)]

    async def there() -> list[Sequence[float]]:
        async with engine.connected():
            return await scored(engine, whole, prompts)

    known = [p for g in here for p in g.logprobs or ()]
    apart = [abs(a - b) for a, b in zip(known, (p for one in asyncio.run(there()) for p in one), strict=True)]
    own = LocalEngine(load_model(folder, "bfloat16"), max_len=MAX_LEN)
    ours = asyncio.run(scored(own, whole, prompts))
    rounding = [abs(a - b) for a, b in zip(known, (p for one in ours for p in one), strict=True)]
    print(
        f"\n{folder.name}: bfloat16 is {fmean(apart):.4f} nats a token from float32, {max(apart):.3f} at most; "
        f"in the engine here {fmean(rounding):.4f} and {max(rounding):.3f}"
    )
    assert fmean(apart) < 1.5 * fmean(rounding)


def test_the_seed_is_the_requests_own_and_a_cached_prefix_changes_nothing(start: Start) -> None:
    server = start(BASE)
    engine, (prompt, *_) = engine_of(server, BASE), some_prompts(BASE)
    hot = SamplingParams(temperature=1.2, max_tokens=20, seed=11)

    async def main() -> tuple[list[Generation], Generation]:
        async with engine.connected():
            long = prompt * 4
            made = [await engine.generate(name, long, hot) for name in ("a", "b")]
            return made, await engine.generate("c", long, replace(hot, seed=12))

    (one, again), other = asyncio.run(main())
    assert one.ids == again.ids != other.ids
    assert metric(server, "vllm:prefix_cache_hits_total") > 0


def test_callers_that_are_gone_free_their_places(start: Start) -> None:
    server = start(BASE)
    engine = engine_of(server, BASE)
    many, most = 16, 600  # so many that they are still seen at work

    async def main() -> None:
        async with engine.connected():
            params = replace(GREEDY, max_tokens=most)
            asking = [asyncio.create_task(engine.generate(str(n), [7] * 8 + [n], params)) for n in range(many)]
            while await asyncio.to_thread(metric, server, "vllm:num_requests_running") < 1:
                assert not all(task.done() for task in asking)
            for task in asking:
                task.cancel()
            while await asyncio.to_thread(metric, server, "vllm:num_requests_running") > 0:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 120))
    assert 0 < metric(server, "vllm:generation_tokens_total") < many * most


def on_numbers(*keys: str) -> Recipe:
    return load_recipe("quickstart/saar", ["compute.device=cpu", *keys])


def served(server: Server) -> tuple[str, ...]:
    return ("engine.kind=vllm", f"engine.url={server.url}")


def test_an_evaluation_is_the_same_within_its_interval_and_saar_works_through_it(
    start: Start, beginner: Path, tmp_path: Path
) -> None:
    size = ("evaluate.problems=24", "evaluate.samples=8", "evaluate.top_p=1")
    server = start(beginner)
    for name, keys in (
        ("here", ()),
        ("there", served(server)),
        ("repaired here", ("evaluate.repair=saar",)),
        ("repaired", (*served(server), "evaluate.repair=saar")),
    ):
        run_evaluation(on_numbers(*size, *keys), beginner, tmp_path / name)
    for pair in (("here", "there"), ("repaired here", "repaired")):
        here, there = (read_result(tmp_path / name / "result.json").settings["t1"] for name in pair)
        print(f"\npass@1, {pair[0]}: {fmean(here.passes(1)):.3f}, and {fmean(there.passes(1)):.3f} from vLLM")
        apart = [a - b for a, b in zip(here.passes(1), there.passes(1), strict=True)]
        assert abs(fmean(apart)) <= 3 * stdev(apart) / len(apart) ** 0.5
    repaired: list[Trajectory] = list(jsonl.read(tmp_path / "repaired/trajectories-t1.jsonl"))
    decisions = [turn.repair.decision for one in repaired for turn in one.turns if turn.repair]
    print(f"repairs: { {d: decisions.count(d) for d in set(decisions)} }")
    assert "shallow" in decisions
    assert sum(one.failures for one in repaired) < sum(one.raw_failures for one in repaired)
    local = LocalEngine(load_model(beginner), max_len=MAX_LEN)

    async def score(one: Trajectory) -> None:
        ids: list[int] = []
        for segment in one.segments:
            ids.extend(segment.ids or ())
            if segment.logprobs:
                expected = await local.score(one.id, ids, len(ids) - len(segment.logprobs))
                assert list(segment.logprobs) == pytest.approx(list(expected), abs=2e-3)

    async def all_scored() -> None:
        for one in [one for one in repaired if any(turn.repair for turn in one.turns)][:20]:
            await score(one)

    asyncio.run(all_scored())


@dataclass
class Alternating:
    """The quickstart's tasks, whose rollouts are right and wrong in turn, so that every step changes the weights."""

    tasks: TaskSet

    name = "alternating"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        return self.tasks.train(seed)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return self.tasks.evaluation(count, seed)

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        even = int(trajectory.id.rpartition("/")[2]) % 2 == 0
        return replace(trajectory, reward=1.0 if even else -1.0)


TRAINING = ("rl.steps=5", "rl.prompts=2", "rl.group=4", "rl.lr=1e-3", "rl.minibatches=1", "rl.old_logprobs=recompute",
            "repair.probability=1.0")  # fmt: skip


def trained(
    beginner: Path, out: Path, *keys: str, on_step: Callable[[Any], None] | None = None
) -> list[dict[str, Any]]:
    run_rl(
        on_numbers(*TRAINING, *keys), beginner, out, tasks=Alternating(build_tasks(load_recipe(None))), on_step=on_step
    )
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_followed(lines: list[dict[str, Any]]) -> None:
    """All rollouts made and rewarded, and each with the log-probs that the trainer's weights of that step give."""
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        assert (line["rollouts"], line["infrastructure"]) == (8, 0)
        assert line["mismatch_max"] < 2e-3
    print("mismatch_max by step:", [f"{line['mismatch_max']:.1e}" for line in lines])


def test_five_steps_with_new_weights_at_each(start: Start, beginner: Path, tmp_path: Path) -> None:
    server = start(beginner)
    lines = trained(beginner, tmp_path / "run", *served(server))
    assert_followed(lines)
    assert sum(line["shallow"] + line["deep"] for line in lines) > 0
    # The log-probs did follow: under the first weights the last step's would be far away.
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(load_model(beginner).parameters(), load_model(tmp_path / "run/final").parameters(), strict=True)
    ]
    assert max(moved) > 1e-3
    print(f"seconds to hand weights over: {[line['sync_seconds'] for line in lines]}")


def test_an_update_that_a_killed_trainer_left_unfinished_is_begun_anew(start: Start) -> None:
    server, (prompt, *_) = start(BASE), some_prompts(BASE)
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
        http.post("/pause?mode=keep", json={}).raise_for_status()
        http.post("/init_weight_transfer_engine", json={"init_info": {}}).raise_for_status()
        http.post("/start_weight_update", json={}).raise_for_status()
    chat, model = open_chat(BASE, style="markdown"), load_model(BASE)
    settings = VLLMSettings((server.url,))
    engine = VLLMEngine(settings, chat.tokenizer, max_len=MAX_LEN, model=lambda: model, trained=True)

    async def there() -> Generation:
        async with engine.connected():
            await engine.follow()
            return await engine.generate("a", prompt, GREEDY)

    made = asyncio.run(asyncio.wait_for(there(), 300))
    local = asyncio.run(generated(LocalEngine(model, max_len=MAX_LEN), [prompt], GREEDY))
    assert made.ids == local[0].ids


LORA = ("lora.rank=12", "engine.lora=true", "rl.lr=1e-2")


def assert_adapters_moved(run: Path) -> None:
    """A is drawn and B begins as zeros: under the first adapters log-probs would be those of the model alone."""
    moved = load_file(run / "final/adapter/adapter_model.safetensors")
    assert max(tensor.abs().max().item() for name, tensor in moved.items() if "lora_B" in name) > 1e-2


def test_adapters_follow_as_such(start: Start, beginner: Path, tmp_path: Path) -> None:
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    server = start(beginner, adapters=Adapters(12, layers, lambda _: None))
    lines = trained(beginner, tmp_path / "run", *served(server), *LORA)
    assert_followed(lines)
    assert_adapters_moved(tmp_path / "run")
    print(f"seconds to hand adapters over: {[line['sync_seconds'] for line in lines]}")


def test_adapters_go_on_with_what_they_began_where_rollouts_run_ahead(
    python: str, beginner: Path, tmp_path: Path
) -> None:
    """On a server of our own. A generation that is under way has one version from its first token to its last."""
    own = ("engine.kind=vllm", f"engine.python={python}", "engine.arguments=--enforce-eager", "rl.max_staleness=1")
    lines = trained(beginner, tmp_path / "run", *own, *LORA)
    assert [(line["rollouts"], line["infrastructure"]) for line in lines] == [(8, 0)] * 5
    assert [line["staleness_max"] for line in lines] == [0, 1, 1, 1, 1]
    assert_adapters_moved(tmp_path / "run")
    for trajectory in jsonl.read(tmp_path / "run/trajectories/step-000005.jsonl"):
        for segment in trajectory.segments:
            if segment.kind == "sampled":
                assert set(segment.versions or (-1,)) in ({3}, {4})


def test_rollouts_run_ahead_over_changes_of_weights(start: Start, beginner: Path, tmp_path: Path) -> None:
    """Weights change under requests that are being answered: each goes on, and says which tokens are whose."""
    server = start(beginner)
    lines = trained(beginner, tmp_path / "run", *served(server), "rl.max_staleness=1")
    assert [(line["rollouts"], line["infrastructure"]) for line in lines] == [(8, 0)] * 5
    assert [line["staleness_max"] for line in lines] == [0, 1, 1, 1, 1]
    for trajectory in jsonl.read(tmp_path / "run/trajectories/step-000005.jsonl"):
        sampled = [segment for segment in trajectory.segments if segment.kind == "sampled"]
        assert {v for segment in sampled for v in segment.versions or (-1,)} <= {3, 4}
    print("partial rollouts by step:", [line["partial_rollouts"] for line in lines])


def test_a_server_that_is_killed_in_the_middle_of_a_step_and_comes_back_costs_nothing(
    start: Start, beginner: Path, tmp_path: Path
) -> None:
    server, begun = start(beginner), threading.Event()

    def fault() -> None:
        begun.wait()
        kill_in_the_middle(server)
        asyncio.run(server.start())

    thread = threading.Thread(target=fault)
    thread.start()
    lines = trained(beginner, tmp_path / "run", *served(server), on_step=lambda _: begun.set())
    thread.join()
    assert server.starts == 2
    assert_followed(lines)
    assert sum(line["engine_retried"] for line in lines) > 0


def test_retcon_starts_its_own_server_and_starts_it_again(python: str, beginner: Path, tmp_path: Path) -> None:
    begun = threading.Event()

    def fault() -> None:
        begun.wait()
        kill_in_the_middle(next(children()))

    thread = threading.Thread(target=fault)
    thread.start()
    own = ("engine.kind=vllm", f"engine.python={python}", "engine.arguments=--enforce-eager")
    lines = trained(beginner, tmp_path / "run", *own, on_step=lambda _: begun.set())
    thread.join()
    assert_followed(lines)
    assert sum(line["engine_restarted"] for line in lines) == 1
    assert not list(children())


def test_of_two_servers_one_dead_nobody_waits_for_it(start: Start, beginner: Path, tmp_path: Path) -> None:
    server = start(beginner)
    two = ("engine.kind=vllm", f"engine.url=['http://127.0.0.1:9','{server.url}']", "engine.patience=0.001")
    assert_followed(trained(beginner, tmp_path / "run", *two))
