"""What a recipe says about tasks from data: where they come from, how they are read, split and checked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from retcon.config.section import StrList
from retcon.core.errors import RecipeError, nearest
from retcon.tasks.benchmarks import BENCHMARKS
from retcon.tasks.data.conventions import FIELDS
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.load import load
from retcon.tasks.data.rows import shards
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.grading.registry import check_options
from retcon.tasks.registry import CountTokens, Rewards


class _Reading(BaseModel):
    """How rows are read: of one source, or of all that do not say otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    format: str = Field("auto", description="the convention of the columns, such as verl, trl, gsm8k or math; auto: by "
                        "the first row")  # fmt: skip
    columns: dict[str, str] = Field({}, description="which column holds what, as { question = \"text\", answer = "
        "\"meta.label\" }: question, context, input, answer, solution, id, system, source, grader, split; a dot goes "
        "into objects"
    )  # fmt: skip
    grader: str = Field("", description="of rows that name none: math, exact, choice, code, or my_package.my_module:"
                        "my_grade; empty: the convention's own")  # fmt: skip
    split: str = Field("", description="train only on rows with this in their column `split`; of a hub data set, its "
                       "split (empty: train; with evaluation_share = 1: test, if there is one)")  # fmt: skip
    options_seed: int = Field(0, description="of the order of options where a row gives none, as GPQA's")
    subset: str = Field("", description="of a hub data set: its configuration, such as main")
    revision: str = Field("", description="of a hub data set: branch, tag or commit")
    benchmark: str = Field("", description="a standard benchmark (`retcon benchmarks`) that these rows are, which says "
                           "how they are read, asked and graded; without a path they come from the hub")  # fmt: skip
    prompt: str = Field("", description="how a problem is asked: \"Solve this: {question}\"; columns of the row may "
                        "stand in braces, too; empty: the question alone")  # fmt: skip

    @field_validator("benchmark")
    @classmethod
    def _benchmark(cls, value: str) -> str:
        if value and ":" not in value:  # a stored recipe is read without the modules of import paths
            try:
                BENCHMARKS.find(value)
            except RecipeError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("columns")
    @classmethod
    def _fields(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in FIELDS:
                raise ValueError(f"no field '{name}'{nearest(name, FIELDS)}; there are: {', '.join(FIELDS)}")
        return value


class TaskSource(_Reading):
    """One of several sources; the section's keys are its defaults."""

    path: str = Field("", description="as the section's path")
    weight: Annotated[float, Field(ge=0)] = Field(0.0, description="share of the training prompts that are drawn from "
        "here, relative to the others'; 0 in all of them: each task comes once in a pass")  # fmt: skip


class FileTaskSettings(_Reading):
    """The section [task] of kind `file`."""

    path: str = Field("", description="a file (.jsonl, .json, .csv, .tsv, .parquet, .arrow, also .gz, .zst), a folder "
        "or a pattern (shards/*.parquet) of those, a family such as numbers, a benchmark, a hub data set ORG/NAME, or "
        "my_package.my_module:MyTasks")  # fmt: skip
    sources: tuple[TaskSource, ...] = Field((), description="several, in place of path: each with path and weight, and "
        "what differs from the keys here")  # fmt: skip
    rewards: Rewards = Field("signed", description="signed: 1 right, -1 wrong; binary: "
        "1 and 0; graded: the grader's score, from 0 to 1")  # fmt: skip
    graders: dict[str, dict[str, Any]] = Field({}, description="settings of graders by name, as { code = { score = "
        "\"share\" } }; those of `function` are for all import paths")  # fmt: skip
    name: str = Field("", description="of the task set; empty: by its file")
    system: str = Field("", description="the system prompt of rows that bring none")
    evaluation_path: str = Field("", description="a source, as path, of the problems to evaluate on")
    evaluation_split: str = Field("", description="as split, of the rows to evaluate on")
    evaluation_share: float = Field(0.1, ge=0, le=1, description="of the questions, chosen by a hash of their text, to "
        "evaluate on and not train on, where neither path nor split is named for that")  # fmt: skip
    max_prompt_tokens: Annotated[int, Field(ge=0)] = Field(0, description="tasks with longer prompts are left out; 0: "
        "no limit")  # fmt: skip
    duplicates: Literal["drop", "keep"] = Field("drop", description="drop | keep tasks whose question came before, "
        "apart from layout")  # fmt: skip
    marked: StrList = Field(("eval_overlap",), description="columns that mark rows to be left out: those with "
        "a value there other than false, no or 0; one that no row has gives a warning")  # fmt: skip
    against: StrList = Field((), description="files of evaluations that training tasks must not overlap with")
    overlap: Literal["refuse", "drop", "allow"] = Field("refuse", description="refuse | drop | allow training tasks "
        "that repeat a question of evaluation: its text, or more than half of it in runs of 13 words")  # fmt: skip

    @field_validator("graders")
    @classmethod
    def _settings_of_graders(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        try:
            check_options(value)
        except RecipeError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("sources", mode="before")
    @classmethod
    def _paths(cls, value: object) -> object:
        """Read a path as a source with only that, and one source as a list of it."""
        several = [value] if isinstance(value, str | dict) else value
        if not isinstance(several, list | tuple):
            return value  # which pydantic refuses
        return tuple({"path": one} if isinstance(one, str) else one for one in several)

    @model_validator(mode="after")
    def _says_where(self) -> FileTaskSettings:
        if self.path and self.sources:
            raise ValueError("give path, or sources: one of the two")
        weighted = [source.weight > 0 for source in self.sources]
        if any(weighted) and not all(weighted):
            raise ValueError("weight: give one above 0 to every source, or to none")
        return self

    def source(self, path: str) -> TaskSource:
        """Return a source at `path` with the section's keys."""
        return TaskSource(path=path, **{name: getattr(self, name) for name in _Reading.model_fields})

    def evaluation_source(self) -> TaskSource:
        """Return the source at `evaluation_path`; a benchmark's name alone sets how it is read."""
        path = self.evaluation_path
        return TaskSource(path=path) if path in BENCHMARKS.names else self.source(path)

    def each(self) -> list[TaskSource]:
        """Return all training sources, with the section's keys as defaults."""
        if not self.sources:
            return [self.source(self.path)]
        return [self.source(one.path).model_copy(update=one.model_dump(exclude_unset=True)) for one in self.sources]

    def files(self) -> list[Path]:
        """Return the local files to read, with folders and patterns resolved."""
        found: list[Path] = []
        names = (*(source.path for source in self.each()), self.evaluation_path, *self.against)
        for name in filter(None, names):  # an empty one names nothing; as a path it would be the working directory
            with suppress(DataError):  # a folder without any, which may be a task set's name
                found += shards(Path(name)) or [Path(name)]
        return [file for file in found if file.is_file()]

    def open(self, count_tokens: CountTokens | None = None) -> DataTasks:
        """Read and check all tasks.

        count_tokens: needed where max_prompt_tokens is set. Raises DataError, which names file, line and column, for
        unusable data, for answers that no grader can read (those in mathematics are read when they are graded), and for
        refused overlap of training and evaluation; MissingExtra for a kind of file whose package is not installed.
        Warns (TaskWarning) of dropped rows.
        """
        if not self.path and not self.sources and not self.benchmark:  # not a validator: keys may be set one by one
            raise DataError("task.path: it is empty, and so is task.sources: name a file, or several sources")
        loaded = load(self, count_tokens)
        loaded.check_answers()
        loaded.check_overlap()
        tasks = loaded.tasks()
        loaded.warn_of_drops()
        return replace(tasks, rewards=self.rewards, grader_options=self.graders)
