"""A training small enough for tests: a tiny model, demonstrations, a task set; and runs that can be killed.

As a script it is a zygote: it imports once, then forks a process for each command on its standard input, and says on
its standard output what becomes of it. A run in such a process can be killed without paying for the imports again.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import subprocess
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.schema import Recipe
from retcon.core.errors import RetconError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.store import jsonl
from retcon.tasks.types import Task
from retcon.train.dpo import run_dpo
from retcon.train.rl import run_rl
from retcon.train.sft import run_sft

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # last: `sessions` is in both

from base_model import build_tokenizer  # benchmarks/base_model.py

FAILING = {"print(a)": "NameError: name 'a' is n", "print(b)": "NameError: name 'b' is n"}
WORKING = {"print(1)": "1", "print(2)": "2"}


def make_base(folder: Path, *, positions: int = 256, experts: int = 0) -> Path:
    """A model folder: one layer of width 64, untrained."""
    tokenizer = build_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": positions,
        "tie_word_embeddings": True,
    }  # fmt: skip
    more = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    config = Qwen3MoeConfig(**sizes, **more) if experts else Qwen3Config(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_demonstrations(base: Path, file: Path, working: dict[str, str] = WORKING) -> Path:
    """Short trajectories that call in vain, call again, and answer: a model learns each, and to do so at random.
    working: programs and what they print."""
    chat = Chat(load_tokenizer(base))

    rng = random.Random(0)

    def said(text: str) -> Segment:
        ids = tuple(chat.tokenizer.encode(text, special=True))
        return Segment("sampled", chat.tokenizer.decode(ids), ids)

    def shown(text: str) -> Segment:
        return replace(said(text), kind="scaffold")

    def called(codes: dict[str, str]) -> Turn:
        code = rng.choice(list(codes))
        answered = shown(f"\n<|im_start|>tool\n{codes[code]}<|im_end|>\n<|im_start|>assistant\n")
        return Turn((said(f"```python\n{code}\n```<|im_end|>"), answered), stop="call")

    def trajectory(n: int) -> Trajectory:
        answer = Turn((said(f"{rng.randint(1, 2)}<|im_end|>"),))
        turns = (*map(called, [FAILING, working][n % 2 :]), answer)
        return Trajectory(f"demo/{n}", "go", chat.prompt("go"), turns, reward=1.0)

    jsonl.write(file, map(trajectory, range(30)))
    return file


@dataclass(frozen=True)
class Ones:
    """A task set: say 1."""

    name: str = "ones"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(f"ones/{seed}/{n}", "go", "1") for n in count())

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [Task(f"ones/evaluation/{n}", "go", "1", meta={"held": "out"}) for n in range(count)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        answer = trajectory.turns[-1].text.removesuffix("<|im_end|>")
        return replace(trajectory, answer=answer, reward=1.0 if task.answer in answer else -1.0)


@dataclass(frozen=True)
class Graded(Ones):
    """A task set whose grades go by index and prompt; None is an infrastructure fault. rewards: (prompts, G')."""

    rewards: tuple[tuple[float | None, ...], ...] = ()

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        prompt, index = int(task.id.rpartition("/")[2]), int(trajectory.id.rpartition("/")[2])
        reward = self.rewards[prompt % len(self.rewards)][index]
        return replace(trajectory, reward=reward, stop="infrastructure" if reward is None else "answer")


def small_recipe(base: Path, **sections: dict[str, object]) -> Recipe:
    """Seconds, not minutes; SAAR on, so that lookaheads and splices are part of what must repeat."""
    values: dict[str, dict[str, object]] = {
        "model": {"path": str(base)},
        "rollout": {"max_tokens": 96, "max_turns": 4, "lookahead_tokens": 64},
        "repair": {"kind": "saar", "attempts": 3, "probability": 0.8},
        "sft": {"steps": 60, "batch": 10, "lr": 1e-2, "checkpoint_every": 7},
        "rl": {"steps": 8, "prompts": 2, "group": 8, "lr": 5e-4, "checkpoint_every": 2},
        "sandbox": {"workers": 1},
    }
    for name, section in sections.items():
        kept = {} if "kind" in section else values.get(name, {})  # another kind has other keys
        values[name] = {**kept, **section}
    return Recipe.model_validate(values)


Event = tuple[str, str]


class Zygote:
    """Runs in processes of their own. Events are (name, value): `pid`, `step`, perhaps `error`, and at the end
    `exit`."""

    def __init__(self) -> None:
        source = Path(__file__).resolve()
        path = os.pathsep.join([str(source.parent), str(source.parent.parent / "src"), *sys.path])
        self._process = subprocess.Popen(
            [sys.executable, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )

    def run(self, kind: str, recipe: Recipe, start: Path, out: Path, *, limit: int = -1) -> Iterator[Event]:
        """Start a run and give its events as they come. limit: bytes of a file, beyond which the system refuses."""
        assert self._process.stdin is not None
        values = recipe.model_dump(mode="json")
        command = {"kind": kind, "recipe": values, "start": str(start), "out": str(out), "limit": limit}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        while True:
            assert self._process.stdout is not None
            name, _, value = self._process.stdout.readline().decode().strip().partition(" ")
            yield name, value
            if name == "exit":
                return

    def quiet(self, seconds: float) -> None:
        """Wait for the next event, but no longer than `seconds`."""
        select.select([self._process.stdout], [], [], seconds)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def _say(name: str, value: object) -> None:
    os.write(1, f"{name} {value}\n".encode())


def _child(command: dict[str, Any]) -> None:
    recipe, start, out = Recipe.model_validate(command["recipe"]), Path(command["start"]), Path(command["out"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (command["limit"], command["limit"]))
    _say("pid", os.getpid())
    try:
        if command["kind"] == "sft":
            run_sft(recipe, start, out, on_step=lambda m: _say("step", m["step"]))
        elif command["kind"] == "dpo":
            run_dpo(recipe, start, Path(recipe.model.path), out, on_step=lambda m: _say("step", m["step"]))
        else:
            run_rl(recipe, start, out, tasks=Ones(), on_step=lambda m: _say("step", m["step"]))
        os._exit(0)
    except RetconError as error:
        _say("error", error)
        os._exit(1)
    finally:
        traceback.print_exc()
        os._exit(2)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _say("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
