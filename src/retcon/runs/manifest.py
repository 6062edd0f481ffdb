"""run.json, the run manifest: what a run is, what it started from, and what it computed on.

{"format": 1, "version": …, "kind": "rl", "recipe": …, "inputs": {name: fingerprint}, "start": …, "places": […],
 "harnesses": {import path: [hash of its code, …]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from retcon import __version__
from retcon.config.schema import Recipe
from retcon.config.section import Section
from retcon.core.errors import CheckpointError
from retcon.runs.comparing import Values, as_now, differing, flat, relevant
from retcon.runs.tracking import find_trackers
from retcon.store.whole import explained, write_json

FORMAT = 1
NAME = "run.json"
RunKind = Literal["sft", "dpo", "rl"]
NOT_THERE = "not there yet"
"""In place of an input's fingerprint: what a later stage of the run will need, and nobody has made yet."""
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


def check_place(root: Path, recipe: Recipe, about: Mapping[str, Any]) -> bool:
    """Whether there is a run of this manifest in `root`; else there is a folder for one.

    Raises CheckpointError where `root` holds something else (another format, kind, recipe or input, or no run at all);
    nothing in it is touched then; also for a path that no model could be loaded from. StorageError where no folder can
    be made; for trackers what `find_trackers` raises.
    """
    find_trackers(recipe.track)
    refuse_unloadable(root)
    if root.exists() and not root.is_dir():
        raise CheckpointError(f"{root} is a file, not a run folder: choose another place for the run")
    if (root / NAME).exists():
        _check_same(root, recipe, about)
        return True
    if root.is_dir() and any(not p.name.startswith(".") for p in root.iterdir()):
        raise CheckpointError(f"{root} is not empty and has no {NAME}: choose another folder, or empty this one")
    with explained(root):
        root.mkdir(parents=True, exist_ok=True)
    return False


def refuse_unloadable(root: Path) -> None:
    """Raises CheckpointError for a path that is not in UTF-8: safetensors writes models there, and reads none."""
    text = str(root)
    if text.encode(errors="replace").decode() != text:
        raise CheckpointError(
            f"{root}: this path is not in UTF-8, and no model could be loaded from there: choose another place"
        )


def check_free(root: Path, kind: RunKind, recipe: Recipe) -> None:
    """Raises what `check_place` would for a run of this recipe, whatever it starts from; makes nothing."""
    refuse_unloadable(root)
    if root.exists():
        check_place(root, recipe, manifest(kind, recipe, {}, None))
    else:
        find_trackers(recipe.track)


def note_inputs(root: Path, inputs: Mapping[str, str]) -> None:
    """Keep in the manifest inputs that were not there when the run began."""
    file = root / NAME
    about = json.loads(file.read_text(encoding="utf-8"))
    there = {RENDERED: NOT_THERE, **about["inputs"]}
    came = {name: value for name, value in inputs.items() if there.get(name) == NOT_THERE != value}
    if came:
        write_json(file, {**about, "inputs": {**about["inputs"], **came}})


def note_place(root: Path, line: str) -> None:
    """Keep in the manifest what the run computes on from here, where that is not what it computed on before."""
    file = root / NAME
    about = json.loads(file.read_text(encoding="utf-8"))
    if about.get("places", [])[-1:] != [line]:
        write_json(file, {**about, "places": [*about.get("places", []), line]})


def note_harnesses(root: Path, code: Mapping[str, str]) -> list[str]:
    """Keep in the manifest the code of a run's harnesses (a hash by import path) where it is not what it was. Those of
    which it is another than the run went on with so far."""
    file = root / NAME
    about = json.loads(file.read_text(encoding="utf-8"))
    known: dict[str, list[str]] = about.get("harnesses", {})
    new = {path: [*known.get(path, []), one] for path, one in code.items() if [one] != known.get(path, [])[-1:]}
    if new:
        write_json(file, {**about, "harnesses": {**known, **new}})
    return [path for path in new if path in known]


def note_curve(root: Path, recipe: Recipe) -> None:
    """Keep in the manifest what a curve's points are measured by, where this is the first of a run that began
    without one."""
    file = root / NAME
    about = json.loads(file.read_text(encoding="utf-8"))
    if not about["recipe"].get("evaluate", {}).get("every"):
        evaluate = recipe.evaluate.model_dump(mode="json")
        write_json(file, {**about, "recipe": {**about["recipe"], "evaluate": evaluate}})


def _check_same(root: Path, recipe: Recipe, about: Mapping[str, Any]) -> None:
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
    changed = list(differing(_part(then, named, recipe, kind), _part(now, named, recipe, kind)))
    if changed:
        raise CheckpointError(
            f"{root} was started with another recipe: {'; '.join(changed)}. Use the old values to continue, or "
            "choose another folder"
        )
    for name, value in about["inputs"].items():
        if found_inputs.get(name) not in (value, NOT_THERE):
            was = found_inputs.get(name, "not recorded")
            raise CheckpointError(f"{root} was started from other {name} ({was}, now {value}): choose another folder")


def _part(values: Values, named: Values, recipe: Recipe, kind: RunKind) -> dict[str, Mapping[str, object]]:
    """The sections that are named, whole, or with the keys that matter where not all do."""
    found: dict[str, Mapping[str, object]] = {}
    for name, keys in named.items():
        section, here = getattr(recipe, name, None), values.get(name, {})
        some = isinstance(section, Section) and section.matters_to[kind] is not None
        found[name] = {key: value for key, value in here.items() if key in keys} if some else here
    return found


def _unreadable(file: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{file} is broken ({error!r}): this run cannot be resumed; start it in another folder")
