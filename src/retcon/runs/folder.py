"""Folder of a training run: manifest, metrics, trajectories, checkpoints.

run.json                     the run manifest
metrics.jsonl                a line per step
trajectories/step-000001.jsonl.zst   the rollouts of a step
checkpoints/step-000020/     a Hugging Face folder, with the optimiser's state beside the weights
final/                       a Hugging Face folder, once the run is over
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from retcon import __version__
from retcon.config.schema import Recipe
from retcon.config.section import Section, Work
from retcon.core.errors import CheckpointError, RecordError, RetconError
from retcon.core.types import Trajectory
from retcon.runs.metrics import Metrics, read_metrics
from retcon.runs.tracking import find_trackers
from retcon.store.index import make_indexer
from retcon.store.jsonl import lines_of
from retcon.store.members import default_suffix, write_members
from retcon.store.whole import (
    check_unlocked,
    fsync,
    lock_folder,
    remove_partial,
    storage_errors,
    write_json,
    write_whole,
)

LOG = logging.getLogger(__name__)
PENDING_TOKENS = 4_000_000
"""Tokens of rollouts that wait to be written at most: about 300 MB in memory."""
KEPT_EVERY = 10
"""Steps that are removed last are the multiples of this, where a run has more rollouts than `run.keep_gb` allows."""


def step_file(folder: Path, step: int) -> Path:
    """Return the file of a step's rollouts, existing or future. In `trajectories/`, with any compression."""
    name = f"step-{step:06d}.jsonl"
    there = (folder / f"{name}{suffix}" for suffix in ("", ".zst", ".gz"))
    return next((path for path in there if path.exists()), folder / f"{name}{default_suffix()}")


def write_step(folder: Path, step: int, rollouts: Iterable[Trajectory]) -> Path:
    """Write a step's rollouts, replacing earlier ones. Raises StorageError."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    old = step_file(folder, step)
    path = folder / f"step-{step:06d}.jsonl{default_suffix()}"
    write_members(path, chain.from_iterable(map(lines_of, rollouts)))
    if old != path:
        old.unlink(missing_ok=True)
    return path


def steps_to_remove(sizes: dict[int, int], budget: int) -> list[int]:
    """Return the steps to remove, in order, to fit the budget. sizes, budget: bytes.

    The oldest go first, but the newest step never; multiples of KEPT_EVERY and the first step go when no others are
    left.
    """
    total, found = sum(sizes.values()), []
    older = sorted(sizes)[:-1]
    marked = {step for step in older if step % KEPT_EVERY == 0 or step == older[0]}
    for step in [*(s for s in older if s not in marked), *(s for s in older if s in marked)]:
        if total <= budget:
            break
        total -= sizes[step]
        found.append(step)
    return found


@dataclass(slots=True)
class _Step:
    number: int
    tokens: int
    rollouts: Callable[[], Iterator[Trajectory]]


class RolloutStore:
    """Writer thread for `trajectories/step-000001.jsonl.zst` and so on.

    Training never waits for the disk: what no longer fits in memory is not stored, and a disk that refuses a file ends
    the storing, with a warning each. Without zstandard the files are `.gz`. after: called with each new file.
    """

    def __init__(self, folder: Path, keep_gb: float, after: Callable[[Path], None] | None = None) -> None:
        self.folder, self.budget, self._after = folder, int(keep_gb * 1e9), after
        self._waiting: deque[_Step] = deque()
        self._tokens = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = self._failed = self._skipped = False

    def add(self, step: int, rollouts: Callable[[], Iterator[Trajectory]], tokens: int) -> None:
        """Queue a step's rollouts for storing. tokens: their number, for the memory they hold."""
        if not self.budget or self._failed:
            return
        with self._changed:
            if self._waiting and self._tokens + tokens > PENDING_TOKENS:
                if not self._skipped:
                    LOG.warning("%s: the disk is slower than the training: rollouts of step %d and perhaps of others "
                                "are not stored", self.folder, step)  # fmt: skip
                self._skipped = True
                return
            self._waiting.append(_Step(step, tokens, rollouts))
            self._tokens += tokens
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="rollouts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything added is on the disk."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                step = self._waiting[0]
            if not self._failed:
                self._store(step)
            with self._changed:
                self._waiting.popleft()
                self._tokens -= step.tokens
                self._changed.notify_all()

    def _store(self, step: _Step) -> None:
        try:
            path = write_step(self.folder, step.number, step.rollouts())
            self._thin()
        except (RetconError, OSError) as error:
            self._failed = True
            LOG.warning("rollouts are not stored from step %d on; the training goes on: %s", step.number, error)
            return
        if self._after is not None:
            self._after(path)

    def _thin(self) -> None:
        files = {int(path.name[5:11]): path for path in self.folder.glob("step-??????.jsonl*")}
        for step in steps_to_remove({step: path.stat().st_size for step, path in files.items()}, self.budget):
            with suppress(FileNotFoundError):
                files[step].unlink()


# run.json, the run manifest: what a run is, what it started from, and what it computed on.
#
# {"format": 1, "version": …, "kind": "rl", "recipe": …, "inputs": {name: fingerprint}, "start": …, "places": […],
#  "harnesses": {import path: [hash of its code, …]}}

FINAL = "final"
Keys = Collection[str]
Values = Mapping[str, Mapping[str, object]]
"""A recipe, or a part of it, as JSON: section to key to value."""
WEIGHTS, PROBLEMS = "weights", "problems"
"""What runs that are compared start from, and are measured on: what a recipe names may change, and the recipe not."""


def relevant(recipe: Recipe, work: Work) -> dict[str, dict[str, object]]:
    """Return the keys that `work` depends on (`Section.resume_keys`), as JSON, `flat`."""
    found: dict[str, dict[str, object]] = {}
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        keys = section.keys_for(work) if isinstance(section, Section) else ()
        if keys:
            found[name] = section.model_dump(mode="json", include=set(keys))
    if work == "rl":
        whole = flat(recipe.model_dump(mode="json"))
        found |= {name: keys for name, keys in whole.items() if name.partition(".")[0] == "stages"}
    return found


def flat(recipe: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Return a whole recipe as `Values` with stages as sections. `stages.2` has keys such as `rollout.max_tokens`,
    `stages` the names, if any."""
    stages = recipe.get("stages", ())
    found = {name: dict(keys) for name, keys in recipe.items() if name != "stages"}
    found["stages"] = {"names": [stage["name"] for stage in stages]} if stages else {}
    for number, stage in enumerate(stages, start=1):
        keys: dict[str, object] = {}
        for name, value in stage.items():
            keys |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {name: value}
        found[f"stages.{number}"] = keys
    return found


def as_now(old: Values, recipe: Recipe, part: Values | None = None) -> dict[str, dict[str, object]]:
    """Complete `old`, which an earlier Retcon may have written. Keys that it lacks and that have their default in the
    recipe are added: a new key's default keeps the earlier behaviour; the one exception is written out below. part:
    what `old` should have of the recipe, by default all."""
    found = {name: dict(keys) for name, keys in old.items()}
    masks = [v for keys in old.values() for k, v in keys.items() if k.endswith(("truncated", "void_turns"))]
    if "mask" in masks:  # masked rollouts used to stay in the baseline
        found["rl"] = {"masked_in_baseline": True, **found.get("rl", {})}
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        if not isinstance(section, Section):
            continue
        keys = found.setdefault(name, {})
        for key, value in section.model_dump(mode="json").items():
            usual = type(section).model_fields[key].get_default(call_default_factory=True)
            wanted = part is None or key in part.get(name, {})
            if wanted and key not in keys and getattr(section, key) == usual:
                keys[key] = value
    return found


def is_immaterial(section: str, before: Mapping[str, object], key: str, value: object) -> bool:
    """Whether a key of a section or stage may change mid-run. Such keys are in `Section.resume_ignores`, or are empty
    tables that an earlier Retcon did not know."""
    new_and_empty = key not in before and value == {}
    if section.startswith("stages."):
        section, _, key = key.partition(".")
    field = Recipe.model_fields.get(section)
    return new_and_empty or (field is not None and key in getattr(field.annotation, "resume_ignores", ()))


def differing(old: Values, new: Values) -> Iterator[str]:
    """Yield `section.key was X, is Y` for every key that differs; None stands for a missing one.

    Sections that `new` lacks are not compared, nor keys in `resume_ignores` (`is_immaterial`).
    """
    for section, now in new.items():
        before = old.get(section, {})
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key) and not is_immaterial(section, before, key, now.get(key)):
                yield f"{section}.{key} was {before.get(key)!r}, is {now.get(key)!r}"


FORMAT = 1
NAME = "run.json"
RunKind = Literal["sft", "dpo", "rl"]
NOT_THERE = "not there yet"
"""In place of an input's fingerprint: a file that a later stage needs and that does not exist yet."""
RENDERED = "tools or chat template"
"""An input: the ids that texts, or the first prompts, came to, with the tools that stand in them. Runs of earlier
versions lack it, and go on."""


def manifest(
    kind: RunKind, recipe: Recipe, inputs: Mapping[str, str], tasks: str | None, start: str = ""
) -> dict[str, Any]:
    """The manifest of a run that begins now. tasks, start: name of the task set, and the model to start from, where
    they need not be the recipe's."""
    values = recipe.model_dump(mode="json")
    if tasks is not None:
        values["task"]["name"] = tasks
    about = {"format": FORMAT, "version": __version__, "kind": kind, "recipe": values, "inputs": dict(inputs)}
    return {**about, "start": start} if start else about


def check_place(root: Path, recipe: Recipe, about: Mapping[str, Any], skip: Keys = ()) -> bool:
    """Check that `root` holds this run or can hold a new one.

    Raises CheckpointError where `root` holds something else (another format, kind, recipe or input, or no run at all);
    nothing in it is touched then; also for a path that no model could be loaded from. StorageError where no folder can
    be made; for trackers what `find_trackers` raises. True for a run.
    """
    find_trackers(recipe.track)
    refuse_unloadable(root)
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root} is a file, not a run folder: choose another place for the run")
    if (root / NAME).exists():
        _check_same(root, recipe, about, skip)
        return True
    if root.is_dir() and any(not p.name.startswith(".") for p in root.iterdir()):
        raise CheckpointError(f"{root} is not empty and has no {NAME}: choose another folder, or empty this one")
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    return False


def refuse_unloadable(root: Path) -> None:
    """Raise CheckpointError for a path not in UTF-8, which safetensors cannot load."""
    text = str(root)
    if text.encode(errors="replace").decode() != text:
        raise CheckpointError(
            f"{root}: this path is not in UTF-8, and no model could be loaded from there: choose another place"
        )


def check_free(
    root: Path, kind: RunKind, recipe: Recipe, *, inputs: Mapping[str, str] = MappingProxyType({}), skip: Keys = ()
) -> None:
    """Check that a run can begin or continue in `root`; write nothing.

    Args:
        inputs: name to fingerprint of those known so far.
        skip: keys that the recipe leaves open, and whose values are not known yet.

    Raises what `check_place` raises, and CheckpointError where another process is at work there.
    """
    refuse_unloadable(root)
    if root.exists():
        check_place(root, recipe, manifest(kind, recipe, inputs, None), skip)
        check_unlocked(root)
    else:
        find_trackers(recipe.track)


def is_finished(root: Path, kind: RunKind, recipe: Recipe, inputs: Mapping[str, str]) -> bool:
    """Whether this run is in `root` and finished. Raises what `check_free` raises."""
    finished = RunFolder(root).finished
    if finished:
        check_free(root, kind, recipe, inputs=inputs)
    return finished


def longer_than(root: Path, kind: RunKind, recipe: Recipe) -> int:
    """Return the run's planned steps if the recipe has more, else 0."""
    try:
        before = int(json.loads((Path(root) / NAME).read_text(encoding="utf-8"))["recipe"][kind]["steps"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0  # no run yet, or a broken one, which the check of the folder reports
    return before if kind == "rl" and not recipe.stages and before < recipe.rl.steps else 0


def lengthen(root: Path, recipe: Recipe, before: int, *, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Let the run in `root`, of `before` steps, have the recipe's; keep its model so far as `final-STEPS`.

    Args:
        old: the inputs that the run of `before` steps would have now, which must be those that it had.
        new: the inputs of the longer run.

    Raises CheckpointError where it is another run, or another process is at work there.
    """
    root = Path(root)
    file = root / NAME
    with lock_folder(root):
        about = json.loads(file.read_text(encoding="utf-8"))
        check_place(root, recipe, manifest("rl", recipe, old, about["recipe"]["task"].get("name")))
        if (root / FINAL).is_dir():
            (root / FINAL).rename(root / f"{FINAL}-{before}")
        about["recipe"]["rl"]["steps"] = recipe.rl.steps
        write_json(file, {**about, "inputs": {**about["inputs"], **new}})
    falls = ""
    if recipe.rl.schedule != "constant":
        falls = f"; rl.schedule = {recipe.rl.schedule} falls over all of them, so that the learning rate rises again"
    LOG.info("%s goes on from %d to %d steps%s", root, before, recipe.rl.steps, falls)


def note(root: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Update the manifest by what `change` returns for it; nothing is written for an empty change."""
    about = json.loads((root / NAME).read_text(encoding="utf-8"))
    if new := change(about):
        write_json(root / NAME, {**about, **new})


def note_inputs(root: Path, inputs: Mapping[str, str]) -> None:
    """Add inputs to the manifest that the run began without."""

    def change(about: dict[str, Any]) -> Mapping[str, Any]:
        there = {RENDERED: NOT_THERE, **about["inputs"]}
        came = {name: value for name, value in inputs.items() if there.get(name) == NOT_THERE != value}
        return {"inputs": {**about["inputs"], **came}} if came else {}

    note(root, change)


def note_curve(root: Path, recipe: Recipe) -> None:
    """Store the curve's [evaluate] if the run began without one."""

    def change(about: dict[str, Any]) -> Mapping[str, Any]:
        begun = about["recipe"].get("evaluate", {}).get("every")
        return {} if begun else {"recipe": {**about["recipe"], "evaluate": recipe.evaluate.model_dump(mode="json")}}

    note(root, change)


def _check_same(root: Path, recipe: Recipe, about: Mapping[str, Any], skip: Keys) -> None:
    file = root / NAME
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        version = there["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(file, error) from error
    if version != FORMAT:
        raise CheckpointError(
            f"{root} is a run folder of format {version} (retcon {there.get('version', '?')}), this is retcon "
            f"{__version__} with format {FORMAT}: use that version, or start in another folder"
        )
    try:
        found_kind, found_recipe = there["kind"], flat(there["recipe"])
        found_inputs = {RENDERED: NOT_THERE, **there["inputs"]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(file, error) from error
    kind: RunKind = about["kind"]
    if found_kind != kind:
        raise CheckpointError(f"{root} holds a run of kind '{found_kind}', not '{kind}': choose another folder")
    now = flat(about["recipe"])
    then = as_now(found_recipe, recipe)
    named = relevant(recipe, kind)
    if not then["evaluate"].get("every"):
        named.pop("evaluate", None)  # there is no curve yet that other problems would go on
    found = differing(_part(then, named, recipe, kind), _part(now, named, recipe, kind))
    skip = {*skip, "rl.steps"} if longer_than(root, kind, recipe) else skip
    changed = [line for line in found if line.partition(" was ")[0] not in skip]
    if changed:
        more = f", or begin another run with its model: --from {root} --out OTHER" if (root / FINAL).is_dir() else ""
        raise CheckpointError(
            f"{root} was started with another recipe: {'; '.join(changed)}. Use the old values to continue (a larger "
            f"rl.steps goes on), or choose another folder{more}"
        )
    for name, value in about["inputs"].items():
        if found_inputs.get(name) not in (value, NOT_THERE):
            was = found_inputs.get(name, "not recorded")
            raise CheckpointError(f"{root} was started from other {name} ({was}, now {value}): choose another folder")


def _part(values: Values, named: Values, recipe: Recipe, kind: RunKind) -> dict[str, Mapping[str, object]]:
    """The named sections, whole or with the keys that matter."""
    found: dict[str, Mapping[str, object]] = {}
    for name, keys in named.items():
        section, here = getattr(recipe, name, None), values.get(name, {})
        some = isinstance(section, Section) and section.resume_keys[kind] is not None
        found[name] = {key: value for key, value in here.items() if key in keys} if some else here
    return found


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{file} is broken ({error!r}): this run cannot be resumed; start it in another folder")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a run: CPU seconds of its processes and wall seconds of its sessions."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


class Meter:
    """Cost meter that starts from `spent`, the cost of earlier sessions."""

    def __init__(self, spent: Cost | None = None) -> None:
        spent = spent or Cost()
        self._cpu = cpu_seconds() - spent.cpu_s
        self._wall = time.monotonic() - spent.wall_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop counting within the block."""
        before = self.read()
        try:
            yield
        finally:
            after = self.read()
            self._cpu += after.cpu_s - before.cpu_s
            self._wall += after.wall_s - before.wall_s

    def read(self) -> Cost:
        """Return the cost so far."""
        return Cost(cpu_seconds() - self._cpu, time.monotonic() - self._wall)


def cpu_seconds(proc: Path = Path("/proc")) -> float:
    """Return the CPU time of this process and all its descendants.

    Living ones are read from `proc`, where the system has it: a worker may live as long as the run.
    """
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + _descendants(proc, os.getpid())


def _descendants(proc: Path, root: int) -> float:
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold anything; the fields after it are numbers.
            fields = (entry / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, and both of its own dead children
    found, total = [root], 0
    while found:
        below = children.get(found.pop(), [])
        total += sum(ticks[pid] for pid in below)
        found += below
    return total / os.sysconf("SC_CLK_TCK")


STEP = re.compile(r"step-(\d+)(\.jsonl(\.gz|\.zst)?)?")


class RunFolder:
    """One run's folder, opened to continue it. Use `open_run`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.final = root / "final"
        self.metrics = root / "metrics.jsonl"
        self._store: RolloutStore | None = None

    @property
    def finished(self) -> bool:
        return self.final.is_dir()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the folder for training. Removes what a killed process left half written. Raises CheckpointError where
        another process trains here."""
        with lock_folder(self.root):
            for folder in (self.root, self.root / "checkpoints", self.root / "trajectories"):
                remove_partial(folder)
            try:
                yield
            finally:
                if self._store is not None:
                    self._store.close()
                    self._store = None

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint after `step` steps, existing or not."""
        return self.root / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """List (step, folder) of every checkpoint, newest first."""
        return _steps(self.root / "checkpoints")

    def note_place(self, line: str) -> None:
        """Record in the manifest where the run computes, if that has changed."""
        note(self.root, lambda about: {} if (places := about.get("places", []))[-1:] == [line]
             else {"places": [*places, line]})  # fmt: skip

    def note_harnesses(self, code: Mapping[str, str]) -> None:
        """Record the hashes of the run's harnesses; warn of changed ones. code: hash by import path.

        The run goes on: a fault in the harness may have been fixed.
        """

        def change(about: dict[str, Any]) -> Mapping[str, Any]:
            known: dict[str, list[str]] = about.get("harnesses", {})
            new = {path: [*known.get(path, []), one] for path, one in code.items() if [one] != known.get(path, [])[-1:]}
            for path in filter(known.get, new):
                LOG.warning(
                    "%s: rollout.harness = %s is other code than the run went on with so far: rollouts are made by the "
                    "new one from here on (docs/training/harnesses.md)", self.root, path,
                )  # fmt: skip
            return {"harnesses": {**known, **new}} if new else {}

        note(self.root, change)

    def log(self, line: Mapping[str, float | None]) -> None:
        """Append a step's metrics, handed to the system at once. Raises StorageError where the disk refuses."""
        # A number that is not finite is no JSON: the run could not be read any more, nor go on.
        known = {name: None if value is None or not math.isfinite(value) else value for name, value in line.items()}
        with storage_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(known) + "\n")

    def keep_metrics(self) -> None:
        """Flush metrics and rollouts to the disk: a checkpoint that survives a power cut needs those of its steps."""
        if self._store is not None:
            self._store.flush()
        if self.metrics.is_file():
            with storage_errors(self.metrics):
                fsync(self.metrics)

    def read_metrics(self) -> list[Metrics]:
        """Read metrics.jsonl, except a last line that was cut off. Raises RecordError by line, also for one without a
        step."""
        lines = read_metrics(self.metrics, cut_off=True)
        for number, line in enumerate(lines, start=1):
            if line.get("step") is None:
                raise RecordError(f"{self.metrics}, line {number}: not a step's metrics: it says no step")
        return lines

    def trajectories(self, step: int) -> Path:
        """Return the path of the rollouts of `step`, existing or not."""
        return step_file(self.root / "trajectories", step)

    def keep_trajectories(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write the rollouts of `step` at once."""
        write_step(self.root / "trajectories", step, trajectories)

    def store_rollouts(
        self, step: int, rollouts: Callable[[], Iterator[Trajectory]], *, tokens: int, keep_gb: float
    ) -> None:
        """Queue the rollouts of `step` for the writer thread (`RolloutStore`)."""
        if self._store is None:
            self._store = RolloutStore(self.root / "trajectories", keep_gb, make_indexer(self.root))
        self._store.add(step, rollouts, tokens)

    def cut(self, step: int) -> None:
        """Remove metrics and trajectories of steps after `step`."""
        kept = [line for line in self.read_metrics() if (line["step"] or 0) <= step]
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for later, path in _steps(self.root / "trajectories"):
            if later > step:
                path.unlink()


def open_run(
    root: Path,
    *,
    kind: RunKind,
    recipe: Recipe,
    inputs: Mapping[str, str],
    tasks: str | None = None,
    start: str = "",
) -> RunFolder:
    """Open the run in `root`, or begin one there.

    inputs: name to fingerprint of what the run starts from. tasks, start: name of the task set, and the model to start
    from, where they need not be the recipe's. Raises CheckpointError where `root` holds something else: another format,
    kind, recipe or input, or no run at all; nothing in it is touched then; and where another process begins one there.
    """
    root = Path(root)
    about = manifest(kind, recipe, inputs, tasks, start)
    if not check_place(root, recipe, about):
        with lock_folder(root):
            if not check_place(root, recipe, about):  # or another process has begun one here meanwhile
                write_json(root / NAME, about)
    note_inputs(root, inputs)
    return RunFolder(root)


def check_run(root: Path, *, kind: RunKind, recipe: Recipe) -> None:
    """Check the folder as `open_run` will, before inputs are made. It is made where absent, since only that shows
    whether it can be."""
    check_place(Path(root), recipe, manifest(kind, recipe, {}, None))


def _steps(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(int(m[1]), p) for p in folder.iterdir() if (m := STEP.fullmatch(p.name))]
    return sorted(found, reverse=True)
