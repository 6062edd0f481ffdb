"""Demonstrations from transcripts: texts as recorded, in the model's template."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.chat.chat import Chat
from retcon.core.errors import MissingIds, RecipeError, RecordError, nearest_path
from retcon.core.types import Trajectory, to_sample
from retcon.models.locating import fetch_files, is_hub_name
from retcon.store.fingerprint import fingerprint
from retcon.store.records import KINDS, Record
from retcon.train.datasets.demonstrations import check_texts, files_of, read_rendered
from retcon.train.demos.rolling import TOO_LONG
from retcon.train.demos.types import DemoBatch, DemoSetup
from retcon.transcripts.items import decode

if TYPE_CHECKING:
    from retcon.train.demos.kinds.transcripts import Transcripts

FLAGS = ("success", "correct", "is_correct", "reward", "score")
"""By which records say that an answer is right: true, or a number above 0; at their top or one object below."""
UNKNOWN = "its record does not say whether it is right"
NOT_RIGHT = "not right, as its record says"
EMPTY = "nothing in it that a model wrote"


@dataclass
class TranscriptSource:
    """A `Source` over records, each of which may hold several transcripts."""

    files: Sequence[Path]
    chat: Chat
    max_tokens: int
    only_right: bool
    inputs: Mapping[str, str]
    chunk: int = 256
    ends: bool = True

    def __post_init__(self) -> None:
        self._at = 0
        self._records = self._read()

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Render the records of candidates as demonstrations."""
        if start != self._at:
            self._records = islice(self._read(), start, None)
        self._at = stop
        found: list[Trajectory] = []
        rejected: Counter[str] = Counter()
        seen = 0
        for record, trajectories in islice(self._records, stop - start):
            seen += 1
            for trajectory in trajectories:
                one = _with_reward(trajectory, record)
                if why := self._why_rejected(one, record.where):
                    rejected[why] += 1
                else:
                    found.append(one)
        return DemoBatch(seen, tuple(found), rejected)

    def _read(self) -> Iterator[tuple[Record, list[Trajectory]]]:
        everything = chain.from_iterable(read_rendered(file, self.chat) for file in self.files)
        for _, group in groupby(everything, key=lambda pair: pair[0].where):
            pairs = list(group)
            yield pairs[0][0], list(map(itemgetter(1), pairs))

    def _why_rejected(self, trajectory: Trajectory, where: str) -> str | None:
        if self.only_right and (trajectory.reward is None or trajectory.reward <= 0):
            return UNKNOWN if trajectory.reward is None else NOT_RIGHT
        try:
            sample = to_sample(trajectory, scored=False)
        except MissingIds as error:
            raise RecordError(f"{where}: {error}: an audit? Give what `retcon purify` wrote to -o") from error
        check_texts([(s.text, s.ids or ()) for s in trajectory.segments], self.chat.tokenizer, where)
        if len(sample.ids) > self.max_tokens:
            return TOO_LONG
        return None if any(sample.mask) else EMPTY


def _with_reward(trajectory: Trajectory, record: Record) -> Trajectory:
    """Add the record's reward to a trajectory without one; 1 and -1 for true and false."""
    value = decode(record)
    if trajectory.reward is not None or not isinstance(value, dict):
        return trajectory
    for place in (value, *(inner for inner in value.values() if isinstance(inner, dict))):
        for name in FLAGS:
            flag = place.get(name)
            if isinstance(flag, bool):
                return replace(trajectory, reward=1.0 if flag else -1.0)
            if isinstance(flag, int | float):
                return replace(trajectory, reward=float(flag))
    return trajectory


def _found(name: str) -> Path:
    """Return a file or folder here, or the folder of a data set of the hub, fetched. Raises RecipeError."""
    path = Path(name)
    if path.is_file() or path.is_dir():
        return path
    if is_hub_name(name) and not path.parent.is_dir() and not set(KINDS).intersection(path.suffixes):
        return fetch_files(name, [f"*{kind}" for kind in KINDS], kind="dataset")
    raise RecipeError(f"demos.path: there is no file {path}{nearest_path(path, KINDS)}")


@asynccontextmanager
async def open_transcripts(section: Transcripts, setup: DemoSetup) -> AsyncIterator[TranscriptSource]:
    """Open a section's files. Raises RecipeError for missing files, RecordError for a folder without transcripts."""
    if not section.path:
        raise RecipeError("demos.path: it is empty: name a file or folder of transcripts, or several")
    files = [file for path in section.path for file in files_of(_found(path))]
    inputs = {str(file): fingerprint(file) for file in files}
    yield TranscriptSource(files, setup.chat, setup.recipe.rollout.max_tokens, section.keep == "right", inputs)
