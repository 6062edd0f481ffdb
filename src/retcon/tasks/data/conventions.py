"""Column conventions of data sets, recognised by columns alone, most specific first.

Rows that fit no convention are mapped by the settings' `columns`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from retcon.core.errors import MissingExtra, nearest
from retcon.core.installing import how_to_install
from retcon.core.registry import InstanceRegistry
from retcon.core.seeds import derive
from retcon.store.whole import check_regular_file, storage_errors, whole_file
from retcon.tasks.data.fields import (
    ColumnError,
    Columns,
    DataError,
    Item,
    ends_in_mark,
    is_empty,
    is_missing,
    parse_cell,
    read_object,
    read_prompt,
    read_text,
    split_solution,
    to_text,
)
from retcon.tasks.graders.text import chosen_letter, parse_rational, read_letter
from retcon.tasks.grading.cases import PLACES, find_function, list_pieces, numpy_error, parse_value
from retcon.tasks.types import Split, Task

# Tasks as rows of verl's data sets: the columns of its trainer, and everything that our own reader needs to restore the
# task.
#
# | column | |
# |---|---|
# | `read_prompt` | messages: system prompt, earlier messages, the question |
# | `data_source` | the data set, by which verl groups its validation metrics |
# | `reward_model` | `style` = rule, `ground_truth`: the answer |
# | `extra_info` | `id` and `index` of the task, `split`, and in `retcon` its `meta`, as JSON |
# | `agent_name` | verl's name of our agent loop |

AGENT = "retcon"
META = "retcon"
AT_ONCE = 1000
"""Rows written, and held in memory, at a time."""


def verl_rows(tasks: Iterable[Task], *, split: Split, system: str | None, source: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each task. system, source: prompt and data set of tasks without their own.

    Raises DataError for a task whose `meta` JSON cannot hold.
    """
    for index, task in enumerate(tasks):
        prompt = task.system or system
        messages = [*([("system", prompt)] if prompt else []), *task.before, ("user", task.question)]
        try:
            meta = json.dumps(dict(task.meta), ensure_ascii=False, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"task {task.id}: what it holds besides cannot be written as JSON: {error}") from None
        yield {
            "prompt": [{"role": role, "content": content} for role, content in messages],
            "data_source": str(task.meta.get("source") or source),
            "reward_model": {"style": "rule", "ground_truth": task.answer},
            "extra_info": {"id": task.id, "index": index, "split": split, META: meta},
            "agent_name": AGENT,
        }


def exported_meta(extra_info: Columns) -> Mapping[str, Any] | None:
    """Return the `meta` in a row of `verl_rows`; None for rows of other origin."""
    written = extra_info.get(META)
    if not isinstance(written, str):
        return None
    try:
        meta = json.loads(written)
    except ValueError:
        return None
    return meta if isinstance(meta, dict) else None


def write_verl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as Parquet, atomically, and return their number. Raises MissingExtra without pyarrow, RecordError or
    StorageError where the file cannot be written, DataError without rows."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"writing Parquet needs pyarrow: {how_to_install('formats')}") from None
    text = pyarrow.string()
    schema = pyarrow.schema({
        "prompt": pyarrow.list_(pyarrow.struct({"role": text, "content": text})),
        "data_source": text,
        "reward_model": pyarrow.struct({"style": text, "ground_truth": text}),
        "extra_info": pyarrow.struct({"id": text, "index": pyarrow.int64(), "split": text, META: text}),
        "agent_name": text,
    })  # fmt: skip
    check_regular_file(path)
    left, count = iter(rows), 0
    first = list(islice(left, AT_ONCE))
    if not first:
        raise DataError(f"{path}: there is no task to write")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while first:
            writer.write_table(pyarrow.Table.from_pylist(first, schema))
            count += len(first)
            first = list(islice(left, AT_ONCE))
    return count


INPUT = "input"
"""The column of an instruction's input, appended to it."""
CONTEXTS = ("context", "passage", "article")
"""Columns of a question's context, put before it. The first that has any text counts."""
APART = "context"
"""The key of `meta` for a context that is not part of the question."""
QUESTIONS = ("question", "problem", "Problem", "Question", "query", "prompt", "instruction", "messages")
ANSWERS = ("answer", "expected_answer", "final_answer", "ground_truth", "Answer", "solution")
SOLUTIONS = ("solution", "reference_solution", "Solution", "canonical_solution", "code", "gold")
IDS = ("id", "unique_id", "task_id", "question_id", "problem_id", "Record ID", "ID", "idx", "index")
SOURCES = ("data_source", "source", "dataset")
ALWAYS = ("system", "grader", "options_seed")
INDICES = ("answer_index", "label")
"""Columns that name an option by its index, which the file may hold as a string."""
OPTIONS = ("choices", "options")
GPQA = ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))
CHOSEN = ("answer", "answerKey", *INDICES)
"""The columns of options, and of the right one."""
GROUND_TRUTH = "reward_model.ground_truth"  # the name in errors
FIELDS = ("question", "context", INPUT, "answer", "solution", "id", "source", "split", *ALWAYS)
"""Fields that the settings' `columns` may map; each stands for the column of its own name in every convention."""


@dataclass(frozen=True, slots=True)
class Convention:
    """Column convention of a data set. needs: its columns, alternatives divided by `|`. grader: of rows that name none.
    fits: further condition on a row; read: raises ColumnError. certainty: 0 if unmistakable; higher is tried later.
    undecided: whether a row with these columns lacks the tests that would decide."""

    name: str
    needs: tuple[str, ...]
    read: Callable[[Columns], Item]
    grader: str = "math"
    fits: Callable[[Columns], bool] = lambda _: True
    certainty: int = 0
    undecided: Callable[[Columns], bool] = lambda _: False

    def has(self, row: Columns) -> bool:
        """Return whether a row is of this convention."""
        return not self.lacking(row) and self.fits(row)

    def lacking(self, row: Columns) -> list[str]:
        """Return the `needs` for which a row has no column."""
        return [need for need in self.needs if not any(name in row for name in need.split("|"))]

    def nearest(self, need: str, names: Iterable[str]) -> str:
        """Suggest a column for one of `needs`, unless another need takes it."""
        taken = {name for other in self.needs for name in other.split("|")}
        tests = "test" in need  # `target` is close to it, but is not tests
        free = [name for name in names if name not in taken and (not tests or "test" in name.casefold())]
        return next((hint for name in need.split("|") if (hint := nearest(name, free))), "")


class UndecidedConvention(DataError):
    """A row without the tests that decide its convention; another row may have them."""


CONVENTIONS = InstanceRegistry("convention", DataError, ("auto",), base=Convention)


@cache
def conventions() -> Sequence[Convention]:
    """Return all conventions, the most certain first."""
    return sorted(CONVENTIONS.all(), key=lambda one: one.certainty)


def find_convention(name: str) -> Convention:
    """Return the convention of a name or import path. Raises DataError with the nearest."""
    return CONVENTIONS.find(name)


def recognise(row: Columns, where: str, mapped: Mapping[str, str]) -> Convention:
    """Recognise the convention of a row. mapped: the settings' `columns`, for errors. Raises DataError, which names
    the row's columns and the nearest convention; UndecidedConvention where another row may decide."""
    for one in conventions():
        if one.has(row):
            return one
        if not one.lacking(row) and one.undecided(row):
            raise UndecidedConvention(
                f"{where}: no known convention: the row has no tests, which tell whether it is of mbpp, apps or "
                "another; say so by `format` (task.format=plain, say)"
            )
    own = [name for name in row if name not in mapped]
    close = min(conventions(), key=lambda one: (_distance(one, row, own), -one.certainty))
    lacking = close.lacking(row)
    has = f"has columns {', '.join(own)}" if own else "has no columns"
    lacks = f"lacks {' and '.join(need.replace('|', ' or ') for need in lacking)}" if lacking else "does not fit"
    hints = [hint for need in lacking if (hint := close.nearest(need, own))]
    tests = "; tests are known by these names alone" if any("test" in need for need in lacking) else ""
    raise DataError(
        f"{where}: no known convention: the row {has}; the nearest is {close.name}, of which it {lacks}"
        f"{hints[0] if hints else ''}{tests}. Say which columns hold what: "
        'columns = { question = "…", answer = "…" } (of `retcon data`: --column question=… --column answer=…)'
    )


def _distance(convention: Convention, row: Columns, own: Sequence[str]) -> float:
    """Return the share of needed columns that a row lacks; a similar name counts half."""
    lacking = convention.lacking(row)
    return sum(0.5 if convention.nearest(need, own) else 1.0 for need in lacking) / len(convention.needs)


def equivalent_columns(names: Collection[str], columns: Set[str]) -> Set[str]:
    """Return the columns with these names, or synonyms of question or answer."""
    known = [alike for alike in (QUESTIONS, ANSWERS) if not set(alike).isdisjoint(names)]
    return columns & set(names).union(*known)


def first_of(row: Columns, names: Iterable[str]) -> str:
    """Return the first of these columns that the row has, or ""."""
    return next((name for name in names if name in row), "")


def build_item(row: Columns, question: str, answer: str, **more: Any) -> Item:
    """Build a row's item from the columns of question and answer. It takes the columns that any row may have (id,
    system prompt, source, grader, worked solution; with an answer also the context); others are its `meta`."""
    system, before, asked = read_prompt(row, question)
    asked, asked_with = with_context(row, question, asked) if answer else (asked, ())
    if not is_missing(row.get("system")):
        system = read_text(row, "system")
    id_, source = first_of(row, IDS), first_of(row, SOURCES)
    solution = first_of(row, (n for n in SOLUTIONS if n != answer))
    used = {question, answer, id_, source, solution, *ALWAYS}
    final, reference = split_solution(read_text(row, answer)) if answer else ("", "")
    read = Item(
        question=asked,
        asked_with=asked_with,
        before=before,
        answer=final,
        id=_short(row, id_),
        system=system,
        grader=_short(row, "grader"),
        source=_short(row, source),
        reference=reference or (read_text(row, solution) if solution and isinstance(row[solution], str) else ""),
        meta={name: value for name, value in row.items() if name not in used},
    )
    return replace(read, **more)


def _short(row: Columns, column: str) -> str:
    """Return a short text or a number as text, "" for anything else."""
    value = row.get(column)
    return str(value) if isinstance(value, str | int) and len(str(value)) <= 200 else ""


def _plain(row: Columns) -> Item:
    question = first_of(row, QUESTIONS)
    return build_item(row, question, first_of(row, (n for n in ANSWERS if n != question)))


def _apart(row: Columns) -> Item:
    """Read a row whose context stays apart from the question, for the tool `rlm`."""
    column = first_of(row, CONTEXTS)
    if is_empty(row.get(column)):
        raise ColumnError(column or CONTEXTS[0], "is empty")
    read = _plain({name: value for name, value in row.items() if name not in CONTEXTS})
    return replace(read, meta={**read.meta, APART: row[column]})


def _math(row: Columns) -> Item:
    """Read a row of MATH; a solution without a box has no answer, however long it is."""
    read = _plain(row)
    return read if "answer" in row or read.reference else replace(read, answer="")


def _of_math(row: Columns) -> bool:
    if "answer" in row:
        return any(name in row for name in ("level", "subject", "type"))
    return "\\boxed" in str(row["solution"])


def _verl(row: Columns) -> Item:
    rewarded = read_object(row, "reward_model")
    if "ground_truth" not in rewarded:
        raise ColumnError("reward_model", "holds no ground_truth")
    truth = rewarded["ground_truth"]
    about = parse_cell(row.get("extra_info"))
    about = about if isinstance(about, dict) else {}
    system, before, asked = read_prompt(row, "prompt")
    if (meta := exported_meta(about)) is not None:
        grader = str(meta.get("grader", ""))
        return Item(asked, str(truth), _short(about, "id"), system, grader, before=before, meta=meta)
    code = _is_cases(truth)
    answer = "" if code else read_text({GROUND_TRUTH: truth}, GROUND_TRUTH)
    used = {"prompt", "reward_model", "extra_info", "data_source", "grader"}
    rest = {name: value for name, value in row.items() if name not in used}
    final, reference = split_solution(answer)
    return Item(
        question=asked,
        before=before,
        answer=final,
        id=_short(about, first_of(about, IDS)),
        system=system,
        grader=_short(row, "grader"),
        source=_short(row, "data_source"),
        reference=reference
        or next((str(about[n]) for n in ("answer", "solution") if isinstance(about.get(n), str)), ""),
        meta={**rest, **about, **({"input_output": truth} if code else {})},
        cases=(truth if isinstance(truth, str) else json.dumps(truth)) if code else "",
    )


def _is_cases(truth: object) -> bool:
    """Return whether a value is the tests of a program, as an object or as its text."""
    if isinstance(truth, str):
        return truth.lstrip().startswith("{") and '"inputs"' in truth
    return isinstance(truth, dict) and "inputs" in truth


def names_option(row: Columns) -> bool:
    """Return whether the row has options, and the right one."""
    shown = any(not (is_missing(row.get(name)) or row[name] in ([], {})) for name in OPTIONS)
    return shown and any(not is_missing(row.get(name)) for name in CHOSEN)


def _choices(row: Columns) -> Item:
    """Read options; they are shown and graded by letters, whatever their labels are (ARC has some of 1 to 4)."""
    filled = {name: value for name, value in row.items() if not is_missing(value)}
    column = first_of(filled, OPTIONS) or first_of(row, OPTIONS)
    options, letters = _in_text(row, column), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    called: list[str] = list(letters)
    if isinstance(options, dict):  # of two lists (ARC), or label to text
        about = options if "text" in options else {"label": list(options), "text": list(options.values())}
        called, options = list(map(str, about.get("label") or letters)), about["text"]
    if not isinstance(options, list) or not 2 <= len(options) <= min(len(called), len(letters)):
        raise ColumnError(column, numpy_error(row[column]) or "is not a list of choices")
    answer = first_of(filled, CHOSEN) or first_of(row, CHOSEN)
    read = build_item(row, first_of(row, QUESTIONS), answer)
    lines = [f"{letter}. {to_text(option)}" for letter, option in zip(letters, options, strict=False)]
    read = replace(read, question="\n".join([read.question.rstrip(), "", *lines]))
    called = called[: len(options)]
    if read.answer in called:
        return replace(read, answer=letters[called.index(read.answer)], raw_answer=read.answer)
    place, named_by = _place_of(read.answer, options, row[answer], answer)
    if place is not None:
        return replace(read, answer=letters[place], named_by=named_by, raw_answer=read.answer)
    otherwise = read_letter(read.answer) or chosen_letter(read.answer)  # b, (B), (B) 42
    if otherwise in tuple(letters[: len(options)]):
        return read
    return replace(read, unread=f"it names none of the {len(options)} options, A to {letters[len(options) - 1]}")


def _gpqa(row: Columns) -> Item:
    """Read GPQA's columns, which have the right answer first; seed and question set the order of the options."""
    seed, options = row.get("options_seed") or 0, [read_text(row, column) for column in GPQA]
    if not all(options):
        raise ColumnError(GPQA[options.index("")], "is empty")
    order = sorted(range(len(options)), key=lambda n: derive("options", seed, read_text(row, "Question"), options[n]))
    return _choices({**row, "choices": [options[n].strip() for n in order], "answer_index": order.index(0)})


def _in_text(row: Columns, column: str) -> Any:
    """Return a column's value, parsed if it is a text in JSON or in Python's notation."""
    try:
        return parse_value(row[column])
    except (ValueError, RecursionError) as error:
        raise ColumnError(column, f"cannot be read: {error}") from None


def _place_of(answer: str, options: Sequence[object], value: object, column: str) -> tuple[int | None, str]:
    """Return the index of the option that an answer other than a label names, or None; and for a string whether by its
    `read_text` or its `index`, if this row decides it. `value` is the answer as it stands in `column`.

    A number is an index, as in MMLU, and so is any value of a column of indices; a string that is both is a text.
    Raises ColumnError where the options are numbers too, and one of them is that number while another has that index.
    """
    text = next((n for n, option in enumerate(options) if to_text(option).strip() == answer), None)
    index = int(answer) if answer.isdecimal() and int(answer) < len(options) else None
    if text == index:
        return index, ""
    if text is not None and index is not None and value in options and isinstance(value, int):
        raise ColumnError(column, f"is {answer}, one option and the index of another: write its letter, A, B, …")
    if index is not None and (text is None or column in INDICES or isinstance(value, int)):
        return index, "" if column in INDICES or isinstance(value, int) else "index"
    return text, "text"


VERL = Convention(
    "verl", ("prompt", "reward_model"), _verl, fits=lambda row: isinstance(parse_cell(row["reward_model"]), dict)
)
CHOICES = Convention(
    "choices", ("|".join(QUESTIONS), "|".join(OPTIONS), "|".join(CHOSEN)), _choices, "choice", certainty=2
)
GPQA_OPTIONS = Convention("gpqa", ("Question", *GPQA), _gpqa, "choice")
GSM8K = Convention("gsm8k", ("question", "answer"), _plain, certainty=3,
                   fits=lambda row: isinstance(row["answer"], str) and ends_in_mark(row["answer"]))  # fmt: skip
MATH = Convention("math", ("problem", "answer|solution"), _math, certainty=3,
                  fits=lambda row: "expected_answer" not in row and _of_math(row))  # fmt: skip
AIME = Convention("aime", ("problem|Problem", "expected_answer|Answer"), _plain, certainty=3)
TRL = Convention("trl", ("prompt", "answer|solution|ground_truth"), _plain, certainty=4)
PLAIN = Convention("plain", ("|".join(QUESTIONS), "|".join(ANSWERS)), _plain, certainty=5)
CONTEXT = Convention("context", ("|".join(CONTEXTS), *PLAIN.needs), _apart, fits=lambda _: False, certainty=6)


def with_context(row: Columns, column: str, asked: str) -> tuple[str, tuple[str, ...]]:
    """Add context and input to the question in `column`; return it with their columns. Blank lines divide them."""
    if row.get(column) != asked or column == "prompt" or any(name in row for name in PLACES):
        return asked, ()
    about = next((name for name in CONTEXTS if _adds(row, name, column, asked)), "")
    given = INPUT if _adds(row, INPUT, column, asked) and (column == "instruction" or "output" not in row) else ""
    parts = [*([row[about].strip("\n")] if about else []), asked, *([row[given].strip("\n")] if given else [])]
    return "\n\n".join(parts), tuple(filter(None, (about, given)))


def _adds(row: Columns, name: str, column: str, asked: str) -> bool:
    """Return whether a column has text that neither is part of the question nor contains it."""
    value = row.get(name)
    if name == column or not isinstance(value, str) or not value.strip():
        return False
    return value.strip() not in asked and asked.strip() not in value


# Conventions of tasks whose answers are programs, graded by tests: HumanEval, MBPP, LiveCodeBench and APPS.
#
# The tests stay in a task's `meta`, under the names that the data set gives them; nothing here unpacks or runs them.

CODE = "code"
"""The grader of tasks with tests."""
_MBPP_ASKS = ("question", "text", "query", "prompt")
_ASKS = (*_MBPP_ASKS, *(name for name in QUESTIONS if name not in _MBPP_ASKS))
_MBPP_TESTS = ("test_list", "tests")
_APPS_TESTS = ("input_output", "tests")
_COMPARING = ("math", "exact", "judge")
"""Graders that compare answers, and ignore tests beside them."""


def _humaneval(row: Columns) -> Item:
    """Read a function's beginning as prompt; it stays in `meta` too, as the tests need its imports and helpers."""
    read = build_item(row, "prompt", "")
    start = read.question.strip("\n")
    how = "Complete this Python program, and answer with the whole of it in one block of code."
    asked = f"{how}\n\n```python\n{start}\n```"
    return replace(read, question=asked, bare=start, meta={**read.meta, "prompt": row["prompt"]})


def _mbpp(row: Columns) -> Item:
    """Read a row of MBPP and show its tests, as its authors do (arXiv 2108.07732): only they name the function."""
    if _compared(row):
        answers = (name for name in ANSWERS if not is_missing(row.get(name)))
        return build_item(row, first_of(row, _ASKS), first_of(row, answers))
    read = build_item(row, first_of(row, _ASKS), "")
    column = first_of(row, (name for name in _MBPP_TESTS if not is_empty(row.get(name))))
    if (lines := list_pieces(row.get(column))) is None:
        if column == "test_list":
            raise ColumnError(column, numpy_error(row.get(column)) or "is not a list of tests, each a line of Python")
        return _with_how(read, row)
    shown = "\n".join(lines)
    asked = (
        f"{read.question.strip()} Answer with one block of Python. These tests must pass:\n\n```python\n{shown}\n```"
    )
    return replace(read, question=asked)  # without our few words, tests alone could hide that a question is known


def _of_mbpp(row: Columns) -> bool:
    """Return whether a row is of MBPP: `tests`, or a row without any, may be of another convention."""
    lines = any(list_pieces(row.get(name)) for name in _MBPP_TESTS)
    return not (_only_chooses(row) or _compared(row)) and (lines or ("test_list" in row and _asks_as_mbpp(row)))


def _compared(row: Columns) -> bool:
    """Return whether it names a grader that compares its answer."""
    return row.get("grader") in _COMPARING and not all(is_missing(row.get(name)) for name in ANSWERS)


def _asks_as_mbpp(row: Columns) -> bool:
    return any(name in row for name in _MBPP_ASKS)


def _without_tests(row: Columns) -> bool:
    return all(is_empty(row.get(name)) for name in _APPS_TESTS)


def _only_chooses(row: Columns) -> bool:
    """Return whether it names an option and has no tests, as in a table with rows of several kinds."""
    return names_option(row) and all(is_empty(row.get(name)) for name in {*_APPS_TESTS, *_MBPP_TESTS})


def _undecided(row: Columns) -> bool:
    """Return whether other rows may have the tests that it lacks."""
    return _without_tests(row) and _asks_for_programs(row)


def _asks_for_programs(row: Columns) -> bool:
    """Return whether a row asks for a program. One with an answer beside `input_output`, or beside `tests` of another
    kind, does not; a solution without a box that is not a number is a program."""
    solution = str(row.get("solution"))
    solved = "\\boxed" in solution or parse_rational(solution) is not None
    answered = solved or any(name in row for name in ANSWERS if name != "solution")
    tests = row.get("tests")
    tested = "tests" in row and (_asks_as_mbpp(row) or (isinstance(tests, str) and "assert" in tests))
    return not _only_chooses(row) and (tested or not answered)


def _livecodebench(row: Columns) -> Item:
    read = build_item(row, "question_content", "")
    return replace(_with_how(read, row), source=read.source or read_text(row, "platform"))


def _apps(row: Columns) -> Item:
    """Read a row of APPS or TACO, or one whose `tests` are cases, or Python in one text; they are too many to be shown.
    Lines of Python, and answers that are compared, are read as in mbpp: they may stand in other rows."""
    if _compared(row) or list_pieces(row.get("tests")):
        return _mbpp(row)
    read = build_item(row, first_of(row, QUESTIONS), "")
    return _with_how(read, row)


def _of_apps(row: Columns) -> bool:
    return not (_without_tests(row) or _compared(row)) and _asks_for_programs(row)


def _with_how(read: Item, row: Columns) -> Item:
    """Add to its question which kind of program answers it."""
    start = read_text(row, "starter_code").strip("\n")
    if start:
        how = f"Answer with one block of Python that begins so:\n\n```python\n{start}\n```"
    elif isinstance(tests := row.get("tests"), str) and not tests.lstrip().startswith(("[", "{")):
        how = "Answer with one block of Python."
    elif name := find_function(row):
        how = f"Answer with one block of Python that defines `{name}`."
    else:
        how = "Answer with one block of Python: a program that reads standard input and prints the answer."
    return replace(read, question=f"{read.question.strip()}\n\n{how}", bare=read.question)


HUMANEVAL = Convention("humaneval", ("prompt", "test", "entry_point"), _humaneval, CODE)
LIVECODEBENCH = Convention(
    "livecodebench", ("question_content", "public_test_cases|private_test_cases"), _livecodebench, CODE
)
MBPP = Convention("mbpp", ("|".join(_ASKS), "|".join(_MBPP_TESTS)), _mbpp, CODE, _of_mbpp, 1, undecided=_undecided)
APPS = Convention("apps", ("|".join(QUESTIONS), "|".join(_APPS_TESTS)), _apps, CODE, _of_apps, 1, undecided=_undecided)
