"""Read texts: sentences, names and numbers, and references to failures."""

from __future__ import annotations

import io
import json
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from textwrap import dedent
from typing import Literal

from msgspec import Struct

from retcon.purify.programs import parse

_FENCED = re.compile(r"```[^\n`]*\n.*?(?:```|\Z)", re.DOTALL)
_SOLUTION = re.compile(r"<solution>(.*?)(?:</solution>|\Z)", re.DOTALL)


def programs(text: str) -> list[tuple[int, int]]:
    """Find spans [start, end) of programs, in order: fenced ones, and solutions in valid Python."""
    found = [found.span() for found in _FENCED.finditer(text)] if "```" in text else []
    for start, end in _solutions(text):
        apart = all(end <= other or start >= stop for other, stop in found)
        if apart and parse(dedent(text[start:end]).strip()) is not None:
            found.append((start, end))
    return sorted(found)


def shown(text: str) -> list[tuple[int, int]]:
    """Find spans [start, end) of programs and solutions."""
    return [*programs(text), *_solutions(text)]


def _solutions(text: str) -> list[tuple[int, int]]:
    return [found.span(1) for found in _SOLUTION.finditer(text)] if "<solution>" in text else []


_END = re.compile(r"[.!?:]+[\"')\]*`_]*(?=\s|\Z|<)|\n+|</?\w+>")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|etc|eqs?|figs?|dr|mr|mrs|approx|cf|no|resp)\Z", re.IGNORECASE)
_ITEM = re.compile(
    r"(?:\n|;|\b(?:no\.|steps?|parts?|cases?|sections?|items?|phases?|options?))[*_#\s]*\(?\d{1,3}\Z", re.IGNORECASE
)
"""The number of a list's item: where a line or a sentence begins, or after what it counts."""
_NEAR = 24
"""How far back an abbreviation or a label is looked for."""
_COMMENT = re.compile(r"#[^\n]*")


class Sentence(Struct, frozen=True):
    """[start, end) of a text. rule: why it refers to what is gone, None where it does not."""

    start: int
    end: int
    rule: str | None = None

    def within(self, other: Sentence) -> bool:
        return other.start <= self.start and self.end <= other.end


def sentences(text: str) -> list[Sentence]:
    """Split a text into sentences, without spaces and tags between.

    A line break ends a sentence unless the next line goes on in small letters. Of a program that the text shows,
    comments are sentences, and its lines are not."""
    found: list[Sentence] = []
    at = 0
    for start, stop in programs(text):
        _add_all(found, text, at, start)
        found += (Sentence(*comment.span()) for comment in _COMMENT.finditer(text, start, stop))
        at = stop
    _add_all(found, text, at, len(text))
    return found


def _add_all(found: list[Sentence], text: str, start: int, stop: int) -> None:
    for end in _END.finditer(text, start, stop):
        mark = end[0]
        if mark[0] == "." and _goes_on(text, start, end.start()):
            continue
        if mark[0] == "\n" and len(mark) == 1 and text[end.end() : end.end() + 1].islower():
            continue
        outside = mark[0] in "\n<"
        _add(found, text, start, end.start() if outside else end.end())
        start = end.end()
    _add(found, text, start, stop)


def _goes_on(text: str, start: int, dot: int) -> bool:
    """Whether a sentence goes on after this dot: that of an abbreviation, or of an item's number."""
    near = text[max(start, dot - _NEAR) : dot]
    near = f"\n{near}" if dot - start <= _NEAR else near
    return bool(_ABBREVIATION.search(near) or _ITEM.search(near))


def _add(found: list[Sentence], text: str, start: int, end: int) -> None:
    inside = text[start:end]
    if stripped := inside.strip():
        at = start + inside.index(stripped[0])
        found.append(Sentence(at, at + len(stripped)))


# Words that speak of a failure. A splice stays in a history that the failure is gone from, so a sentence that
# apologises for it, names its exception or calls the program a corrected one has nothing to refer to. Each rule is a
# pattern over one sentence; in doubt a sentence counts as referring: a cut too many costs a sentence, a cut too few
# teaches a lie.

Scope = Literal["fix", "later"]
"""Where a sentence stands: written right after the failure, as the words or comments of its fix; or later."""

_STATISTICS = (
    r"(?<!standard )(?<!absolute )(?<!squared )(?<!mean )(?<!relative )(?<!rounding )(?<!margin of )(?<!percentage )"
)
_NOUNS = (
    r"(?:code|attempt|approach|program|call|response|implementation|snippet|run|execution|version|message"
    r"|try|error)s?"
)
_MADE = r"(?:solution|code|function|program|approach|implementation|loop|method|logic|output|result|test(?: case)?)s?"
_APOLOGY = (
    r"apolog\w*|sorry|oops|whoops|my (?:mistake|bad|fault)|oversight|confusion(?! matri)"
    r"|thank you for (?:your|the) (?:patience|understanding)|bear with me"
)
_WAYS = r"(?:approach|method|way|library|strategy|function|solution|module|package|technique)"

RULES: dict[str, dict[Scope, str]] = {
    "apology": {"fix": _APOLOGY, "later": _APOLOGY},
    "error": {
        "fix": rf"{_STATISTICS}errors?|exceptions?|traceback|bugs?|buggy|mistak\w*|fail(?:s|ed|ing|ures?)?|crash\w*"
        r"|went wrong|(?:in|not )correct(?:ly)?|wrong(?:ly)?|forg[eo]t(?:ten)?|overlook\w*|missed|missing"
        r"|misunder\w*"
        r"|(?:it|this|that|code|function|method|approach|which) (?:did|does|do)(?:n['’]t| not) work"
        r"|not (?:right|valid|working)|invalid|issues?|problem (?:with|is|was|in|here)"
        r"|should(?:n['’]t| not)? have|unexpected\w*|undefined|complain\w*",
        "later": r"(?:the|this|that|an|another|previous|earlier|above|last|same|import|syntax|name|type|value|index"
        rf"|attribute|assertion|key) {_STATISTICS}(?:errors?"
        rf"|exceptions?)(?! (?:term|bound|bar|margin|rate|estimate))"
        r"|traceback|bugs?|mistak(?:e|en|enly)|forgot(?:ten)?|overlook\w*"
        r"|(?:failed|fails) (?:to (?:run|execute|import|compile)|again|because|due)|went wrong"
        r"|(?:it|that|code|which) did(?:n['’]t| not) work",
    },
    "fix": {
        "fix": r"fix(?:e[sd]|ing)?|correct(?:ed|ing|ions?|s)|correct (?:this|that|it|the|my|our|your)"
        r"|let['’]?s correct"
        r"|revis\w+|re-?writ\w+|debug\w*|modif\w+|adjust\w*|amend\w*|rectif\w+|resolv\w+|workaround|work around"
        r"|avoid(?:s|ing)? \w+|address (?:this|that|the)|handl(?:e|es|ing) (?:this|that|the|these|cases?)"
        rf"|updat(?:e|ed|ing) (?:(?:the|my|our|this|that) )?(?:\w+ )?(?:{_MADE}|condition|version|definition|it)"
        r"|the (?:correct|right|proper) \w+ (?:should|would|is|are|to)"
        r"|improv\w+|chang(?:e|ed|ing) (?:the|my|our|it|this)|proper(?:ly)?|correctly|ensur\w+",
        "later": r"fix(?:e[sd]|ing)? (?:this|that|it|the|my|our)|fixed|corrected|after (?:fix|correct)ing"
        r"|correction"
        r"|(?:let['’]?s|let me|I(?:['’]ll| will)) correct"
        r"|(?:revised|modified|debugged|rewritten|updated) (?:code|program|function|solution|version)",
    },
    "again": {
        "fix": r"again|once more"
        r"|re-?(?:try|run|do|evaluate|calculate|compute|import|examine|consider|check|visit"
        rf"|think|defin|initiali[sz]|set)\w*|another {_WAYS}|another (?:attempt|try|error|mistake)|(?:a "
        rf"|an )?(?:different|alternative|other|new) {_WAYS}"
        r"|alternative(?:ly)?|try(?:ing)? (?:to |using |with |a |an |it|this|the )|next attempt|this time|still"
        r"|plain python|(?:first|directly|explicitly|separately) (?:import|define|declare|convert)\w*",
        "later": r"(?:try|run|execute|compile) (?:it |this |that |the (?:code|program) )?again|retry\w*"
        r"|re-?run\w*|once more"
        r"|another (?:attempt|try|error|mistake)|this time",
    },
    "instead": {
        "fix": r"instead|rather than|as opposed to|in place of|switch(?:ing|ed)? to|no longer",
        "later": r"instead of (?:using|the (?:previous|original))",
    },
    "previous": {
        "fix": rf"(?:previous(?:ly)?|earlier|prior|last|above|original(?:ly)?|initial(?:ly)?|first|old"
        rf"|existing|current|former|my) {_NOUNS}"
        rf"|previously|earlier|before (?:using|calling|the)|currently|current {_MADE}",
        "later": rf"(?:previous|earlier|prior|last|original|initial|old|former) {_NOUNS}",
    },
    "unavailable": {
        "fix": r"(?:not|n['’]t|never|cannot|can['’]?t)(?: be| directly| currently| automatically| yet"
        r"| properly| been| actually| have)*"
        r" (?:available|installed|defined|imported|supported|recogni[sz]ed|accessible|found|implemented"
        r"|included|callable"
        r"|subscriptable|iterable|import|access|use|have|support|exist|accept|take|part|in the"
        r"|a )\w*|unavailable|unsupported"
        r"|without (?:using |importing )?(?:sympy|numpy|scipy|external|any)|no (?:module|attribute|access)|lack\w*"
        r"|(?:too long|too slow|timed? ?out|only accepts?|expects?|requires?)",
        "later": r"(?:not|n['’]t)(?: directly| currently| yet| been)* (?:available|installed|imported"
        r"|supported)|unavailable|no module|[\w.]+`(?: function| module| method)? (?:is|was)(?: not|n['’]t) defined",
    },
    "seen": {
        "fix": r"seems?|appears?|looks? like|apparently|turns? out|i (?:see|realiz|realis|notic)\w*"
        r"|(?:we|you) can see"
        r"|the (?:output|result|message|issue|reason|cause)|due to|because|since|as (?:sympy|numpy|the|we)\b.* not",
        "later": r"(?:as|from) the (?:error|message|traceback)",
    },
    "refuted": {"fix": rf"{_MADE} (?:\w+ ){{0,3}}?(?:not|\w+n['’]t) \w+"},
    "did": {
        "fix": r"(?:I|we) (?:\w+ly )?(?!need|proceed|exceed|succeed)"
        r"(?:was|were|had|did|made|wrote|put|took|gave|got|went|left|chose|thought|meant|\w+ed)"
    },
    "contrast": {
        "fix": r"(?<=, )not (?!only|just|necessarily|including|counting)\w+"
        r"|(?:and|but) not (?:an?|the|its?|in|by|of|to|with)"
    },
    "exception": {"fix": r"[A-Za-z]*(?:Error|Exception|Warning)\b", "later": r"[A-Z][A-Za-z]*(?:Error|Exception)\b"},
}
"""What each rule's pattern matches within a sentence, as whole words, by scope."""

_PATTERNS: dict[Scope, dict[str, re.Pattern[str]]] = {
    scope: {
        rule: re.compile(rf"\b(?:{own[scope]})(?!\w)", re.IGNORECASE if rule != "exception" else 0)
        for rule, own in RULES.items()
        if scope in own
    }
    for scope in ("fix", "later")
}
_ANY: dict[Scope, re.Pattern[str]] = {
    scope: re.compile("|".join(f"(?:{p.pattern})" for p in own.values()), re.IGNORECASE)
    for scope, own in _PATTERNS.items()
}
_PLAN = re.compile(
    rf"\b(?:(?:different|another|alternative|new|other|simpler|better) (?:\w+ )?{_WAYS}s?"
    r"|(?:re-?think|reconsider|re-?evaluate|change|correct|revise|update|modify|adjust) (?:the|my|our) (?:\w+ )?"
    rf"(?:{_WAYS}|strategy|logic|plan)s?|(?:different|another|new) (?:strategy|idea|plan|route|algorithm|formula)"
    r"|(?:instead of|rather than) (?:\w+ly |just )?(?!using\b|import)\w+ing|manually|by hand|step[- ]by[- ]step)(?!\w)",
    re.IGNORECASE,
)
"""Another way than before is taken."""
_DOUBT = re.compile(
    r"\b(?:apolog\w*|sorry|oops|whoops|my (?:mistake|bad|fault)|oversight"
    r"|(?:made|making|(?:might|may|must) be|(?:was|is) (?:still |indeed )?)\s*(?:an?|another|the same|some) "
    r"(?:\w+ )?(?:mistakes?|errors?)"
    r"|(?:does|did|do)(?:n['’]t| not) (?:seem|look|appear|make sense)"
    r"|(?:is|are|was|were|seems?|looks?)(?: to be| still)? (?:incorrect|wrong|not (?:correct|right|meaningful|what|as))"
    rf"|not (?:as|what (?:we|I)) expect\w*|unexpected|(?:different|another|alternative) (?:\w+ )?{_WAYS}"
    r"|re-?(?:evaluate|consider|think|examine|visit)\w*|still not|(?:let me|let['’]?s) (?:fix|correct))(?!\w)",
    re.IGNORECASE,
)
"""What was done is taken back."""
_OPENING = re.compile(r"<(\w+)>\s*")
_CLOSING = re.compile(r"\s*</(\w+)>")
_LEANS = re.compile(
    r"(?:it|this|that|these|those|they|which|however|but|so|therefore|thus|hence|then|instead|also"
    r"|nevertheless|otherwise"
    r"|to do (?:this|so|that)|here|specifically|for this)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"(?:[\w'’]+\s+){1,4}?(?:it|them|they|(?:do|did|done|doing|try|trying) (?:this|that|so))\b", re.IGNORECASE
)
"""A pronoun so near to the beginning that what it stands for stands before the sentence."""
_DEFINITE = re.compile(
    r"\b(?:the|my|our|this) (?:\w+ ){0,2}?(?:functions?|code|solution|program|implementation|logic|condition|loop)\b",
    re.IGNORECASE,
)
"""What was written, as something that is known."""
_LABEL = re.compile(r"(?:assistant|thoughts?|ai):", re.IGNORECASE)  # who speaks: no sentence
_ANSWER = re.compile(r"\\boxed|\banswer\b", re.IGNORECASE)
_NUMBERED = re.compile(r"\s*(?:\(?\d{1,2}[.)]|[A-Za-z][.)])\s")


@lru_cache(maxsize=256)
def _may_refer(text: str, scope: Scope) -> bool:
    """Whether a rule may match a text (cached)."""
    return _ANY[scope].search(text) is not None


def rule_of(sentence: str, scope: Scope, but: str = "") -> str | None:
    """Find the first rule by which a sentence refers to a failure.

    Args:
        but: a rule that is left out."""
    if not _may_refer(sentence, scope):
        return None
    return next((rule for rule, own in _PATTERNS[scope].items() if rule != but and own.search(sentence)), None)


def find_references(text: str, scope: Scope, but: str = "", first: str | None = None) -> list[Sentence]:
    """Find sentences that refer to a failure, or lean on such.

    Args:
        but: a rule that is left out.
        first: the rule by which the first sentence refers where it leans on what precedes the text."""
    if first is None and not _may_refer(text, scope):
        return []
    out: list[Sentence] = []
    before = None if first is None else Sentence(0, 0, first)
    for one in sentences(text):
        words = text[one.start : one.end]
        if _LABEL.fullmatch(words):
            continue
        rule = rule_of(words, scope, but)
        if rule is None and before is not None and "\n\n" not in text[before.end : one.start]:
            near = scope == "fix" and (_PRONOUN.match(words) or _DEFINITE.search(words))
            rule = before.rule if near or _LEANS.match(words) else None
        before = None
        if rule is not None:
            before = Sentence(one.start, one.end, rule)
            out.append(before)
    return out


def gives_up_plan(text: str) -> str | None:
    """Find the sentence that announces another approach."""
    return _sentence_with(_PLAN, text)


def takes_back(text: str) -> str | None:
    """Find the sentence that doubts the last step, or apologises for it."""
    return _sentence_with(_DOUBT, text)


def _sentence_with(pattern: re.Pattern[str], text: str) -> str | None:
    if not pattern.search(text):
        return None
    found = (text[one.start : one.end] for one in sentences(text))
    return next((words for words in found if pattern.search(words)), None)


def says_something(text: str) -> bool:
    """Whether a sentence of three words or more is in the text."""
    return any(_is_whole(text[one.start : one.end]) for one in sentences(text))


def _is_whole(sentence: str) -> bool:
    return len(re.findall(r"[^\W\d_]{2,}", sentence)) >= 3


def can_cut(text: str, cuts: Sequence[Sentence]) -> bool:
    """Whether what is left without these sentences is whole: no answer, nothing of a program that is shown, no item of
    a numbered list, nothing that introduces what stays, and at least one sentence of three words."""
    gone = {one.start for one in cuts}
    codes = [Sentence(*program) for program in programs(text)]
    left = [one for one in sentences(text) if one.start not in gone and not any(one.within(code) for code in codes)]
    if not any(_is_whole(text[one.start : one.end]) for one in left):
        return False
    kept = [Sentence(*stretch) for stretch in shown(text)]
    left += codes
    for one in cuts:
        words = text[one.start : one.end]
        if any(one.within(stretch) for stretch in kept) or _ANSWER.search(words):
            return False
        if _NUMBERED.match(text, text.rfind("\n", 0, one.start) + 1):
            return False
        if words.endswith(":") and any(other.start >= one.end for other in left):
            return False
    return True


def spans(text: str, cuts: Sequence[Sentence]) -> list[tuple[int, int]]:
    """Return the spans to remove for these sentences, in order.

    With the space that they leave, with their line where nothing else stands on it, and with tags that are empty
    then."""
    merged: list[tuple[int, int]] = []
    for one in sorted([*_emptied(text, cuts), *cuts], key=lambda c: c.start):
        if merged and not text[merged[-1][1] : one.start].strip(" \t"):
            merged[-1] = (merged[-1][0], max(merged[-1][1], one.end))
        else:
            merged.append((one.start, one.end))
    out: list[tuple[int, int]] = []
    for start, end in merged:
        line, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        before, after = text[line:start], text[end : len(text) if line_end < 0 else line_end]
        if not before.strip() and not after.strip() and line_end >= 0:
            out.append((line, line_end + 1))
        elif after.strip():
            out.append((start, end + len(after) - len(after.lstrip(" \t"))))
        else:
            out.append((start - len(before) + len(before.rstrip(" \t")), end))
    return out


def _emptied(text: str, cuts: Sequence[Sentence]) -> list[Sentence]:
    """Find pairs of tags with nothing but these sentences between them."""
    runs: list[tuple[int, int]] = []
    for one in sorted(cuts, key=lambda c: c.start):
        if runs and not text[runs[-1][1] : one.start].strip():
            runs[-1] = (runs[-1][0], one.end)
        else:
            runs.append((one.start, one.end))
    found: list[Sentence] = []
    for start, end in runs:
        opening = _OPENING.fullmatch(text, max(text.rfind("<", 0, start), 0), start)
        closing = _CLOSING.match(text, end)
        if opening and closing and opening[1] == closing[1]:
            found.append(Sentence(opening.start(), closing.end()))
    return found


def cut_spans(text: str, stretches: Sequence[tuple[int, int]]) -> str:
    """Cut spans from a text."""
    kept: list[str] = []
    at = 0
    for start, end in stretches:
        kept.append(text[at:start])
        at = end
    return "".join([*kept, text[at:]])


def comments(code: str) -> Iterator[Sentence]:
    """Yield a program's comments, each from its `#` to its line's end; none of an invalid one."""
    starts = [0]
    for line in code.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                at = starts[token.start[0] - 1] + token.start[1]
                yield Sentence(at, at + len(token.string))
    except (tokenize.TokenError, SyntaxError, IndexError, ValueError):  # of half an emoji, from Python 3.12 on
        return


def find_comment_references(code: str, scope: Scope) -> list[Sentence]:
    """Find comments that refer to a failure, and lines that continue them."""
    if "#" not in code:
        return []
    out: list[Sentence] = []
    before: Sentence | None = None
    for one in comments(code):
        words = code[one.start + 1 : one.end].strip()
        rule = rule_of(words, scope, but="seen")  # a comment explains the program: `since` and `because` are its own
        goes_on = before is not None and code[before.end : one.start].strip() == "" and words[:1].islower()
        if rule is None and before is not None and goes_on and code[before.end - 1] not in ".!?:":
            rule = before.rule
        before = None
        if rule is not None:
            before = Sentence(one.start, one.end, rule)
            out.append(before)
    return out


def without_comments(code: str, cuts: Sequence[Sentence]) -> str:
    """Remove comments from a program, and lines that become empty."""
    if not cuts:
        return code
    first = code
    for one in sorted(cuts, key=lambda c: c.start, reverse=True):
        line = code.rfind("\n", 0, one.start) + 1
        if code[line : one.start].strip():
            code = code[: one.start].rstrip(" \t") + code[one.end :]
        else:
            code = code[:line] + code[one.end :].removeprefix("\n")
    return code if code.startswith("\n") is first.startswith("\n") else code.lstrip("\n")


_NUMBER = r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\w)"
_CODELIKE = re.compile(
    rf"`([A-Za-z_]\w*)|\b([A-Za-z]\w*_\w+)|\b([A-Za-z_]\w{{2,}})(?=\()|(?<=\w\.)([A-Za-z_]\w{{2,}})|({_NUMBER})"
)
_MAY_MENTION = re.compile(r"[`(]|\w_\w|\w\.\w|\d{4}")
"""What every text has in which something is found by that, or by a number that is telling."""
_TOKEN = re.compile(rf"[A-Za-z_]\w{{2,}}|{_NUMBER}")
_GROUPED = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w.,]*\w)")
_EXCEPTION = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_ABSENT = re.compile(r"(?:has no attribute|cannot import name|No module named) '(\w{4,})'")
_BARE = re.compile(r"\b(?:(the|an?|this|that|its?|our|your|each|of|no) +)?([A-Za-z_]\w{3,})", re.IGNORECASE)
_CAPITAL = re.compile(r"(?:(?<=[a-z0-9,;] )|(?<=['\"]))[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,})*\b")
_QUOTED = re.compile(r"`([^`\n]+)`|(?<!\w)'(\w[^'\n]*)'(?!\w)|\"([^\"\n]+)\"")
_FILE = re.compile(r"(?<![\w./~-])(?:~?/)?(?:[\w.-]+/)*[\w.-]*\w\.[a-z]\w{1,4}\b")
_IMPORTED = re.compile(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", re.MULTILINE)
_SHORT = 4
"""Characters from which on a number is telling: 42 may come from anywhere."""


def tokens(text: str, shortest: int = 1) -> set[str]:
    """Return names of three letters and more, and numbers, of a text.

    98765.0 and 98,765 become 98765.

    Args:
        shortest: characters that a token has to have."""
    found = {plain(token) for token in _TOKEN.findall(text) if len(token) >= shortest}
    if "," in text:
        found.update(plain(number.replace(",", "")) for number in _GROUPED.findall(text))
    return found


def mentions(text: str) -> set[str]:
    """Return names and numbers that a text writes as code."""
    found = {plain(token) for token in _mentioned(text)}
    if "," in text:
        found.update(plain(number.replace(",", "")) for number in _GROUPED.findall(text))
    return found


def decimals(text: str) -> set[str]:
    """Return the decimal numbers in a text."""
    return {plain(token) for token in _mentioned(text) if "." in token} if "." in text else set()


def relied_on(text: str) -> set[str]:
    """Return the tokens of a text, numbers with commas as one."""
    return tokens(_GROUPED.sub(lambda number: number[0].replace(",", ""), text))


def entities(text: str) -> set[str]:
    """Return the entities in a result: numbers of two or more digits, ids (`W17`), capitalised names within a
    sentence."""
    found = {token for token in relied_on(text) if len(token) > 1 and any(c.isdigit() for c in token)}
    return found.union(*(names.split() for names in _CAPITAL.findall(text)))


def names_of(code: str, text: str) -> set[str]:
    """Return the parts of a program that a text names: quoted ones, files, imported modules."""
    quoted = {next(filter(None, match)).removesuffix("()") for match in _QUOTED.findall(text)}
    files = {name for name in _FILE.findall(text) if f"{name}'" in code or f'{name}"' in code}
    imported = _IMPORTED.findall(code) if "import" in code or "from" in code else ()
    modules = {name for name in imported if has_name(text.lower(), name.lower())}
    return {name for name in quoted if has_name(code, name)} | files | modules


def has_name(text: str, name: str) -> bool:
    """Whether a name stands in a text as a whole word."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def exceptions(text: str) -> set[str]:
    """Return the names of exceptions in a text."""
    return set(_EXCEPTION.findall(text))


def absent(output: str) -> set[str]:
    """Return the names that an error reports as missing: made up, so that they are seldom words."""
    return set(_ABSENT.findall(output))


def bare_words(text: str) -> set[str]:
    """Return words that may be names: no article stands before them."""
    return {word for article, word in _BARE.findall(text) if not article}


def _mentioned(text: str) -> set[str]:
    found = {next(filter(None, match)) for match in _CODELIKE.findall(text)} if _MAY_MENTION.search(text) else ()
    return {token for token in found if not token[0].isdigit() or len(token) >= _SHORT}


def plain(token: str) -> str:
    """Strip trailing zeros from a number; a name stays."""
    return token.rstrip("0").rstrip(".") if token[0].isdigit() and "." in token else token


def rewrite(value: object, old: str, new: str) -> object:
    """Replace a text wherever it stands in a JSON value: plain, or as JSON within a string."""
    if isinstance(value, str):
        return rewrite_text(value, old, new)
    if isinstance(value, list):
        return [rewrite(item, old, new) for item in value]
    if isinstance(value, dict):
        return {key: rewrite(item, old, new) for key, item in value.items()}
    return value


def rewrite_text(text: str, old: str, new: str) -> str:
    """Replace a text within another, plain or escaped as JSON."""
    for written in _WRITTEN:
        if (before := written(old)) in text:
            return text.replace(before, written(new))
    if "\\" not in text:
        return text
    # JSON may write any character as an escape: its strings are compared as what they say.
    for start in dict.fromkeys((0, max(text.find("{"), 0))):
        anew = _LITERAL.sub(lambda found: _rewritten_literal(found[0], old, new), text[start:])
        if anew != text[start:]:
            return text[:start] + anew
    return text


def _rewritten_literal(literal: str, old: str, new: str) -> str:
    """Replace a text within a JSON string literal."""
    if "\\" not in literal:
        return literal
    try:
        value = json.loads(literal, strict=False)
    except ValueError:
        return literal
    anew = rewrite_text(value, old, new)
    return literal if anew == value else json.dumps(anew, ensure_ascii=literal.isascii())


_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


_WRITTEN: tuple[Callable[[str], str], ...] = (
    str, _escaped, _ascii, lambda text: _escaped(_escaped(text)), lambda text: _ascii(_ascii(text)),
)  # fmt: skip
"""How a program stands in a text: as it is, as JSON, and as JSON within JSON."""
