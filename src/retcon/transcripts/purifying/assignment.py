"""What is to be purified, and into which files."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from retcon.core.errors import RecordError, nearest
from retcon.core.texts import counted
from retcon.purify.offline import Offline
from retcon.store.compression import plain_name, told_once
from retcon.store.lines import SUFFIX
from retcon.store.records import KINDS, STDIN
from retcon.store.whole import OutputFile

STATE = "retcon-purify" + SUFFIX + ".json"


@dataclass(frozen=True, slots=True)
class Assignment:
    """inputs: files, or `-`; out: a file, a folder (into_folder), or `-`. names: each input's name in the folder.
    failures: by tool, the form of its outputs that are failures, a regular expression.
    jobs: processes; how many is no part of what is made, so that a run may be resumed with more or fewer."""

    inputs: Sequence[Path]
    out: Path
    into_folder: bool
    names: Sequence[str]
    offline: Offline
    format: str = "auto"
    drop_unrepaired: bool = False
    skip_bad: bool = False
    audit: Path | None = None
    pairs: Path | None = None
    jobs: int = 1
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def state_path(self) -> Path:
        return self.out / STATE if self.into_folder else self.out.with_name(self.out.name + SUFFIX + ".json")

    def labels(self) -> list[str]:
        """What each input is called in audit and pairs: by its name, or its path where another has that name too."""
        often = Counter(self.names)
        pairs = zip(self.inputs, self.names, strict=True)
        return [name if often[name] == 1 else str(path) for path, name in pairs]

    def outputs(self) -> list[OutputFile]:
        """The files that it writes: an output for each input in a folder, else one; then audit and pairs."""
        files: list[OutputFile] = []
        if self.into_folder:
            files = [_output("-o", self.out / name) for name in self.names]
        elif self.out != STDIN:
            files = [_output("-o", self.out, self.state_path.name)]
        rest = (("--audit", self.audit), ("--dpo", self.pairs))
        return files + [_output(flag, path) for flag, path in rest if path is not None]

    def options(self) -> dict[str, object]:
        """What must be the same for going on."""
        return {
            "inputs": [str(p) for p in self.inputs],
            "format": self.format,
            "drop_unrepaired": self.drop_unrepaired,
            "audit": None if self.audit is None else str(self.audit),
            "pairs": None if self.pairs is None else str(self.pairs),
            **({"failures": dict(self.failures)} if self.failures else {}),
            **asdict(self.offline),
        }


def _output(flag: str, path: Path, *beside: str) -> OutputFile:
    return OutputFile(flag, path, (path.name + SUFFIX, *beside))


def expand(words: Sequence[str], out: Path | None = None) -> Iterator[tuple[Path, str]]:
    """The files that words mean, each with its name below the folder that it was found in.

    A word is a file, a folder (all transcripts below it), a pattern, or `-`. out: where they are to go to; if that is a
    folder below one that is searched, what lies in it is left out, and what was not made of the rest is told (a
    warning). Raises RecordError for a word that is none.
    """
    for word in words:
        path = Path(word)
        if word == "-":
            yield STDIN, "stdin.jsonl"
        elif path.is_dir():
            made = None if out is None else _below(path, out)
            there = sorted(p for p in path.rglob("*") if p.is_file() and _is_transcript_file(p))
            found = told_once(p for p in there if made not in p.parents)
            if not found:
                but = f", but for what lies in {made}, where the output goes" if there else ""
                raise RecordError(
                    f"{path}: no file in this folder or below is {', '.join(KINDS[:-1])} or {KINDS[-1]}{but}"
                )
            names = [str(p.relative_to(path)) for p in found]
            made_of = {made / name for name in names} if made is not None else set()
            if others := [p for p in there if made in p.parents and p not in made_of]:
                told = f"not read, as the output goes to {made}: {counted(len(others), 'file')} there, such as"
                warnings.warn(f"{told} {others[0]}", UserWarning, stacklevel=2)
            yield from zip(found, names, strict=True)
        elif path.exists():
            yield path, path.name
        elif any(c in word for c in "*?["):
            root = Path(path.anchor) if path.is_absolute() else Path()
            try:
                matches = sorted(p for p in root.glob(str(path.relative_to(root))) if p.is_file())
            except ValueError as error:  # before Python 3.13, of `**.jsonl`
                raise RecordError(f"{word} is no pattern of files: {error}") from error
            if not matches:
                raise RecordError(f"no file matches {word}")
            yield from ((p, p.name) for p in matches)
        else:
            siblings = [str(p) for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise RecordError(f"{path} does not exist{nearest(str(path), siblings)}")


def _below(folder: Path, other: Path) -> Path | None:
    """`other`, by a path that begins with `folder`, where it lies below that."""
    inner, root = Path(os.path.realpath(other)), Path(os.path.realpath(folder))  # not `resolve`: of a loop that raises
    return folder / inner.relative_to(root) if root in inner.parents else None


def _is_transcript_file(path: Path) -> bool:
    name = plain_name(path.name)
    ours = name.endswith((".audit.jsonl", SUFFIX, SUFFIX + ".json"))
    return name.endswith(KINDS) and not ours and not name.startswith(".")
