"""Task family of generated questions about long documents, graded exactly.

They are for programs that call a model on parts of a document.

    Tom apple 412
    Mia horse 108

A document is lines of a name, a thing and a number; a question is about the groups of things: which line is about food,
how many are. The groups are not in the text, so that a search for words does not answer it: only a model can.

- `word`: the number of the only line with a thing, in the manner of S-NIAH (RULER, arXiv 2404.06654), whose needle is
  a sentence among essays; a search for the word finds it, there as here.
- `needle`: the number of the only line about a group, which no search for words finds.
- `count` and `aggregate`: how many lines are about a group, and which group most lines are about, in the manner of
  OOLONG (arXiv 2511.02817), whose lines are texts of classification data sets with a date and a user.
- `pair`: all pairs of numbers that have lines about two groups each, in the manner of OOLONG-Pairs (arXiv 2512.24601),
  which has such questions on OOLONG's data.

A document is drawn from a seed; its text decides by hash which part it belongs to, so that training and evaluation
share none. `grade` also grades calls of the model that ask one of these questions, or for the `list` of a group's
numbers, about some lines: each is a question about a document of its own. Lines may stand before or after the question.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, count, islice
from typing import Annotated

from pydantic import Field, field_validator

from retcon.config.schema import TaskSection
from retcon.config.section import NonNegative, Probability, StrList
from retcon.core.errors import nearest
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.tasks.graders.text import find_boxed
from retcon.tasks.registry import RIGHT, WRONG, CountTokens
from retcon.tasks.types import Lesson, Split, Task

GROUPS = {
    "food": ("apple", "pear", "bread", "milk", "salt", "sugar"),
    "people": ("man", "woman", "child", "king", "queen", "friend"),
    "house": ("door", "window", "wall", "chair", "cup", "box"),
    "animal": ("bird", "dog", "cat", "horse", "fish"),
}
"""Groups of things in lines."""
NAMES = ("Tom", "Mia", "Ada", "Ben", "Eva", "Max", "Ida", "Leo", "Zoe", "Jan")
NONE = "none"
EVALUATION_SHARE = 8
"""One document in eight belongs to the evaluation part."""
_GROUP_OF = {thing: group for group, things in GROUPS.items() for thing in things}
_LINE = re.compile(rf"^(?:{'|'.join(NAMES)}) ({'|'.join(_GROUP_OF)}) (\d{{3}})\b", re.MULTILINE)
_LINE_CHARS = 13.3


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of question: its words, with a `{}` for each group or thing, and its answer from (number, thing) of all
    lines. of: groups or things."""

    words: str
    groups: int
    answer: Callable[..., str]
    of: tuple[str, ...] = tuple(GROUPS)

    @property
    def pattern(self) -> re.Pattern[str]:
        parts = map(re.escape, self.words.split("{}"))
        return re.compile(f"({'|'.join(self.of)})\\b".join(parts))


Lines = Sequence[tuple[str, str]]


def _numbers(lines: Lines, group: str) -> list[str]:
    return [number for number, thing in lines if group in (thing, _GROUP_OF[thing])]


def _most(lines: Lines) -> str:
    found = Counter(_GROUP_OF[thing] for _, thing in lines)
    return min(found, key=lambda group: (-found[group], group)) if found else NONE


def _pairs(lines: Lines, one: str, other: str) -> str:
    both = sorted(set(_numbers(lines, one)) & set(_numbers(lines, other)))
    return " ".join("-".join(pair) for pair in combinations(both, 2)) or NONE


QUESTIONS = {
    "word": Question("what is the number of the line with {}?", 1,
                     lambda lines, thing: " ".join(_numbers(lines, thing)) or NONE, tuple(_GROUP_OF)),
    "needle": Question("what is the number of the line about {}?", 1,
                       lambda lines, group: " ".join(_numbers(lines, group)) or NONE),
    "count": Question("how many lines are about {}?", 1, lambda lines, group: str(len(_numbers(lines, group)))),
    "aggregate": Question("which of food, people, house and animal are most lines about?", 0, _most),
    "pair": Question("which pairs of numbers have lines about {} and lines about {} each?", 2, _pairs),
    "list": Question("which numbers have lines about {}?", 1,
                     lambda lines, group: " ".join(sorted(set(_numbers(lines, group)))) or NONE),
}  # fmt: skip
KINDS = ("word", "needle", "count", "aggregate", "pair")
"""Questions of tasks; a `list` is only asked of a part."""


def solve(text: str) -> str | None:
    """Answer the first of QUESTIONS in a text about its lines; None where it has none."""
    found = [(match.start(), match, one) for one in QUESTIONS.values() if (match := one.pattern.search(text))]
    if not found:
        return None
    _, match, question = min(found, key=lambda one: one[0])
    lines = [(number, thing) for thing, number in _LINE.findall(text)]
    return question.answer(lines, *match.groups())


def as_answer(text: str) -> str:
    """Return a reply's boxed answer, or all of it. Case and the order of pairs do not count."""
    given = find_boxed(text)
    words = (text if given is None else given).lower().strip().removeprefix("answer:").replace(",", " ").split()
    return " ".join(sorted(words)).rstrip(".")


def make_document(kind: str, groups: Sequence[str], lines: int, rng: random.Random) -> str:
    """Draw a document of so many lines for a kind of question. groups: of the question, or its thing."""
    others = [group for group in GROUPS if group not in groups] if kind in ("needle", "pair") else list(GROUPS)
    # Some groups are named more often than others, so that the most common one is not a matter of chance alone.
    weights = [rng.randint(1, 4) for _ in others]
    about = rng.choices(others, weights, k=lines)
    numbers = [rng.randint(100, 999) for _ in range(lines)]
    if kind == "needle":
        about[rng.randrange(lines)] = groups[0]
    things = [rng.choice(GROUPS[group]) for group in about]
    if kind == "word":
        left = [thing for thing in _GROUP_OF if thing != groups[0]]
        things = [rng.choice(left) if thing == groups[0] else thing for thing in things]
        things[rng.randrange(lines)] = groups[0]
    if kind == "pair":
        places = rng.sample(range(lines), min(lines, 2 * rng.randint(2, 4) + 4))  # the last four have one group alone
        fresh = rng.sample(range(100, 1000), len(places))
        for n, place in enumerate(places):
            about[place] = groups[n % 2]
            numbers[place] = fresh[n // 2 if n < len(places) - 4 else n]
        things = [rng.choice(GROUPS[group]) for group in about]
    rows = (f"{rng.choice(NAMES)} {thing} {n}" for n, thing in zip(numbers, things, strict=True))
    return "\n".join(rows)


def documents(
    seed: int, split: Split, kinds: Sequence[str], lengths: tuple[int, int]
) -> Iterator[tuple[str, str, str]]:
    """Yield kinds, questions and documents of a part without end. lengths: least and most characters of documents;
    short ones are as frequent as long ones."""
    for number in count():
        rng = random.Random(derive("documents", seed, split, number))
        kind = kinds[number % len(kinds)]
        question = QUESTIONS[kind]
        groups = rng.sample(question.of, question.groups)
        low, high = lengths
        characters = low * (high / low) ** rng.random()
        document = make_document(kind, groups, max(1, round(characters / _LINE_CHARS)), rng)
        held = hashlib.sha256(document.encode()).digest()[0] % EVALUATION_SHARE == 0
        if held == (split == "evaluation"):
            yield kind, question.words.format(*groups), document


# The teacher: a program that cuts the document, asks about the parts, and combines the answers.
#
# Its parts are of a size that is drawn; what it answers about one is wrong now and then, and so are its programs.

PART_LINES = (8, 16, 32)
_CUT = """\
lines = context.split("\\n")
parts = ["\\n".join(lines[i:i + {size}]) for i in range(0, {stop}, {size})]
found = llm_query_batched([part + "\\n{question}" for part in parts])
"""
_COMBINE = {
    "word": 'result = [x for x in found if x != "none"][0]',
    "needle": 'result = [x for x in found if x != "none"][0]',
    "count": "result = sum(int(x) for x in found)",
    "aggregate": "result = max(found, key=found.count)",
}
_PAIRS = """\
lines = context.split("\\n")
parts = ["\\n".join(lines[i:i + {size}]) for i in range(0, {stop}, {size})]
sets = []
for group in {groups}:
    found = llm_query_batched([part + "\\nwhich numbers have lines about " + group + "?" for part in parts])
    sets.append(set(x for one in found for x in one.split() if x != "none"))
both = sorted(sets[0] & sets[1])
result = " ".join(a + "-" + b for a in both for b in both if a < b) or "none"
"""
_SUBMIT = '\nanswer["content"] = result\nanswer["ready"] = True'


@dataclass(frozen=True, slots=True)
class Rates:
    """Error rates of the teacher: shares of its programs, and of its answers about parts."""

    programs: float = 0.2
    answers: float = 0.1


def write_program(
    kind: str, question: str, seen: Sequence[str], rng: random.Random, rates: Rates
) -> tuple[str, str | None]:
    """Write the teacher's next turn: words and program; after one that did not end the task, its output."""
    if len(seen) > 1:
        return f"answer: {NONE}", None
    size = rng.choice(PART_LINES)
    stop = f"len(lines) - {size}" if rng.random() < rates.programs else "len(lines)"
    if kind == "pair":
        match = QUESTIONS["pair"].pattern.search(question)
        return "cut and ask.", _PAIRS.format(size=size, stop=stop, groups=match.groups() if match else ()) + _SUBMIT[1:]
    return "cut and ask.", _CUT.format(size=size, stop=stop, question=question) + _COMBINE[kind] + _SUBMIT


def answer_part(prompt: str, rng: random.Random, rates: Rates) -> str:
    """Answer a call of the teacher's program: rightly, or rightly for fewer lines."""
    if rng.random() < rates.answers:
        found = list(_LINE.finditer(prompt))
        for line in rng.sample(found, len(found) - len(found) // 2):
            prompt = prompt.replace(line[0], "", 1)
    return solve(prompt) or NONE


@dataclass(frozen=True, slots=True)
class DocumentTasks:
    """Task set of documents. Implements `TaskSet`, `Taught`. lengths, evaluation_lengths, in_prompt: keys of [task]."""

    kinds: tuple[str, ...] = KINDS
    lengths: tuple[int, int] = (4000, 4000)
    evaluation_lengths: tuple[int, int] = (4000, 4000)
    in_prompt: int = 0
    rates: Rates = Rates()
    name: str = "documents"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        return (self._task(*one) for one in documents(seed, "train", self.kinds, self.lengths))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        stream = documents(seed, "evaluation", self.kinds, self.evaluation_lengths)
        return [self._task(*one) for one in islice(stream, count)]

    def _task(self, kind: str, question: str, document: str) -> Task:
        text = f"{question}\n{document}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        meta = {"kind": kind, "context": document}
        asked = text[: len(question) + 1 + self.in_prompt].rpartition("\n")[0] if self.in_prompt else question
        return Task(f"documents/{kind}/{digest[:12]}", asked, solve(text) or NONE, self.system, meta)

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        children = tuple(map(_graded_below, trajectory.children))
        answered = trajectory.turns and trajectory.stop == "answer"
        text = "".join(s.text for s in trajectory.turns[-1].segments) if answered else ""
        answer = as_answer(_without_marks(text)) if answered else None
        right = answer is not None and answer == as_answer(task.answer)
        reason = "no answer" if answer is None else "equal" if right else "not equal"
        return replace(trajectory, answer=answer, reward=RIGHT if right else WRONG, reason=reason, children=children)

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        for kind, question, document in documents(derive("lessons", seed), "train", self.kinds, self.lengths):
            yield self._task(kind, question, document), partial(self._lesson, kind, question)

    def _lesson(self, kind: str, question: str, seen: Sequence[str], rng: random.Random) -> tuple[str, str | None]:
        return write_program(kind, question, seen, rng, self.rates)

    def answer_subcall(self, prompt: str, rng: random.Random) -> str:
        """Answer a call of the teacher's own program."""
        return answer_part(prompt, rng, self.rates)


_MARK = re.compile(r"<\|[^|<>]*\|>|</?think>")


def _without_marks(text: str) -> str:
    return _MARK.sub(" ", text)


def _graded_below(child: Trajectory) -> Trajectory:
    """Give a model call a reward, where it asks one of QUESTIONS."""
    child = replace(child, children=tuple(map(_graded_below, child.children)))
    expected = solve(_without_marks("".join(segment.text for segment in child.prompt)))
    if expected is None or child.stop == "infrastructure":
        return child
    right = child.answer is not None and as_answer(child.answer) == as_answer(expected)
    return replace(child, reward=RIGHT if right else WRONG, expected=expected)


class Documents(TaskSection):
    """Section [task] of kind `documents`."""

    asks: StrList = Field(KINDS, description="kinds of questions, in turns: word, needle, count, aggregate, pair")
    length: Annotated[int, Field(ge=20, le=10_000_000)] = Field(4000, description="characters of a document")
    longest: NonNegative = Field(0, description="characters of the longest ones, between which and length they are "
                                 "drawn; 0: all have length")  # fmt: skip
    evaluation_length: NonNegative = Field(0, description="characters of documents that are held out; 0: as the "
                                           "others")  # fmt: skip
    in_prompt: NonNegative = Field(0, description="characters of the document, up to a whole line, that stand in the "
                                   "prompt besides, for models without programs; 0: none")  # fmt: skip
    wrong_programs: Probability = Field(0.2, description="share of the teacher's programs that leave out the last part")
    wrong_answers: Probability = Field(0.1, description="share of the teacher's answers about a part that read half of "
                                       "it")  # fmt: skip

    @field_validator("asks")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for kind in value:
            if kind not in KINDS:
                raise ValueError(f"no kind of question '{kind}'{nearest(kind, KINDS)}; there are: {', '.join(KINDS)}")
        if not value:
            raise ValueError(f"name one or several: {', '.join(KINDS)}")
        return value

    def build(self, count_tokens: CountTokens | None = None) -> DocumentTasks:
        lengths = (self.length, max(self.length, self.longest))
        held = (self.evaluation_length,) * 2 if self.evaluation_length else lengths
        rates = Rates(self.wrong_programs, self.wrong_answers)
        return DocumentTasks(self.asks, lengths, held, self.in_prompt, rates)
