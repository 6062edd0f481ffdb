"""The folder of a training run: what it is, its metrics, its trajectories, its checkpoints.

run.json                     format, version, kind, recipe, fingerprints of what it started from, what it computed on
metrics.jsonl                a line per step
trajectories/step-000010.jsonl
checkpoints/step-000020/     a Hugging Face folder, with the optimiser's state beside the weights
final/                       a Hugging Face folder, once the run is over
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from retcon import __version__
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.train.files import explained, remove_partial, write_json, write_whole

FORMAT = 1
RunKind = Literal["sft", "dpo", "rl"]
SECTIONS: dict[RunKind, tuple[str, ...]] = {
    "sft": ("run", "model", "compute", "lora", "sft"),
    "dpo": ("run", "model", "compute", "lora", "dpo"),
    "rl": ("run", "model", "compute", "lora", "task", "rollout", "repair", "select", "sandbox", "rl"),
}
"""The sections of a recipe on which a run of each kind depends: the others may change before it is resumed."""
STEP = re.compile(r"step-(\d+)(\.jsonl)?")


class RunFolder:
    """One run's folder, opened for going on. Use `open_run`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.final = root / "final"
        self.metrics = root / "metrics.jsonl"

    @property
    def finished(self) -> bool:
        return self.final.is_dir()

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint after `step` steps lies, or will."""
        return self.root / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, folder) of every checkpoint, newest first."""
        return _steps(self.root / "checkpoints")

    def note_place(self, line: str) -> None:
        """Keep in run.json what the run computes on from here, where that is not what it computed on before."""
        file = self.root / "run.json"
        about = json.loads(file.read_text(encoding="utf-8"))
        if about.get("places", [])[-1:] != [line]:
            write_json(file, {**about, "places": [*about.get("places", []), line]})

    def log(self, line: Mapping[str, float | None]) -> None:
        """Append a step's metrics, handed to the system at once. Raises CheckpointError where the disk says no."""
        with explained(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, up to one that was cut off as it was written."""
        lines: list[dict[str, Any]] = []
        text = self.metrics.read_text(encoding="utf-8") if self.metrics.exists() else ""
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                break
        return lines

    def keep_trajectories(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write the rollouts of `step`, those that were not trained on among them."""
        with explained(self.root / "trajectories"):
            (self.root / "trajectories").mkdir(exist_ok=True)
        jsonl.write(self.root / "trajectories" / f"step-{step:06d}.jsonl", trajectories)

    def cut(self, step: int) -> None:
        """Forget metrics and trajectories of steps after `step`, which will be taken again."""
        kept = [line for line in self.read_metrics() if line["step"] <= step]
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for later, path in _steps(self.root / "trajectories"):
            if later > step:
                path.unlink()


def open_run(
    root: Path, *, kind: RunKind, recipe: Recipe, inputs: Mapping[str, str], tasks: str | None = None
) -> RunFolder:
    """The run in `root`, new where the folder is absent or empty.

    inputs: name to fingerprint of what the run starts from. tasks: name of the task set, where it need not be the
    recipe's. Raises CheckpointError where `root` holds something else: another format, kind, recipe or input, or no run
    at all; nothing in it is touched then.
    """
    root = Path(root)
    about = _about(kind, recipe, inputs, tasks)
    if not _check_place(root, about):
        write_json(root / "run.json", about)
    for folder in (root, root / "checkpoints"):
        remove_partial(folder)
    return RunFolder(root)


def check_run(root: Path, *, kind: RunKind, recipe: Recipe) -> None:
    """Raises what `open_run` will, but for other inputs: to be called before work that makes those. The folder is made
    where it is absent, since only that tells whether it can be."""
    _check_place(Path(root), _about(kind, recipe, {}, None))


def _about(kind: RunKind, recipe: Recipe, inputs: Mapping[str, str], tasks: str | None) -> dict[str, Any]:
    values = recipe.model_dump(mode="json")
    if tasks is not None:
        values["task"]["name"] = tasks
    return {"format": FORMAT, "version": __version__, "kind": kind, "recipe": values, "inputs": dict(inputs)}


def _check_place(root: Path, about: Mapping[str, Any]) -> bool:
    """Whether there is such a run; else there is a folder for one. Raises CheckpointError (see `open_run`)."""
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root} is a file, not a run folder: choose another place for the run")
    if (root / "run.json").exists():
        _check_same(root, about)
        return True
    if root.is_dir() and any(not p.name.startswith(".") for p in root.iterdir()):
        raise CheckpointError(f"{root} is not empty and has no run.json: choose another folder, or empty this one")
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
    return False


def _check_same(root: Path, about: Mapping[str, Any]) -> None:
    file = root / "run.json"
    try:
        there = json.loads(file.read_text(encoding="utf-8"))
        version = there["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(file, error) from error
    if version != FORMAT:
        raise CheckpointError(
            f"{root} is a run folder of format {version} (retcon {there.get('version', '?')}), this is retcon "
            f"{__version__} with format {FORMAT}: use that version, or start in another folder"
        )
    try:
        found_kind, found_recipe, found_inputs = there["kind"], dict(there["recipe"]), dict(there["inputs"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(file, error) from error
    kind: RunKind = about["kind"]
    if found_kind != kind:
        raise CheckpointError(f"{root} holds a run of kind '{found_kind}', not '{kind}': choose another folder")
    differing = _differing(found_recipe, about["recipe"], SECTIONS[kind])
    if differing:
        raise CheckpointError(
            f"{root} was started with another recipe: {'; '.join(differing)}. Run it with the old values to go on, or "
            "choose another folder"
        )
    for name, value in about["inputs"].items():
        if found_inputs.get(name) != value:
            was = found_inputs.get(name, "not recorded")
            raise CheckpointError(f"{root} was started from other {name} ({was}, now {value}): choose another folder")


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{file} is broken ({error!r}): this run cannot go on; start it in another folder")


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], sections: Iterable[str]) -> list[str]:
    """`section.key was X, is Y` for every key that differs."""
    found = []
    for section in sections:
        before, now = old.get(section, {}), new[section]
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                found.append(f"{section}.{key} was {before.get(key)!r}, is {now.get(key)!r}")
    return found


def _steps(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(int(m[1]), p) for p in folder.iterdir() if (m := STEP.fullmatch(p.name))]
    return sorted(found, reverse=True)
