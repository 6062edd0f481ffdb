"""Standard benchmarks by name: sources, prompts and graders of their problems.

Hub ids, revisions, splits and prompts are those of inspect-evals 0.28.0 (MIT) where it has the benchmark; HMMT's are
MathArena's, LiveCodeBench's its own. The questions come from the hub at a pinned revision, or from a local file of the
published layout. Another benchmark is a `Benchmark` in a module of its own (kind `benchmark` of `retcon.plugins`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retcon.core.errors import CheckpointError, RecipeError
from retcon.core.registry import InstanceRegistry
from retcon.tasks.data.fields import Columns, DataError

if TYPE_CHECKING:
    from retcon.tasks.data.settings import TaskSource


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published set of problems.

    Args:
        name: in commands and recipes.
        hub: data set of the Hugging Face hub, ORG/NAME.
        revision: its commit.
        file: of the data set, or a pattern of several (`test*.jsonl`).
        size: number of problems.
        licence: of the problems, as their publisher states it.
        source: paper or page.
        contamination: since when models may have been trained on them.
        prompt: template of a problem; `{question}` and columns of its row in braces are replaced.
        grader: of `task.grader`; empty: the convention's own.
        format, columns: how rows are read, as `task.format` and `task.columns`.
        keep: values of columns; other rows of the file are not part of it.
        gated: whether the hub asks for an account that has accepted its terms.
        needs: other requirements, such as packages for programs.
    """

    name: str
    hub: str
    revision: str
    file: str
    size: int
    licence: str
    source: str
    contamination: str
    prompt: str = ""
    grader: str = ""
    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    keep: Mapping[str, object] = field(default_factory=dict)
    gated: bool = False
    needs: str = ""

    def path(self) -> str:
        """Return its local file or pattern, fetched if missing. Raises DataError."""
        from retcon.models.locating import fetch_files

        try:
            folder = fetch_files(f"{self.hub}@{self.revision}", [self.file], kind="dataset")
        except CheckpointError as error:
            why = str(error).partition(". Without a network")[0]
            raise DataError(f"benchmark {self.name}: {why}. {self.advice}") from error
        return f"{folder}/{self.file}"

    @property
    def advice(self) -> str:
        """Explain how to download its problems by hand."""
        login = f"Accept its terms at https://huggingface.co/datasets/{self.hub}, then `hf auth login`; or" * self.gated
        return (
            f"{login or 'Where there is a network, run'} `hf download {self.hub} --repo-type dataset --revision "
            f"{self.revision} --include '{self.file}' --local-dir {self.name}`, and give --benchmark-file "
            f"{self.name}='{self.name}/{self.file}'"
        )


BENCHMARKS = InstanceRegistry("benchmark", error=RecipeError, base=Benchmark)


def resolve(source: TaskSource) -> tuple[TaskSource, Benchmark | None]:
    """Fill in a source's settings from the benchmark that it names. Raises DataError, RecipeError."""
    name = source.benchmark or (source.path if source.path in BENCHMARKS.names else "")
    if not name:
        return source, None
    one = BENCHMARKS.find(name)
    given: dict[str, Any] = {"benchmark": one.name, "subset": "", "revision": ""}
    if source.path in ("", name):
        given["path"] = one.path()
    for key in ("format", "columns", "grader", "prompt"):
        if getattr(source, key) == type(source).model_fields[key].default:
            given[key] = getattr(one, key)
    return source.model_copy(update=given), one


_BRACES = re.compile(r"\{(\w+)\}")


def fill_prompt(prompt: str, question: str, row: Columns) -> str:
    """Fill a prompt's braces: `{question}`, or a column of the row; other braces stay. Raises DataError."""
    there = {**row, "question": question}
    if not any(name in there for name in _BRACES.findall(prompt)):
        raise DataError(f"task.prompt names neither {{question}} nor a column of the row: {', '.join(row)}")

    def value(match: re.Match[str]) -> str:
        found = there.get(match[1])
        return match[0] if found is None else "\n".join(map(str, found if isinstance(found, list) else [found]))

    return _BRACES.sub(value, prompt)


# The prompts of inspect-evals (MIT, UK AI Security Institute), which follow openai/simple-evals (MIT).
_LAST_LINE = (
    'The last line of your response should be of the form "ANSWER: $ANSWER" (without quotes) where $ANSWER is the '
    "answer to the problem.\n\n{question}\n\nRemember to put your answer on its own line at the end in the form "
    '"ANSWER: $ANSWER" (without quotes) where $ANSWER is the answer to the problem, and you do not need to use a '
    "\\boxed command."
)
_MATH = f"Solve the following math problem step by step. {_LAST_LINE}"
_AIME = f"Solve the following math problem step by step.\n{_LAST_LINE}"
_CHOICE = (
    "Answer the following multiple choice question. The last line of your response should be of the following format: "
    "'ANSWER: $LETTER' (without quotes) where LETTER is one of A,B,C,D. Think step by step before answering."
    "\n\n{question}"
)

ALL = (
    Benchmark(
        "aime24", "Maxwell-Jia/AIME_2024", "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792", "*.parquet", 30,
        "MIT (problems: MAA)", "AIME I and II, February 2024",
        "public since February 2024; in most training sets of models since", _AIME,
    ),
    Benchmark(
        "aime25", "math-ai/aime25", "563bb8404243c5f09de6ec262f2db674fe5bce9b", "test.jsonl", 30,
        "Apache-2.0 (problems: MAA)", "AIME I and II, February 2025",
        "public since February 2025; several problems resemble older ones on the web", _AIME,
    ),
    Benchmark(
        "hmmt25", "MathArena/hmmt_feb_2025", "6fdc4277120810ff75aa22d2d5489b91f7a262a1", "data/*.parquet", 30,
        "CC-BY-NC-SA-4.0", "HMMT, February 2025 (matharena.ai)", "public since February 2025",
        "{question}\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
    ),
    Benchmark(
        "math500", "HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test.jsonl", 500,
        "MIT", "MATH (arXiv 2103.03874), the 500 of arXiv 2305.20050",
        "public since 2021; MATH's training set repeats 36 of its questions (docs/data/problems.md)", _MATH,
    ),
    Benchmark(
        "gsm8k", "openai/gsm8k", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c", "main/test-*.parquet", 1319,
        "MIT", "arXiv 2110.14168", "public since 2021; in most training sets", f"{_MATH}\n\nReasoning:",
    ),
    Benchmark(
        "gpqa", "Idavidrein/gpqa", "90b8e5be2b1d3d2dbfe016cdab47981150600c4a", "gpqa_diamond.csv", 198,
        "CC-BY-4.0", "GPQA Diamond, arXiv 2311.12022",
        "gated since 2023 and asked not to be published in plain text; copies are on the web", _CHOICE,
        format="gpqa", gated=True,
    ),
    Benchmark(
        "livecodebench", "livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
        "test*.jsonl", 1055, "CC", "arXiv 2403.07974, release_v6",
        "contests of May 2023 to April 2025: those after a model's training (contest_date) are clean",
        grader="livecodebench", format="livecodebench", needs="4.5 GB of disk",
    ),
    Benchmark(
        "livecodebench-v6", "livecodebench/code_generation_lite", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
        "test6.jsonl", 175, "CC", "arXiv 2403.07974, what release_v6 added",
        "contests of January to April 2025", grader="livecodebench", format="livecodebench",
    ),
    Benchmark(
        "humaneval", "openai/openai_humaneval", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        "openai_humaneval/test-*.parquet", 164, "MIT", "arXiv 2107.03374", "public since 2021; in most training sets",
        "Read the following function signature and docstring, and fully implement\nthe function described. Your "
        "response should only contain the code for\nthis function.\n\n{prompt}", format="humaneval",
    ),
    Benchmark(
        "mbpp", "google-research-datasets/mbpp", "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        "sanitized/test-*.parquet", 257, "CC-BY-4.0", "arXiv 2108.07732, sanitized test split",
        "public since 2021; in most training sets", format="mbpp",
    ),
    Benchmark(
        "bigcodebench", "bigcode/bigcodebench", "b74c0d0bf70d2c0bc459be537895cca163007f1a", "data/v0.1.2-*.parquet",
        1140, "Apache-2.0", "arXiv 2406.15877, v0.1.2, complete",
        "public since June 2024",
        "Read the following function signature and docstring, and fully implement the function described. Make sure to "
        "include the import statements and use the same variable names as stated in the header.\n{question}",
        format="apps", columns={"question": "complete_prompt", "tests": "test"},
        needs="the 72 packages that its programs import, in the sandbox's interpreter (sandbox.python)",
    ),
    Benchmark(
        "oolong", "oolongbench/oolong-synth", "f0d59eaf0febf130664cfceb710436c8e3216b2b", "data/validation-*.parquet",
        50, "none stated (texts of TREC's questions)",
        "OOLONG, arXiv 2511.02817: trec_coarse at 131,072 tokens, as in arXiv 2512.24601",
        "public since November 2025; TREC's labels since 2002", grader="oolong", format="context",
        columns={"context": "context_window_text"}, keep={"dataset": "trec_coarse", "context_len": 131_072},
        needs="the tool rlm (rollout.tools=rlm) and 1.6 GB of disk",
    ),
)  # fmt: skip
