"""Making demonstrations, whatever their source: how many candidates are asked for, and when a source is given up."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.config.schema import DemosSection
from retcon.core.errors import CheckpointError, RecipeError, SandboxUnavailable
from retcon.core.types import Observation, ToolCall, ToolSpec, Trajectory, Turn
from retcon.store import jsonl
from retcon.train.demos import making
from retcon.train.demos.making import Summary, demonstrations, write_demonstrations
from retcon.train.demos.rolling import WRONG
from retcon.train.demos.types import LOST, DemoBatch, DemoSetup

FAILED = Turn((), (ToolCall("0.0", "python", "", 0),), (Observation("0.0", "", "error", seconds=1.5),), "call")


class Source:
    """Keeps those of its candidates whose numbers it is given; the call of those in `failing` fails."""

    chunk, ends, inputs = 2, False, ()

    def __init__(
        self, kept: frozenset[int], why: str = WRONG, last: int = 1000, failing: frozenset[int] = frozenset()
    ) -> None:
        self.kept, self.why, self.last, self.failing = kept, why, last, failing
        self.asked: list[tuple[int, int, int]] = []

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        self.asked.append((start, stop, kept))
        seen = range(start, min(stop, self.last))
        found = tuple(
            Trajectory(str(n), "t", (), (FAILED,) * (n in self.failing), reward=1.0) for n in seen if n in self.kept
        )
        return DemoBatch(
            len(seen), found, Counter({self.why: len(seen) - len(found)} if len(found) < len(seen) else {})
        )


class Playing(DemosSection):
    source: ClassVar[Source]

    @asynccontextmanager
    async def open(self, setup: DemoSetup) -> AsyncIterator[Source]:
        yield self.source


def made(source: Source, wanted: int, *overrides: str) -> list[str]:
    Playing.source = source
    recipe = load_recipe(None, [f"demos.kind={__name__}:Playing", f"sft.demonstrations={wanted}", *overrides])
    return [one.id for one in asyncio.run(demonstrations(recipe, Chat(ByteTokenizer())))]


def test_no_more_are_asked_for_than_are_wanted_until_one_is_rejected() -> None:
    source = Source(frozenset({0, 1, 2, 5, 6}))
    assert made(source, 3) == ["0", "1", "2"]
    assert source.asked == [(0, 2, 0), (2, 3, 2)]
    assert made(source, 4) == ["0", "1", "2", "5"]
    assert source.asked[2:] == [(0, 2, 0), (2, 4, 2), (4, 6, 3)], "whole stretches, of which some are rejected"


def test_a_source_is_given_up_after_so_many_in_a_row_of_which_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "PATIENCE", 6)
    with pytest.raises(RecipeError, match="none of 6 candidates is kept: 6 wrong to the grader"):
        made(Source(frozenset()), 2)
    assert made(Source(frozenset({1, 6, 11, 16})), 4) == ["1", "6", "11", "16"], "however many there are in all"
    assert made(Source(frozenset({1, 9})), 2) == ["1"]


@pytest.mark.parametrize(
    ("failing", "kept"), [(frozenset(), ["0", "1"]), (frozenset({7}), ["0", "1", "2", "3", "4", "5", "7"])]
)
def test_a_source_is_given_up_once_what_it_gives_adds_nothing_to_the_share(
    failing: frozenset[int], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "PATIENCE", 8)
    everything = frozenset(range(1000))
    assert made(Source(everything, failing=failing), 20, "demos.failed_share=0.2") == kept
    with pytest.raises(RecipeError, match="none of 8 candidates is kept: 8, 8 with a failed call, do not make up fail"):
        made(Source(everything, failing=everything), 20, "demos.failed_share=0.2")


@pytest.mark.parametrize(("kept", "lost"), [(frozenset(range(11)), "5 of 16"), (frozenset(), "1 of 1")])
def test_more_than_a_few_that_are_lost_of_a_stretch_are_too_many(kept: frozenset[int], lost: str) -> None:
    """One is too many where nothing is kept: then nobody knows whether there is a server at all."""
    source = Source(kept, LOST, last=16 if kept else 1)
    source.chunk = 64
    with pytest.raises(
        SandboxUnavailable, match=f"{lost} demonstrations were lost .* what was made before them is kept"
    ):
        made(source, 99)


class Asking(DemosSection):
    """Notes the tasks that it is given, whom it would tell where a teacher computes, and for what."""

    given: ClassVar[list[tuple[str, object]]] = []
    made_for: ClassVar[list[tuple[int, Chat]]] = []

    @asynccontextmanager
    async def open(self, setup: DemoSetup) -> AsyncIterator[Source]:
        self.given.append((setup.tasks().name, setup.on_place))
        self.made_for.append((setup.recipe.sft.demonstrations, setup.chat))
        source = Source(frozenset({0}))
        source.inputs = {}
        yield source


def test_demonstrations_are_of_the_callers_own_tasks_where_there_are_some(tmp_path: Path) -> None:
    recipe, chat = load_recipe(None, [f"demos.kind={__name__}:Asking", "sft.demonstrations=1"]), Chat(ByteTokenizer())
    own: Any = SimpleNamespace(name="mine")
    Asking.given.clear()
    Asking.made_for.clear()
    for tasks in (None, own):
        asyncio.run(demonstrations(recipe, chat, tasks=tasks))
        write_demonstrations(recipe, chat, tmp_path / "d.jsonl", tasks=tasks, on_place=print)
    assert Asking.given == [("numbers", None), ("numbers", print), ("mine", None), ("mine", print)]
    assert Asking.made_for == [(1, chat)] * 4


def test_what_is_kept_is_reported_as_it_comes_and_what_became_of_all_before_the_file_is_there(tmp_path: Path) -> None:
    recipe, chat = load_recipe(None, [f"demos.kind={__name__}:Playing", "sft.demonstrations=3"]), Chat(ByteTokenizer())
    Playing.source = source = Source(frozenset({0, 2, 3}))
    source.inputs, file = {}, tmp_path / "d.jsonl"
    told: list[tuple[int, int]] = []
    ends: list[tuple[Summary, bool]] = []

    def tell(done: int, wanted: int) -> None:
        told.append((done, wanted))

    asyncio.run(demonstrations(recipe, chat, on_progress=tell))
    summary = write_demonstrations(
        recipe, chat, file, on_progress=tell, on_made=lambda became: ends.append((became, file.exists()))
    )
    assert told == [(1, 3), (3, 3)] * 2
    assert ends == [(summary, False)]
    assert summary == Summary(3, 0, {WRONG: 1}, 0)


def test_why_none_is_kept_is_reported_reason_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "PATIENCE", 8)
    with pytest.raises(RecipeError, match=r"8 candidates is kept: 4 wrong to the grader, 4, 0 with a failed call, do"):
        made(Source(frozenset(range(0, 1000, 2))), 20, "demos.failed_share=0.9")


def test_a_file_that_was_begun_is_gone_on_with_for_the_same_chat_and_data_alone(tmp_path: Path) -> None:
    """Else its ids would be of two templates, or its trajectories of two files."""

    def write(style: str, data: str, *tools: ToolSpec, changed: str = "rl.lr=1e-5", stop: bool = False) -> Summary:
        recipe = load_recipe(None, [f"demos.kind={__name__}:Playing", "sft.demonstrations=4", changed])

        def told(done: int, wanted: int) -> None:
            if stop:
                raise KeyboardInterrupt

        Playing.source = source = Source(frozenset(range(9)))
        source.inputs = {"file": data}
        chat = Chat(ByteTokenizer(), style=style, tools=tools)
        return write_demonstrations(recipe, chat, tmp_path / "d.jsonl", on_progress=told)

    with pytest.raises(KeyboardInterrupt):
        write("qwen", "1", stop=True)
    with (tmp_path / "d.jsonl.partial").open() as begun:
        inputs = json.loads(begun.readline())["made_from"]["inputs"]
    assert inputs == {"file": "1", "chat": "d5d1bd26ef8ba277"}, "or none that is begun now would be gone on with"
    for style, tools in (("hermes", ()), ("qwen", (ToolSpec("python"),))):
        with pytest.raises(CheckpointError, match=r"inputs\.chat was"):
            write(style, "1", *tools)
    with pytest.raises(CheckpointError, match=r"inputs\.file was '1', is '2'"):
        write("qwen", "2")
    with pytest.raises(CheckpointError, match=r"rollout\.max_turns was"):
        write("qwen", "1", changed="rollout.max_turns=7")
    assert write("qwen", "1", changed="rl.lr=2e-5") == Summary(4, 0, {}, 0), "which demonstrations do not depend on"


def test_what_became_of_candidates_is_reported_and_read_again(tmp_path: Path) -> None:
    """Of eight that are right, two of which fail, four make up a share of a half."""
    recipe = load_recipe(None, [f"demos.kind={__name__}:Playing", "sft.demonstrations=4", "demos.failed_share=0.5"])
    Playing.source = source = Source(frozenset(range(8)), failing=frozenset({1, 7}))
    source.inputs = {}
    summary = write_demonstrations(recipe, Chat(ByteTokenizer()), tmp_path / "d.jsonl")
    assert summary == Summary(kept=4, failed=2, rejected={}, left_over=4)
    found = list(jsonl.read(tmp_path / "d.jsonl"))
    assert [one.id for one in found] == ["0", "1", "2", "7"]
    seconds = [o.seconds for one in found for turn in one.turns for o in turn.observations]
    assert seconds == [0.0, 0.0], "which differ from run to run"
    other = Summary(4, 1, {WRONG: 2}, 3)
    assert Summary.of_dict(json.loads(json.dumps(other.as_dict()))) == other
