"""What servers of models say where they give no answer: in as many ways as there are servers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from retcon.http.asking import Answer

SHOWN = 400
"""Characters of a server's words that a message repeats."""
_AGAIN = frozenset({408, 409, 425, 429})
_NEVER = frozenset({501, 505})
_AWAY = frozenset({429, 502, 503, 504, *range(520, 531)})
_SPENT = frozenset(
    {"insufficient_quota", "exceeded_current_quota_error", "billing_hard_limit_reached", "billing_not_active"}
)
_FILTERED = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_PASSING = re.compile(r"overloaded|rate_?limit|server_?error|unavailable|timeout|internal", re.IGNORECASE)
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_LONG = re.compile(
    r"context (?:length|size|window|limit)|model token limit|maximum (?:number|amount) of (?:input )?tokens"
    r"|(?:prompt|input) is too long|prompt too long|prompt exceeds max|maximum (?:prompt|model) length"
    r"|range of input length|tokens in the prompt cannot exceed"
    r"|`inputs` tokens|too large for model|longer than the (?:model|context)",
    re.IGNORECASE,
)
_MOST = re.compile(
    r"max_(?:completion_|output_|new_)?tokens`?'?(?: value| is|,| must| or| exceeds| to| cannot| should)|"
    r"max(?:imum)? (?:completion|output) tokens|maximum allowed number of output tokens",
    re.IGNORECASE,
)
_BOUND = re.compile(
    r"at most (\d+) completion tokens|range of `?max_\w*tokens`? (?:is|should be) \[\d+, ?(\d+)]"
    r"|must be less than or equal to `?(\d+)|max_tokens: \d+ > (\d+)",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"(?:context (?:length|window|size)(?: is| of|:)|must be <=|context limit: \d+ \+ \d+ >)\D{0,3}(\d+)",
    re.IGNORECASE,
)
_TOLD = re.compile(
    r"(\d+) (?:input tokens|tokens from the input|in the (?:messages|prompt)|of text input|`inputs` tokens)"
    r"|(?:prompt|input|messages)\D{0,30}?(\d+) (?:input )?tokens|context limit: (\d+) \+",
    re.IGNORECASE,
)
_ONE = r"[\[(`'\"]*\b(?:top_p|temperature)\b[\])`'\"]*"
_SOME = rf"{_ONE}(?:(?:,? (?:and|or) |, ?| ?/ ?){_ONE})*"
_AFTER_OTHERS = rf"(?:[\[(`'\"]*\w+[\])`'\"]*, ?)*{_SOME}"
_NOT_TAKEN = re.compile(
    rf"(?:unsupported|unrecognized|unexpected) (?:parameter|argument)(?:s|\(s\))?:? {_AFTER_OTHERS}"
    r"|(?:parameter|argument|input|field)s? (?:(?:is|are) )?not (?:supported|permitted|allowed)[^:;.\"']{0,40}:"
    rf" {_AFTER_OTHERS}"
    rf"|{_SOME}:?(?: (?:parameters?|specified|in|the|request|extra|inputs))* "
    r"(?:(?:is|are) (?:currently )?(?:unsupported|not supported|deprecated|not permitted|not allowed)|cannot both)"
    rf"|cannot both \w+ {_SOME}|{_ONE} cannot be \w+ (?:together |along )?with {_ONE}"
    rf"|['\"]loc['\"]: ?[\[(]['\"]body['\"], ?{_ONE}, ?['\"]msg['\"]: ?['\"]Extra inputs",
    re.IGNORECASE,
)
"""That these are not taken, whatever their values: their names stand beside the words, not merely in the same text."""
_NEVER_MET = re.compile("request too large|insufficient balance", re.IGNORECASE)
"""Of status 429: more at once than a minute's limit, or than is paid for, so it would be refused again."""
_SAMPLING = ("top_p", "temperature")
"""What some models of OpenAI's, Anthropic's and others' do not take, or not both of."""
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """status: of HTTP, or that which the body names in an answer of status 200. text: in words. code: a word for it,
    where there is one."""

    status: int
    text: str
    code: str | None = None

    @property
    def passes(self) -> bool:
        """Whether the same request may be answered the next time."""
        if self.code in _SPENT or (self.status == 429 and _NEVER_MET.search(self.text)):
            return False
        return self.status in _AGAIN or (self.status >= 500 and self.status not in _NEVER)

    @property
    def away(self) -> bool:
        """Whether the server, or what stands before it, is not there for now."""
        return self.passes and self.status in _AWAY

    @property
    def filtered(self) -> bool:
        """Whether it is the server's rules, and not the request's form, that stand against it."""
        return self.code in _FILTERED

    @property
    def too_long(self) -> bool:
        """Whether the conversation, alone or with `max_tokens`, is more than the model takes."""
        return self.code in _TOO_LONG or (self.status in (400, 413, 422, 500) and bool(_LONG.search(self.text)))

    @property
    def asks_for_less(self) -> bool:
        """Whether a smaller `max_tokens` may do."""
        return self.too_long or (self.status in (400, 422) and bool(_MOST.search(self.text)))

    @property
    def wants_new_name(self) -> bool:
        """Whether `max_tokens` has to be called `max_completion_tokens`, as OpenAI's reasoning models want it."""
        return self.status == 400 and "max_completion_tokens' instead" in self.text

    @property
    def not_taken(self) -> tuple[str, ...]:
        """Which of `top_p` and `temperature` are not to be sent, whatever their values: one, or one of the two."""
        named = _NOT_TAKEN.finditer(self.text) if self.status in (400, 422) else ()
        told = " ".join(found[0].lower() for found in named)
        return tuple(name for name in _SAMPLING if name in told)

    @property
    def bound(self) -> int | None:
        """The largest `max_tokens` that is ever taken, where it tells."""
        found = _BOUND.search(self.text)
        return int(next(filter(None, found.groups()))) if found else None

    @property
    def room(self) -> int | None:
        """Tokens that the conversation leaves of the model's context, where it tells both."""
        text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", self.text)
        limit, told = _LIMIT.search(text), _TOLD.search(text)
        if limit is None or told is None:
            return None
        return int(limit[1]) - int(next(filter(None, told.groups())))


def said_by(answer: Answer) -> Said | None:
    """What an answer says that is none: by its status, or, of status 200, by an `error` in place of what was asked for.
    None for one that is."""
    if answer.ok:
        return _within(answer)
    if 300 <= answer.status < 400:
        return Said(answer.status, f"it redirects to {answer.headers.get('Location', 'nowhere')}: give that URL")
    error = _error(_body(answer))
    return Said(answer.status, _words(error, answer.text), _code(error))


def plain(text: str) -> str:
    """What a body says, of a page without its tags, in one line and not too long."""
    if text.lstrip()[:1] == "<":
        text = _TAG.sub(" ", text)
    return " ".join(text.split())[:SHOWN]


def _within(answer: Answer) -> Said | None:
    if b'"error"' not in answer.body[:2000]:
        return None
    body = _body(answer)
    if not body.get("error") or body.get("choices") or body.get("data"):
        return None
    error = _error(body)
    code, text, number = _code(error), _words(error, answer.text), str(error.get("code"))
    if number.isdecimal() and 400 <= int(number) < 600:
        return Said(int(number), text, code)
    return Said(503 if code and _PASSING.search(code) else 400, text, code)


def _body(answer: Answer) -> dict[str, Any]:
    """Empty where it is no object of JSON."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _error(body: dict[str, Any]) -> dict[str, Any]:
    """The error object of a body, in OpenAI's shape or in a server's own."""
    error = body.get("error", body)
    if isinstance(error, str):
        return {"message": error, "type": body.get("error_type"), "code": body.get("code")}
    return error if isinstance(error, dict) else {}


def _code(error: dict[str, Any]) -> str | None:
    """Its word for what is wrong; some have a number there, and the word as the type."""
    code = error.get("code")
    if not isinstance(code, str) or code.isdecimal():
        code = error.get("type")
    return code if isinstance(code, str) else None


def _words(error: dict[str, Any], text: str) -> str:
    """The message, and where a provider behind the server gave the reason, that too."""
    said = error.get("message") or error.get("detail")
    if not said:
        return plain(text)
    words = said if isinstance(said, str) else json.dumps(said)
    about = error.get("metadata")
    raw = about.get("raw") if isinstance(about, dict) else None
    return plain(f"{words}: {raw}" if isinstance(raw, str) and raw else words)
