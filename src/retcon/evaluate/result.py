"""Results of an evaluation: per-problem counts, means, and their file."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec

from retcon.core.codec import from_dict
from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import FirstTries, Trajectory, count_first_tries, token_count
from retcon.evaluate.statistics import majority, pass_at_k
from retcon.runs.folder import Cost, Meter
from retcon.store.jsonl import attach_children, lines_of
from retcon.store.lines import SUFFIX, LineAppender
from retcon.store.whole import check_regular_file, lock_file, write_whole
from retcon.tasks.graders.text import normalize, parse_rational

RESULT_FORMAT = 1
PASS_AT = (1, 8, 16)
"""Values of k that are reported, where problems have enough samples."""
K = 8


def setting_names(top_p: float, sampling: str = "plain") -> tuple[str, ...]:
    """Return the names of an evaluation's settings. top_p: of the second plain one, which 1 leaves out."""
    if sampling != "plain":
        return (sampling,)
    return ("t1",) if top_p == 1 else ("t1", "top_p")


class Problem(msgspec.Struct, frozen=True):
    """One problem in one setting. samples: rollouts without a fault; means are over those. first_try_failures: share of
    their first tries that failed (`retcon.core.types`), None without a try. calls, prompt_tokens (read anew in each
    turn): means; None in results of earlier versions. Tokens include those of children. majority: chance that the most
    frequent answer is right, None where answers are programs. grades: share that is right to each judge, of a grader
    with several."""

    task: str
    samples: int
    passed: int
    failed_calls: float
    tokens: float
    first_try_failures: float | None = None
    calls: float | None = None
    prompt_tokens: float | None = None
    majority: float | None = None
    grades: dict[str, float] = {}


class Setting(msgspec.Struct, frozen=True):
    """Results of a sampling setting. lost: rollouts that a fault ended, left out of every other figure.

    failure_types: failed calls by error type, else by status. cpu_s, wall_s: seconds that it took.
    sampling: what else was set, such as top_k. seconds: by problem, wall time from its first rollout's start to its
    last one's end; tool_seconds: mean of its rollouts' calls.
    """

    temperature: float
    top_p: float
    problems: list[Problem]
    lost: int
    failure_types: dict[str, int]
    stops: dict[str, int]
    cpu_s: float
    wall_s: float
    sampling: dict[str, float] = {}
    seconds: dict[str, float] = {}
    tool_seconds: dict[str, float] = {}

    def per_problem(self, value: Callable[[Problem], float]) -> list[float]:
        """Return `value` of each problem that has samples."""
        return [value(p) for p in self.problems if p.samples]

    def passes(self, k: int) -> list[float]:
        """Return unbiased pass@k of each problem with at least k samples."""
        return [pass_at_k(p.samples, p.passed, k) for p in self.problems if p.samples >= k]


class Result(msgspec.Struct, frozen=True):
    """Content of result.json. pass1, pass8, pass16: means over problems by setting, None where no problem has enough
    samples. inputs: fingerprints of what was measured, empty in earlier versions. about: other facts for the card:
    versions of graders and template, the benchmark, packages."""

    checkpoint: str
    recipe: dict[str, dict[str, object]]
    settings: dict[str, Setting]
    pass1: dict[str, float | None] = {}
    pass8: dict[str, float | None] = {}
    pass16: dict[str, float | None] = {}
    failed_calls: dict[str, float | None] = {}
    inputs: dict[str, str] = {}
    about: dict[str, Any] = {}
    format: int = RESULT_FORMAT

    @property
    def whole(self) -> bool:
        """Whether all settings of its recipe's [evaluate] are measured."""
        section = self.recipe.get("evaluate", {})
        top_p, sampling = section.get("top_p"), str(section.get("sampling", "plain"))
        return not isinstance(top_p, int | float) or self.settings.keys() >= set(setting_names(top_p, sampling))

    def without_settings(self) -> Result:
        """Return the result with its inputs alone."""
        return Result(self.checkpoint, self.recipe, {}, inputs=self.inputs, about=self.about)

    def with_setting(self, name: str, setting: Setting) -> Result:
        """Return the result with one more setting and updated means."""
        settings = {**self.settings, name: setting}

        def means(values: Callable[[Setting], list[float]]) -> dict[str, float | None]:
            return {key: statistics.fmean(v) if (v := values(s)) else None for key, s in settings.items()}

        return msgspec.structs.replace(
            self,
            settings=settings,
            pass1=means(lambda s: s.passes(1)),
            pass8=means(lambda s: s.passes(8)),
            pass16=means(lambda s: s.passes(16)),
            failed_calls=means(lambda s: s.per_problem(lambda p: p.failed_calls)),
        )


def score(
    groups: Iterable[tuple[str, Sequence[Trajectory]]],
    *,
    temperature: float,
    top_p: float,
    cpu_s: float,
    wall_s: float,
    seconds: Mapping[str, float] = MappingProxyType({}),
) -> Setting:
    """Return the figures of graded rollouts by task id. seconds: wall time of each task's rollouts.

    Failed calls are raw: as they happened. A rollout without a reward (infrastructure) counts as lost, never as zero.
    """
    problems: list[Problem] = []
    failure_types: Counter[str] = Counter()
    stops: Counter[str] = Counter()
    tool_seconds: dict[str, float] = {}
    lost = 0
    for task, rollouts in groups:
        kept = [t for t in rollouts if t.reward is not None]
        tool_seconds[task] = round(_mean(t.raw_seconds for t in kept), 4)
        lost += len(rollouts) - len(kept)
        stops.update(t.stop for t in kept)
        failure_types.update(kind for t in kept for kind in _failures(t))
        right = [(t.reward or 0) > 0 for t in kept]
        problems.append(
            Problem(
                task,
                samples=len(kept),
                passed=sum(right),
                failed_calls=_mean(t.raw_failures for t in kept),
                tokens=_mean(sum(node.sampled_tokens for node in t.tree) for t in kept),
                first_try_failures=_first_try_failures(kept),
                calls=_mean(t.raw_calls for t in kept),
                prompt_tokens=_mean(sum(map(tokens_read, t.tree)) for t in kept),
                majority=_majority(kept, right),
                grades=_grades(kept),
            )
        )
    return Setting(
        temperature, top_p, problems, lost, dict(failure_types), dict(stops), cpu_s, wall_s, seconds=dict(seconds),
        tool_seconds=tool_seconds,
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.fmean(known) if known else 0.0


def tokens_read(trajectory: Trajectory) -> int:
    """Count the prompt tokens of all turns, histories included, as billed."""
    history, total = token_count(trajectory.prompt), 0
    for turn in trajectory.turns:
        read = history
        for attempt in turn.raw():  # a lookahead reads the attempts before it
            total += read
            read += token_count(attempt.segments)
        history += token_count(turn.segments)
    return total


def _majority(rollouts: Sequence[Trajectory], right: Sequence[bool]) -> float | None:
    answers = [t.answer for t in rollouts]
    if not any(answers) or any(answer is not None and "\n" in answer for answer in answers):  # programs do not vote
        return None
    return majority([None if a is None else str(parse_rational(a) or normalize(a)) for a in answers], right)


def _grades(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """Share of rollouts that each of several judges finds right."""
    graded = [t.grades for t in rollouts if t.grades]
    return {name: _mean(float(grades[name]) for grades in graded) for name in (graded[0] if graded else ())}


def _first_try_failures(rollouts: Sequence[Trajectory]) -> float | None:
    tries = [count_first_tries(t) for t in rollouts]
    return FirstTries(sum(t.made for t in tries), sum(t.failed for t in tries)).rate


def _failures(trajectory: Trajectory) -> Iterable[str]:
    for turn in trajectory.turns:
        for attempt in turn.raw():
            for observation in attempt.observations:
                if observation.status not in ("ok", "infrastructure"):
                    yield observation.error_type or observation.status


def read_result(path: Path) -> Result:
    """Read result.json. Raises CheckpointError for an absent, broken or foreign file."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no evaluation result; `retcon eval` makes one") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path}: the evaluation result cannot be read: {error}; remove it to evaluate again"
        ) from error
    if result.format != RESULT_FORMAT:
        raise CheckpointError(f"{path}: format {result.format}, this version reads {RESULT_FORMAT}; evaluate again")
    return result


def write_result(path: Path, result: Result) -> None:
    """Write result.json, whole or not at all. Raises StorageError where it cannot be written."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(result), indent=1))


class PartialResults:
    """Measured problems of a setting, in memory. meter: their cost. seconds: wall time of each."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Trajectory]] = {}
        self.seconds: dict[str, float] = {}
        self.meter = Meter()

    def add(self, task: str, group: Sequence[Trajectory], seconds: float | None = None) -> None:
        """Add the rollouts of a problem; one with lost rollouts is left out and measured again."""
        if seconds is not None:
            self.seconds[task] = seconds
        if all(t.reward is not None for t in group):
            self.groups[task] = list(group)


class PartialFile(PartialResults, AbstractContextManager["PartialFile"]):
    """Measured problems in a locked `FILE.partial`, whose first line names the evaluation; resumes what it holds.

    Raises CheckpointError for a broken file or one that another process writes, RecordError, StorageError.
    """

    def __init__(self, file: Path, of: Result) -> None:
        super().__init__()
        self._path = partial(file)
        check_regular_file(self._path)
        with ExitStack() as opening:
            opening.enter_context(lock_file(self._path))
            # Under the lock, as it removes a line that was cut off, or that another process is writing.
            self._lines = opening.enter_context(LineAppender(self._path))
            self._read(of)
            self._open = opening.pop_all()

    def _read(self, of: Result) -> None:
        _, *lines = self._path.read_bytes().splitlines() or [b""]
        if read_partial(self._path) is None:
            os.truncate(self._path, 0)
            self._lines.add(msgspec.json.encode(of) + b"\n", name="what is measured")
        try:
            for number, line in enumerate(lines, start=2):
                entry = msgspec.json.decode(line)
                group = list(
                    attach_children(from_dict(one, f"{self._path}, line {number}") for one in entry["rollouts"])
                )
                super().add(entry["task"], group, entry.get("seconds"))
                self.meter = Meter(Cost(entry["cpu_s"], entry["wall_s"]))
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, RecordError) as error:
            raise _broken(self._path, error) from error

    def add(self, task: str, group: Sequence[Trajectory], seconds: float | None = None) -> None:
        super().add(task, group, seconds)
        if task in self.groups:
            cost = self.meter.read()
            about = {"task": task, "cpu_s": cost.cpu_s, "wall_s": cost.wall_s, "seconds": seconds}
            line = {**about, "rollouts": [json.loads(node) for one in group for node in lines_of(one)]}
            self._lines.add(msgspec.json.encode(line) + b"\n", name=f"problem {task}")

    def take(self, setting: Setting, rollouts: Iterable[Trajectory]) -> None:
        """Add an earlier setting's problems with its cost. rollouts: all of it."""
        groups: dict[str, list[Trajectory]] = {}
        for one in rollouts:
            groups.setdefault(one.task, []).append(one)
        if not self.groups:
            self.meter = Meter(Cost(setting.cpu_s, setting.wall_s))
        for task, group in groups.items():
            if task not in self.groups:
                self.add(task, group, setting.seconds.get(task))

    def remove(self) -> None:
        """Remove the file once the setting is stored elsewhere."""
        self._path.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def partial(file: Path) -> Path:
    """Return the path of a file's rollouts until all are there."""
    return file.with_name(file.name + SUFFIX)


def read_partial(path: Path) -> Result | None:
    """Read the evaluation that a partial file belongs to; None without rollouts. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            line, more = file.readline(), file.read(1)
        of = msgspec.json.decode(line, type=Result) if line.endswith(b"\n") else None
        return of if more else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is broken ({error}): remove it, and what it keeps is measured again")
