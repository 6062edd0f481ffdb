"""Logs of Inspect (`inspect view`, `inspect_ai.analysis`), written with its API."""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install
from retcon.core.texts import strip_turn_end
from retcon.core.types import Trajectory, Turn
from retcon.evaluate.card import as_text, card_of
from retcon.evaluate.result import Result, Setting, read_result, tokens_read
from retcon.evaluate.statistics import standard_error
from retcon.store import jsonl
from retcon.store.whole import storage_errors
from retcon.tasks.types import Task

SUFFIX = ".eval"
ERRORS = {"error": "unknown", "timeout": "timeout", "limit": "limit", "malformed": "parsing"}
"""Status of an observation to Inspect's kind of error; others: sandbox_unavailable."""
LIMITS = {"length": "token", "turns": "turn"}


def write_inspect_logs(folder: Path, tasks: Sequence[Task]) -> list[Path]:
    """Write `SETTING.eval` for each sampling setting of an evaluation's folder; return their paths.

    Args:
        folder: of `retcon eval`, finished.
        tasks: its problems, whose questions and answers are the samples' inputs and targets.

    Raises MissingExtra without inspect_ai, CheckpointError and RecordError for a broken folder, StorageError.
    """
    _check_inspect()
    result, paths = read_result(folder / "result.json"), []
    known = {task.id: task for task in tasks}
    for name, setting in result.settings.items():
        rollouts = list(jsonl.read(folder / f"trajectories-{name}.jsonl"))
        paths.append(folder / f"{name}{SUFFIX}")
        _write_log(paths[-1], _spec(result, setting, rollouts), rollouts, known)
    return paths


def write_rollouts_log(path: Path, rollouts: Sequence[Trajectory], name: str) -> None:
    """Write any rollouts as one log of Inspect; its scanners and viewers read it.

    Args:
        name: of the run, which is the task's in the log.

    Raises MissingExtra without inspect_ai, StorageError.
    """
    _check_inspect()
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec

    names = Counter(t.task for t in rollouts)
    spec = EvalSpec(
        created=_now(),
        task=name,
        model=next((t.provenance.model for t in rollouts if t.provenance.model), "retcon"),
        dataset=EvalDataset(name=name, samples=len(names), sample_ids=list(names)),
        config=EvalConfig(epochs=max(names.values(), default=1)),
    )
    _write_log(path, spec, rollouts, {})


def _check_inspect() -> None:
    if find_spec("inspect_ai") is None:
        raise MissingExtra(f"logs of Inspect need the inspect_ai package: {how_to_install('inspect')}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _spec(result: Result, setting: Setting, rollouts: Sequence[Trajectory]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec
    from inspect_ai.model import GenerateConfig

    card = card_of(result)
    benchmark = card.get("benchmark") or {}
    names = list(dict.fromkeys(t.task for t in rollouts))
    return EvalSpec(
        created=_now(),
        task=str(benchmark.get("name") or Path(str(card.get("tasks", "retcon"))).name),
        model=result.checkpoint,
        dataset=EvalDataset(
            name=benchmark.get("name"), location=benchmark.get("hub"), samples=len(names), sample_ids=list(names)
        ),
        config=EvalConfig(epochs=card["rollouts"]),
        model_generate_config=GenerateConfig(temperature=setting.temperature, top_p=setting.top_p),
        packages={name: version for name, version in card.get("versions", {}).items() if name != "python"},
        metadata={key: value for key, value in card.items() if key not in ("settings", "cost")},
    )


def _write_log(path: Path, spec: Any, rollouts: Sequence[Trajectory], tasks: Mapping[str, Task]) -> None:
    from inspect_ai.log import EvalLog, EvalResults, EvalStats, write_eval_log
    from inspect_ai.model import ModelUsage

    taken: set[tuple[str, int]] = set()  # in a training a problem comes back at another step
    samples = []
    for trajectory in rollouts:
        epoch = (trajectory.provenance.index or 0) + 1
        while (trajectory.task, epoch) in taken:
            epoch += 1
        taken.add((trajectory.task, epoch))
        samples.append(_sample(trajectory, tasks.get(trajectory.task), spec.model, epoch))
    graded = [sample for sample in samples if sample.scores]
    usage = {spec.model: sum((s.model_usage[spec.model] for s in samples), ModelUsage())}
    log = EvalLog(
        status="success",
        eval=spec,
        results=EvalResults(total_samples=len(samples), completed_samples=len(graded), scores=list(_scores(graded))),
        stats=EvalStats(started_at=spec.created, completed_at=spec.created, model_usage=usage),
        samples=samples,
    )
    with storage_errors(path):
        write_eval_log(log, str(path))


def _scores(samples: Sequence[Any]) -> Iterator[Any]:
    """The metrics of each scorer: accuracy, and its standard error clustered by problem."""
    from inspect_ai.log import EvalMetric, EvalScore

    for name in sorted({name for sample in samples for name in sample.scores}):
        by_problem: dict[Any, list[float]] = {}
        for sample in samples:
            if name in sample.scores:
                by_problem.setdefault(sample.id, []).append(float(sample.scores[name].value == "C"))
        rates = [statistics.fmean(values) for values in by_problem.values()]
        metrics = {"accuracy": statistics.fmean(rates), "stderr": standard_error(rates)}
        yield EvalScore(
            name=name,
            scorer=name,
            scored_samples=sum(map(len, by_problem.values())),
            metrics={key: EvalMetric(name=key, value=value) for key, value in metrics.items()},
        )


def _sample(trajectory: Trajectory, task: Task | None, model: str, epoch: int) -> Any:
    from inspect_ai.log import EvalSample, EvalSampleLimit
    from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage
    from inspect_ai.scorer import Score

    asked: list[Any] = [ChatMessageUser(content=task.question if task else "".join(s.text for s in trajectory.prompt))]
    if task and task.system:
        asked.insert(0, ChatMessageSystem(content=task.system))
    messages, events = list(asked), []
    for turn in trajectory.turns:
        if turn.repair is not None:
            events += _repair(turn, model, messages)
        else:
            events += _events(turn, model, messages)
        messages += _messages(turn)
    scores = {}
    if trajectory.reward is not None:
        grader = task.meta.get("grader") if task else None
        right = {str(grader or "grader"): trajectory.reward > 0, **(trajectory.grades or {})}
        scores = {name: Score(value="C" if passed else "I", answer=trajectory.answer) for name, passed in right.items()}
    final = trajectory.turns[-1].text if trajectory.turns else ""
    read, written = tokens_read(trajectory), trajectory.sampled_tokens
    return EvalSample(
        id=trajectory.task,
        epoch=epoch,
        input=asked[-1].content,
        target=task.answer if task else trajectory.expected or "",
        messages=messages,
        output=ModelOutput.from_content(model, strip_turn_end(final)),
        scores=scores or None,
        metadata={"rollout": trajectory.id, "stop": trajectory.stop, "calls": trajectory.raw_calls,
                  "failed_calls": trajectory.raw_failures,
                  "repaired": sum(t.repair is not None for t in trajectory.turns)},
        events=events,
        model_usage={model: ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)},
        limit=EvalSampleLimit(type=LIMITS[trajectory.stop], limit=0) if trajectory.stop in LIMITS else None,
        uuid=hashlib.blake2b(f"{trajectory.id} {epoch}".encode(), digest_size=16).hexdigest(),  # names files of scout
    )  # fmt: skip


def _messages(turn: Turn) -> list[Any]:
    """A turn as Inspect's messages: the assistant's, with its calls, and what each tool answered."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageTool
    from inspect_ai.tool import ToolCall

    text = turn.text[: turn.calls[0].char].rstrip("\n") if turn.calls else strip_turn_end(turn.text)
    calls = [
        ToolCall(
            id=call.id,
            function=call.name,
            arguments={"code": call.arguments} if isinstance(call.arguments, str) else dict(call.arguments),
            parse_error="the arguments cannot be read" if call.malformed else None,
        )
        for call in turn.calls
    ]
    names = {call.id: call.name for call in turn.calls}
    answers = [
        ChatMessageTool(content=o.text, tool_call_id=o.call_id, function=names.get(o.call_id), error=_error(o))
        for o in turn.observations
    ]
    return [ChatMessageAssistant(content=text, tool_calls=calls or None), *answers]


def _error(observation: Any) -> Any:
    from inspect_ai.tool import ToolCallError

    if observation.status == "ok":
        return None
    kind = ERRORS.get(observation.status, "sandbox_unavailable")
    return ToolCallError(kind, observation.error_type or observation.status)


def _events(turn: Turn, model: str, before: Iterable[Any]) -> list[Any]:
    """What happened in a turn: the model's generation, then each call."""
    from inspect_ai.event import ModelEvent, ToolEvent
    from inspect_ai.model import ChatCompletionChoice, GenerateConfig, ModelOutput, ModelUsage

    reply, *answers = _messages(turn)
    written = sum(len(s.ids or ()) for s in turn.generated)
    stop = {"call": "tool_calls", "length": "max_tokens"}.get(turn.stop, "stop")
    output = ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=reply, stop_reason=stop)],
        usage=ModelUsage(input_tokens=0, output_tokens=written, total_tokens=written),
    )
    events: list[Any] = [
        ModelEvent(
            model=model, input=list(before), tools=[], tool_choice="auto", config=GenerateConfig(), output=output
        )
    ]
    for call, answer, observation in zip(reply.tool_calls or (), answers, turn.observations, strict=False):
        events.append(
            ToolEvent(
                id=call.id, function=call.function, arguments=call.arguments, result=answer.content, error=answer.error,
                working_time=observation.seconds, failed=observation.status != "ok",
            )
        )  # fmt: skip
    return events


def _repair(turn: Turn, model: str, before: Sequence[Any]) -> list[Any]:
    """The attempts that a repair took out of a turn, as they were sampled, and what it decided."""
    from inspect_ai.event import InfoEvent

    record, history, events = turn.repair, list(before), []
    for attempt in turn.raw():
        events += _events(attempt, model, history)
        history += _messages(attempt)
    about = {"decision": record.decision, "similarity": record.similarity, "attempts": record.attempts,
             "reason": record.reason} if record else {}  # fmt: skip
    return [*events, InfoEvent(source="retcon.repair", data={**about, "text": as_text(about)})]
