"""[evaluate]: what an evaluation measures, and on which problems."""

from __future__ import annotations

from typing import Any

from keys.acting import Lab, acts, run
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.errors import EngineError
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.evaluate.result import Result, read_result
from retcon.evaluate.runner import evaluate, run_evaluation, settings_of
from retcon.store import jsonl
from retcon.tasks.registry import task_set

SMALL = ("evaluate.problems=1", "evaluate.samples=1", "rollout.max_tokens=100")


def evaluated(recipe: Recipe, lab: Lab) -> Result:
    return read_result(run_evaluation(recipe, lab.base, lab.out()))


def names(seed: int) -> list[str]:
    return [task.id for task in task_set("numbers").evaluation(1, seed)]


@acts("evaluate.problems", (1, 1), (3, 3), given=SMALL)
def problems_of_an_evaluation(recipe: Recipe, lab: Lab) -> int:
    return len(evaluated(recipe, lab).settings["t1"].problems)


@acts("evaluate.samples", (1, {1}), (3, {3}), given=SMALL)
def rollouts_of_a_problem(recipe: Recipe, lab: Lab) -> set[int]:
    return {problem.samples for problem in evaluated(recipe, lab).settings["t1"].problems}


@acts("evaluate.top_p", (0.6, [1.0, 0.6]), (0.9, [1.0, 0.9]), given=SMALL)
def top_p_of_both_settings(recipe: Recipe, lab: Lab) -> list[float]:
    return [setting.top_p for setting in evaluated(recipe, lab).settings.values()]


@acts(
    "evaluate.sampling",
    ("plain", {"t1": 1.0, "top_p": 1.0}),
    ("rollout", {"rollout": 0.5}),
    given=(*SMALL, "rollout.temperature=0.5"),
)
def temperatures_of_all_settings(recipe: Recipe, lab: Lab) -> dict[str, float]:
    return {name: setting.temperature for name, setting in evaluated(recipe, lab).settings.items()}


@acts("evaluate.seed", (1000, names(1000)), (7, names(7)), given=SMALL)
def problems_that_are_drawn(recipe: Recipe, lab: Lab) -> list[str]:
    return [problem.task for problem in evaluated(recipe, lab).settings["t1"].problems]


@acts(
    "evaluate.repair",
    ("none", 1),
    ("saar", 0),
    given=(*SMALL, "rollout.max_tokens=2000", "rollout.lookahead_tokens=1000"),
)
def failed_calls_that_an_evaluation_lets_stand(recipe: Recipe, lab: Lab) -> int:
    """Of a model that fails, then works, then answers."""
    tokenizer, said = ByteTokenizer(), ["```python\nnothing\n```", "```python\nprint(1)\n```", "\\boxed{1}"]
    work = evaluate(
        recipe, task_set("numbers").evaluation(1, 0), name="t1", params=settings_of(recipe)["t1"],
        engine=ScriptedEngine(tokenizer, said), chat=Chat(tokenizer), on_progress=lambda _: None,
    )  # fmt: skip
    groups, _ = run(work)
    return sum(trajectory.failures for group in groups for trajectory in group)


@acts("evaluate.faults", (0.0, {"1"}), (1.0, {"TimeoutError: the tool d", "ConnectionError: the con"}),
      given=(*SMALL, "evaluate.samples=8", "rollout.max_tokens=2000"))  # fmt: skip
def what_calls_are_told_while_measuring(recipe: Recipe, lab: Lab) -> set[str]:
    """Of a model that calls, then answers."""
    tokenizer = ByteTokenizer()

    def reply(request: str, history: str, seed: int) -> str:
        return "\\boxed{1}" if history.count("```python") else "```python\nprint(1)\n```"

    work = evaluate(
        recipe, task_set("numbers").evaluation(1, 0), name="t1", params=settings_of(recipe)["t1"],
        engine=ScriptedEngine(tokenizer, reply), chat=Chat(tokenizer), on_progress=lambda _: None,
    )  # fmt: skip
    groups, _ = run(work)
    return {o.text for group in groups for t in group for turn in t.turns for o in turn.observations}


HELD_OUT = (*SMALL, "rl.steps=3", "rollout.max_tokens=160", "evaluate.every_samples=1")


def held_out(recipe: Recipe, lab: Lab) -> list[Any]:
    """Steps of a run with a figure of held-out problems, and the rollouts that it is of."""
    lines = lab.reinforced(recipe)[1]
    return [(line["step"], line["eval_rollouts"]) for line in lines if "eval_pass_rate" in line]


@acts("evaluate.every", (0, []), (2, [(2, 1), (3, 1)]), given=HELD_OUT)
def steps_that_held_out_problems_are_measured_after(recipe: Recipe, lab: Lab) -> list[Any]:
    return held_out(recipe, lab)


@acts("evaluate.every_samples", (1, [(3, 1)]), (4, [(3, 4)]), given=[*HELD_OUT, "evaluate.every=9"])
def rollouts_of_a_held_out_problem(recipe: Recipe, lab: Lab) -> list[Any]:
    return held_out(recipe, lab)


ANSWERING = (*SMALL, "engine.kind=scripted")


def answers(recipe: Recipe, lab: Lab) -> set[str | None]:
    """What the rollouts of an evaluation answered."""
    file = run_evaluation(recipe, lab.base, lab.out()).parent / "trajectories-t1.jsonl"
    return {trajectory.answer for trajectory in jsonl.read(file)}


@acts("engine.kind", ("local", False), ("scripted", True), given=SMALL)
def an_engine_without_a_script_ends_an_evaluation(recipe: Recipe, lab: Lab) -> bool:
    try:
        return not evaluated(recipe, lab).settings
    except EngineError as error:
        return "a script of 0 replies" in str(error)


@acts("engine.replies", (["\\boxed{7}"], {"7"}), (["\\boxed{8}"], {"8"}), given=ANSWERING)
def answers_of_a_scripted_engine(recipe: Recipe, lab: Lab) -> set[str | None]:
    return answers(recipe, lab)
