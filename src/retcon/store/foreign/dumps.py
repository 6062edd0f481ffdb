"""Rollout dumps of slime: a `.pt` of torch's with `rollout_id` and `samples`, each sample a record.

Such a file is a pickle. It is read with `weights_only`, which makes nothing but plain values and tensors, and runs
nothing. A sample that nothing changes is written back as the object that it is, tensors and all.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from retcon.core.errors import MissingExtra, RecordError
from retcon.core.installing import how_to_install
from retcon.store.types import Record, Source, Writer

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_SAMPLES = "samples"


class Dump:
    """What a file holds. frame: all that stands beside the samples."""

    def __init__(self, path: Path, value: object) -> None:
        samples = value.get(_SAMPLES) if isinstance(value, dict) else value
        if not isinstance(value, dict | list) or not isinstance(samples, list):
            raise RecordError(f"{path} is not a rollout dump of slime: it has no list of samples ({_held(value)})")
        if not all(isinstance(sample, dict) for sample in samples):
            raise RecordError(f"{path} is not a rollout dump of slime: its samples are not dictionaries")
        self.path = path
        self.frame = value if isinstance(value, dict) else None
        self.samples: list[dict[object, object]] = samples
        self.given = 0

    def records(self) -> Iterator[Record]:
        for number, sample in enumerate(self.samples, 1):
            self.given = number
            yield Record(as_json(sample, f"{self.path}, sample {number}"), number, str(self.path), "sample")


class DumpWriter(Writer):
    """Writes the samples that are kept, with what stood beside them, when all are there."""

    def __init__(self, dump: object, out: IO[bytes]) -> None:
        if not isinstance(dump, Dump):
            raise TypeError("a source that is not a dump")
        self._dump = dump
        self._out = out
        self._kept: list[object] = []

    def begin(self) -> None:
        """It is written in one go."""

    def add(self, record: Record, data: bytes) -> None:
        sample = self._dump.samples[record.number - 1]
        self._kept.append(sample if data is record.data else _changed(sample, record.data, data))

    def end(self) -> None:
        import torch

        frame = self._dump.frame
        torch.save(self._kept if frame is None else {**frame, _SAMPLES: self._kept}, self._out)


def dump_source(path: Path) -> Source:
    """The samples of a file. Raises RecordError where it cannot be read, or holds more than plain values and tensors;
    MissingExtra without torch."""
    dump = Dump(path, _loaded(path))
    size = path.stat().st_size
    return Source(path, "dump", dump.records(), lambda: size * dump.given // max(1, len(dump.samples)), table=dump)


def _loaded(path: Path) -> object:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(f"{path} needs torch to be read: {how_to_install('train')}") from error
    try:
        if not zipfile.is_zipfile(path) and path.stat():
            raise RecordError(
                f"{path} is not a dump that torch wrote: it is not a zip; write the samples as JSON Lines"
            )
        value: object = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        raise RecordError(
            f"{path} is not read, because that could run code: it holds {f'a {found[1]}' if found else 'an object'}, "
            "which is neither a plain value nor a tensor; write the samples as JSON Lines"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise RecordError(f"{path} is not a readable dump: {error}") from error  # what a torn pickle gives
    return value


def as_json(sample: object, where: str) -> bytes:
    """A sample as JSON; tensors as lists. Raises RecordError where none can hold it."""
    try:
        try:
            return json.dumps(sample, ensure_ascii=False, default=_listed).encode()
        except UnicodeEncodeError:  # a lone surrogate
            return json.dumps(sample, default=_listed).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{where}: it cannot be written as JSON: {error}") from error


def _listed(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


def _changed(sample: dict[object, object], old: bytes, new: bytes) -> dict[object, object]:
    """The sample with the fields that were changed; the others stay the objects that they are."""
    before, after = json.loads(old), json.loads(new)
    changed = {name: value for name, value in after.items() if name not in before or value != before[name]}
    return {**sample, **changed}


def _held(value: object) -> str:
    if isinstance(value, dict):
        return f"found {', '.join(map(str, list(value)[:8])) or 'nothing'}"
    return f"found {type(value).__name__}"
