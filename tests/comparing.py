"""Comparisons that could have happened, for tests of what is told about them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

from retcon.core.types import Observation, RepairRecord, Segment, Status, ToolCall, Trajectory, Turn
from retcon.evaluate.result import Result, score
from retcon.report.runs import Comparison, Metrics, Run

QUESTION = "let x be the gcd of 4821 and 1233. find 17 to the power x mod 997."


def turn(
    code: str, output: str, status: Status = "ok", *, lead: str = "first find x.", error: str | None = None
) -> Turn:
    """A turn with one call."""
    text = f"{lead}\n```python\n{code}\n```<|im_end|>"
    call = ToolCall("c", "python", {"code": code}, char=text.index("```"))
    observation = Observation("c", output, status, error)
    return Turn(
        (Segment("sampled", text, tuple(range(len(text)))), Segment("scaffold", "\n"), Segment("observation", output)),
        (call,),
        (observation,),
        stop="call",
    )


def answer(text: str) -> Turn:
    return Turn((Segment("sampled", text, tuple(range(len(text)))),), stop="answer")


def trajectory(id: str, *turns: Turn, reward: float | None = 1.0, question: str = QUESTION) -> Trajectory:
    prompt = (Segment("prompt", "<|im_start|>user\n"), Segment("prompt", question), Segment("prompt", "<|im_end|>\n"))
    return Trajectory(id, id.rpartition("/")[0] or id, prompt, turns, reward)


FAILED = turn("print(gcd(4821, 1233))", "NameError: name 'gcd' is", "error", error="NameError")
FIX = turn("import math\nprint(math.gcd(4821, 1233))", "9", lead="that failed. try again.")


def repaired(id: str = "t/0", *, decision: str = "shallow", reward: float = 1.0) -> Trajectory:
    """A first turn whose failure was replaced by its fix, and an answer."""
    spliced = tuple(replace(s, kind="spliced") if s.kind == "sampled" else s for s in FIX.segments)
    record = RepairRecord(decision, attempts=1, similarity=0.81)  # type: ignore[arg-type]
    fixed = replace(FIX, segments=spliced, abandoned=(FAILED, FIX), repair=record)
    return trajectory(id, fixed, answer("so the answer is \\boxed{9}"), reward=reward)


def result(rng: random.Random, chance: float, failures: float, *, problems: int = 12, samples: int = 10) -> Result:
    """An evaluation in which rollouts pass with `chance`, and fail a call with a chance of `failures`."""
    empty = Result("/runs/final", {"evaluate": {"top_p": 0.6}}, {})
    for name, top_p, better in (("t1", 1.0, 0.0), ("top_p", 0.6, 0.1)):
        groups = [
            (
                f"t{p}",
                [
                    trajectory(
                        f"t{p}/{i}",
                        *((FAILED,) if rng.random() < failures else ()),
                        FIX,
                        reward=1.0 if rng.random() < chance + better else -1.0,
                    )
                    for i in range(samples)
                ],
            )
            for p in range(problems)
        ]
        empty = empty.with_setting(name, score(groups, temperature=1.0, top_p=top_p, cpu_s=2.0, wall_s=3.0))
    return empty


def metrics(rng: random.Random, *, failures: float, purified: bool, steps: int = 80) -> list[Metrics]:
    lines: list[Metrics] = []
    for step in range(1, steps + 1):
        fading = math.exp(-step / 40)
        raw = failures * fading * rng.uniform(0.85, 1.15)
        lines.append(
            {
                "step": step, "pass_rate": min(1.0, 0.45 + 0.4 * (1 - fading) + rng.gauss(0, 0.03)),
                "raw_failures": raw, "failures": 0.2 * raw if purified else raw,
                "sampled_tokens": 96 * (60 + 30 * fading), "rollouts": 96,
                "spliced_share": 0.3 * fading if purified else 0.0, "cpu_s": 1.5 * step, "wall_s": 2.0 * step,
            }
        )  # fmt: skip
    return lines


def comparison(
    arms: tuple[str, ...] = ("baseline", "saar"), seeds: int = 1, steps: int = 80, samples: int = 10
) -> Comparison:
    rng = random.Random(0)
    runs = {
        arm: [
            Run(
                Path(f"/runs/{arm}/seed-{seed}"),
                seed,
                metrics(rng, failures=1.9 - 0.4 * n, purified=arm == "saar", steps=steps),
                result(rng, 0.75 + 0.03 * n, 0.4 - 0.15 * n, samples=samples),
            )
            for seed in range(seeds)
        ]
        for n, arm in enumerate(arms)
    }
    learnt: list[Metrics] = [{"step": 1, "loss": 0.2, "cpu_s": 60.0, "wall_s": 40.0}]
    cold = Run(Path("/runs/cold_start"), 0, learnt, result(rng, 0.45, 0.9))
    return Comparison(cold, runs, 312.5)
