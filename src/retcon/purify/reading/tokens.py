"""Names and numbers in texts: which a text has, and which it speaks of."""

from __future__ import annotations

import re

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
    """Names of three letters and more, and numbers, in a text; 98765.0 and 98,765 as 98765. shortest: characters that a
    token has to have."""
    found = {plain(token) for token in _TOKEN.findall(text) if len(token) >= shortest}
    if "," in text:
        found.update(plain(number.replace(",", "")) for number in _GROUPED.findall(text))
    return found


def telling(text: str) -> set[str]:
    """The same without the short ones, that may come from anywhere."""
    return tokens(text, _SHORT)


def mentions(text: str) -> set[str]:
    """Names and numbers that a text gives as code gives them, each as `tokens` has it."""
    found = {plain(token) for token in _mentioned(text)}
    if "," in text:
        found.update(plain(number.replace(",", "")) for number in _GROUPED.findall(text))
    return found


def decimals(text: str) -> set[str]:
    """The numbers among these that have a point."""
    return {plain(token) for token in _mentioned(text) if "." in token} if "." in text else set()


def relied_on(text: str) -> set[str]:
    """The tokens of a text, of a number with commas only the whole."""
    return tokens(_GROUPED.sub(lambda number: number[0].replace(",", ""), text))


def entities(text: str) -> set[str]:
    """What a result names: numbers of two digits and more, ids (`W17`), and names with a capital within a sentence."""
    found = {token for token in relied_on(text) if len(token) > 1 and any(c.isdigit() for c in token)}
    return found.union(*(names.split() for names in _CAPITAL.findall(text)))


def names_of(code: str, said: str) -> set[str]:
    """What a text names of a program: what it quotes, files, and modules that the program imports."""
    quoted = {next(filter(None, match)).removesuffix("()") for match in _QUOTED.findall(said)}
    files = {name for name in _FILE.findall(said) if f"{name}'" in code or f'{name}"' in code}
    imported = _IMPORTED.findall(code) if "import" in code or "from" in code else ()
    modules = {name for name in imported if has_name(said.lower(), name.lower())}
    return {name for name in quoted if has_name(code, name)} | files | modules


def has_name(text: str, name: str) -> bool:
    """Whether a name stands in a text, and not within a longer one."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def exceptions(text: str) -> set[str]:
    """Names of exceptions in a text."""
    return set(_EXCEPTION.findall(text))


def absent(output: str) -> set[str]:
    """The names that an error says are not there: made up, so that they are seldom words."""
    return set(_ABSENT.findall(output))


def bare_words(text: str) -> set[str]:
    """The words of a text that may be names, as no article stands before them."""
    return {word for article, word in _BARE.findall(text) if not article}


def _mentioned(text: str) -> set[str]:
    found = {next(filter(None, match)) for match in _CODELIKE.findall(text)} if _MAY_MENTION.search(text) else ()
    return {token for token in found if not token[0].isdigit() or len(token) >= _SHORT}


def plain(token: str) -> str:
    """A number without zeros at its end; a name as it is."""
    return token.rstrip("0").rstrip(".") if token[0].isdigit() and "." in token else token
