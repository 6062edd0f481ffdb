"""Writes what Retcon does as values and hashes, so that a change of the code cannot change it unseen.

    python tests/golden/make.py                     # all of them, into tests/golden/values
    python tests/golden/make.py prompts --out DIR   # one of recipes, prompts, purify and training, elsewhere
    python tests/golden/make.py --base COMMIT       # compares this tree with a commit, on this machine, in turns

docs/develop/testing.md says when to do which.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VALUES = HERE / "values"
ROOT = HERE.parents[1]
TOLERANCE = 1e-4
"""Of metrics, relative or absolute: another processor rounds otherwise."""
TIMED = re.compile("second|_s$|^engine_")
"""Metrics that differ from one run to the next; those of the engine, as how it packs and drafts depends on time."""
SMALL = (
    "rl.steps=3", "rl.prompts=2", "rollout.max_turns=4", "rollout.max_tokens=96",
    "rollout.lookahead_tokens=48", "task.kind=file", "task.path=problems.jsonl", "task.evaluation_share=0",
    "sandbox.workers=1", "run.threads=1", "compute.device=cpu", "compute.dtype=float32",
)  # fmt: skip
RUNS: dict[str, tuple[str, ...]] = {
    "mini/aepo": (),
    "mini/cispo": ("rl.clip_high=0.002",),
    "mini/cleaner": (),
    "mini/cleaner/dpo": (),
    "mini/dapo": ("rl.clip_low=0.001", "rl.clip_high=0.002"),
    "mini/dr_grpo": ("rl.epochs=2",),
    "mini/gspo": (),
    "mini/importance": (),
    "mini/kl": (),
    "mini/rstar2": (),
    "mini/ours/roc-branch": ("repair.gamma=0.9",),
    "mini/stages/recovery": ("stages.raw.steps=1",),
}
"""Recipes, and what of them is changed besides: clips that so small a step reaches."""
Values = dict[str, Any]


def digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def run_retcon(*words: object) -> str:
    """`python -m retcon` in a forked process. Returns what it printed; what it imported, this process imports too, so
    that the next one need not."""
    imports = Path("imports.json")
    with tempfile.TemporaryFile() as printed:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
                sys.argv = ["retcon", *map(str, words)]
                runpy.run_module("retcon", run_name="__main__")
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                imports.write_text(json.dumps(list(sys.modules)), encoding="utf-8")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    for name in json.loads(imports.read_bytes()):
        if name not in sys.modules and name.partition(".")[0] != "retcon":
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    imports.unlink()
    if status:
        raise SystemExit(f"retcon {' '.join(map(str, words))}: exit code {status}\n{text}")
    return text


def flattened(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Paths such as `rl.lr` to values that are neither mappings nor lists of mappings."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def make_recipes(folder: Path) -> Values:
    """The defaults; of each recipe the values that differ from them, and a hash of all."""
    import entries

    defaults = entries.recipe_values(None)
    usual = dict(flattened(defaults))
    made: Values = {"defaults": usual}
    for name in entries.recipe_names():
        values = entries.recipe_values(name)
        changes = {path: value for path, value in flattened(values) if usual.get(path, usual) != value}
        made[name] = {"changes": changes, "all": digest(canonical(values))}
    return made


def make_prompts(folder: Path) -> Values:
    """What a model of each chat family is given, with and without tools, and the calls that are read in its turns."""
    import entries

    from chat_templates import TEMPLATES, learned_chat
    from conversing import TOOLS, chat_of, conversed
    from retcon import Chat

    code = {"code": 'x = 6 * 7\nprint(x, "é\\n")'}
    search = {"query": 'é "b"', "top": 2}
    made: Values = {}

    def shown(segments: Sequence[Any]) -> list[str]:
        return [f"{segment.kind}: {segment.text}" for segment in segments]

    def record(chat: Chat, names_calls: bool) -> Values:
        calls = [("python", code), ("search", search)]
        several = (calls, ["42\n", "<3>"]) if names_calls else (calls[:1], ["42\n"])
        turns = [("I try.", calls[:1], ["1\n"]), ("", *several), ("It is 42.", (), ["Why?"]), ("So.", (), [])]
        parts = conversed(chat, turns)
        ids = [i for part in parts for segment in part for i in segment.ids]
        out: Values = {"turns": [shown(part) for part in parts], "ids": digest(canonical(ids))}
        read = chat.parse(chat.render_turn("so", several[0]).ids, prefix="0").calls
        out["calls"] = [[call.id, call.name, call.arguments, call.char, call.start] for call in read]
        before = [("user", "Hi."), ("assistant", "Hello.")]
        out["after messages"] = shown(chat.prompt("And 7 times 8?", "Be brief.", before))
        for last in (False, True):
            for text in ("", "Let me think."):
                pieces = chat.framing.render_thought(text, last=last)
                out[f"thought {text!r}{', last' if last else ''}"] = pieces and [
                    shown([chat.render_turn("It is 42.", (), pieces)]), [piece.sort for piece in pieces],
                ]  # fmt: skip
        return out

    for name in entries.family_names():
        for tools in ((), TOOLS):
            chat = chat_of(name, "Solve it." if tools else None, tools)
            made[f"{name}, {'tools' if tools else 'no tools'}"] = record(chat, chat.family.names_calls)
        made[f"{name}, template"] = digest(entries.family_template(name))
    for name in TEMPLATES:
        chat = learned_chat(name, system="Solve it.", tools=TOOLS)
        made[f"{name}, learnt"] = record(chat, chat.family.names_calls)
    return made


def make_purify(folder: Path) -> Values:
    """What `retcon purify` makes of the sample files and of sessions in every format: outputs, audits and counts."""
    import foreign
    from foreign.steps import REPAIRED, Step, answer, fails, user, works

    clean = (user("?"), works("x = 1"), answer("1"))
    stays = (user("?"), fails(foreign.FAILED, line=2), answer("4, I guess"))
    lines = (HERE / "sessions.jsonl").read_text(encoding="utf-8").splitlines()
    sessions = [[Step(*step) for step in json.loads(line)] for line in lines]
    source = folder / "in"
    shutil.copytree(HERE.parent / "foreign" / "samples", source / "samples")
    (source / "formats").mkdir()
    names = sorted(foreign.FORMATS)
    for n, name in enumerate(names):
        own = sessions if name == "messages" else sessions[n :: len(names)]
        records = [foreign.FORMATS[name](steps) for steps in (clean, REPAIRED, stays, *own)]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (source / "formats" / f"{name}.jsonl").write_text(text, encoding="utf-8")
    strict = ("--gamma", "0.8", "--attempts", "1", "--state", "ignore", "--drop-unrepaired")
    return {name: _purified(name, options) for name, options in (("by default", ()), ("strict", strict))}


def _purified(name: str, options: Sequence[str]) -> Values:
    """Run in the folder that holds `in`."""
    out, report, pairs = Path(name) / "out", Path(name) / "report.json", Path(name) / "pairs.jsonl"
    out.mkdir(parents=True)
    run_retcon("purify", "in", "-o", f"{out}/", "--report", report, "--dpo", pairs, *options)
    renamed: dict[str, str] = json.loads((HERE / "renamed_reasons.json").read_text(encoding="utf-8"))
    counts = _renamed(json.loads(report.read_bytes()), renamed)
    made: Values = {
        "report": digest(canonical(counts)),
        "total": {key: value for key, value in counts["total"].items() if value not in (0, [], {})},
        "pairs": _line_digests(pairs.read_bytes()),
    }
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        data = file.read_bytes()
        if ".audit" in file.suffixes:
            records = [_renamed(json.loads(line), renamed) for line in data.splitlines()]
            data = "\n".join(map(canonical, records)).encode()
            repairs = [turn["repair"] for record in records for turn in record["turns"] if "repair" in turn]
            phrases = (f"{one['decision']}: {one.get('reason', '').partition(': ')[0]}" for one in repairs)
            made["repairs in the audit"] = dict(Counter(phrases))
        made[str(file.relative_to(out))] = _line_digests(data)
    return made


def _line_digests(data: bytes) -> dict[str, str]:
    """A hash of each line, so that a change names the record that it is in."""
    return {f"{n}": digest(line)[:6] for n, line in enumerate(data.splitlines(), 1)}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with reasons, rules and their phrases under the names that the golden values have."""
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_renamed(inner, names) for inner in value]
    if isinstance(value, str):
        phrase, colon, detail = value.partition(": ")
        return names.get(phrase, phrase) + colon + detail
    return value


def make_training(folder: Path) -> Values:
    """Metrics and weights of small runs from `start`, a step of which takes a fraction of a second."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.set_num_threads(1)
    shutil.copytree(HERE / "start", "start")
    weights = load_file("start/model.safetensors")
    save_file({name: value.float() for name, value in weights.items()}, "start/model.safetensors", {"format": "pt"})
    problems = [{"question": f"{n}: 1 or 2?", "answer": "12"[n % 2], "grader": "exact"} for n in range(8)]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems), encoding="utf-8")
    made: Values = {}
    for name, changes in RUNS.items():
        run_retcon("train", name, *SMALL, *changes, "--from", "start", "--out", f"runs/{name}")
        made[name] = _trained(Path("runs") / name)
    return made


def _trained(run: Path) -> Values:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    metrics = {f"step {line.pop('step')}": dict(_timeless(line)) for line in lines}
    weights = next(run.rglob("final/model.safetensors"))
    return {"weights": digest(weights.read_bytes()), "metrics": metrics}


def _timeless(line: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key, value in line.items():
        if value is not None and not TIMED.search(key):
            yield key, float(f"{value:.7g}") if isinstance(value, float) else value


SECTIONS: dict[str, Callable[[Path], Values]] = {
    "recipes": make_recipes,
    "prompts": make_prompts,
    "purify": make_purify,
    "training": make_training,
}


def make(section: str) -> Values:
    """The values of a section, made in a temporary folder that nothing in them depends on."""
    sys.path.insert(0, str(HERE.parent))
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1", COLUMNS="120", NO_COLOR="1")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return SECTIONS[section](Path(folder))
        finally:
            os.chdir(before)


def differences(old: object, new: object, tolerance: float = 0.0, path: str = "") -> Iterator[str]:
    """A line for each value that differs, with its place. tolerance: of floats, relative or absolute."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            yield from differences(old.get(key, "absent"), new.get(key, "absent"), tolerance, f"{path} / {key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for n, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, tolerance, f"{path} [{n}]")
    elif (
        isinstance(old, float)
        and isinstance(new, float)
        and math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    ):
        return
    elif old != new or type(old) is not type(new):
        if isinstance(old, str) and isinstance(new, str):  # of long texts, from a little before where they part
            parted = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            start = max(0, parted - 30)
            old, new = ("…" * bool(start) + text[start:] for text in (old, new))
        yield f"{path.removeprefix(' / ')}: {_short(old)} -> {_short(new)}"


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}…"


def write(folder: Path, section: str, values: Values) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{section}.json").write_text(_laid_out(values) + "\n", encoding="utf-8")


def _laid_out(value: object, indent: str = "\n") -> str:
    """JSON with what is short on a line, so that a diff of two files can be read."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(text) <= 500 or not isinstance(value, dict | list):
        return text
    deeper = f"{indent} "[:3]
    if isinstance(value, list):
        return "[" + ",".join(deeper + _laid_out(inner, deeper) for inner in value) + indent + "]"
    inner = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_laid_out(value[key], deeper)}" for key in sorted(value))
    return "{" + ",".join(inner) + indent + "}"


def read(folder: Path, section: str) -> Values:
    values: Values = json.loads((folder / f"{section}.json").read_bytes())
    return values


def made_apart(section: str, out: Path, tree: Path = ROOT) -> Values:
    """The values of a section as a process of its own makes them from a source tree."""
    path = os.pathsep.join([str(tree / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(tree / "tests" / "golden" / "make.py"), section, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return read(out, section)


def compare(base: str, sections: Sequence[str]) -> bool:
    """Whether this tree makes the values that a commit does; prints each that differs. Weights count, to the bit.

    The commit is checked out beside; one that has no goldens yet is given those of this tree.
    """
    alike = True
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), base], cwd=ROOT, check=True)
        try:
            if not (tree / "tests" / "golden").is_dir():
                shutil.copytree(HERE, tree / "tests" / "golden")
            for section in sections:
                old = made_apart(section, Path(folder) / "old", tree)
                new = made_apart(section, Path(folder) / "new")
                found = list(differences(old, new, path=section))
                print(*(found or [f"{section}: alike"]), sep="\n", flush=True)
                alike = alike and not found
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
    return alike


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--out", type=Path, default=VALUES, help="the folder that is written to")
    parser.add_argument("--base", metavar="COMMIT", help="compare with this commit, and write nothing")
    given = parser.parse_args()
    sections = given.sections or list(SECTIONS)
    if unknown := sorted(set(sections) - set(SECTIONS)):
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(SECTIONS)}")
    if given.base:
        sys.exit(0 if compare(given.base, sections) else 1)
    if len(sections) == 1:
        write(given.out, sections[0], make(sections[0]))
    else:
        for section in sections:  # each in a process of its own, as the test makes them
            made_apart(section, given.out)


if __name__ == "__main__":
    main()
