"""ChatML: prompts and observations to ids, generated ids to tool calls.

Every piece is encoded on its own and ids are only ever appended: what was sampled is never re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

from retcon.chat import hermes, markdown
from retcon.chat.beginnings import Beginnings
from retcon.chat.types import CONTROLS, END_OF_TEXT, TURN_END, TURN_START, FoundCall, Parsed, Tokenizer
from retcon.core.errors import CheckpointError
from retcon.core.types import Kind, Observation, Segment, ToolCall

Style = Literal["markdown", "hermes"]

_FINDERS: dict[Style, Callable[[str], Iterator[FoundCall]]] = {
    "markdown": markdown.find_calls,
    "hermes": hermes.find_calls,
}


class Chat:
    """The template of one model: how it is asked, how it calls tools and how it is answered.

    style: `markdown` (calls are Python blocks, observations are turns of the role `tool`) or `hermes` (calls are JSON
    between tags, observations stand in a user turn, as in Qwen3's own template). system: the system prompt of prompts
    that bring none. stop_ids: the ids that end a generation. Raises CheckpointError where the tokenizer has no ChatML.
    """

    def __init__(self, tokenizer: Tokenizer, *, style: Style = "markdown", system: str | None = None) -> None:
        if style not in _FINDERS:
            raise ValueError(f"unknown chat style {style!r}; one of {', '.join(_FINDERS)}")
        tokenizer.special_id(TURN_START)
        self.tokenizer = tokenizer
        self.style: Style = style
        self.system = system
        self._turn_end = tokenizer.special_id(TURN_END)
        self.stop_ids: tuple[int, ...] = (self._turn_end, *_optional_id(tokenizer, END_OF_TEXT))

    def prompt(self, question: str, system: str | None = None) -> tuple[Segment, ...]:
        """What the model is given before its first turn, up to where that turn opens; all of kind `prompt`."""
        system = self.system if system is None else system
        pieces: list[Segment] = []
        if system is not None:
            pieces += [
                self._glue(f"{TURN_START}system\n", "prompt"),
                self._plain(system, "prompt"),
                self._glue(f"{TURN_END}\n", "prompt"),
            ]
        pieces += [
            self._glue(f"{TURN_START}user\n", "prompt"),
            self._plain(question, "prompt"),
            self._glue(f"{TURN_END}\n{TURN_START}assistant\n", "prompt"),
        ]
        return tuple(pieces)

    def parse(self, ids: Sequence[int], *, prefix: str) -> Parsed:
        """The calls in what the model generated, ids (T,); never raises on account of them.

        Calls are named `prefix.0`, `prefix.1`, …; `start` is the index of the id at which the call's marker begins,
        None where that id also holds text before the marker. A stop id at the end is part of `Parsed.text` alone.
        """
        text = self.tokenizer.decode(ids)
        ended = bool(ids) and ids[-1] in self.stop_ids
        body = self.tokenizer.decode(ids[:-1]) if ended else text
        found = _FINDERS[self.style](body)
        return Parsed(text, tuple(_name(found, prefix, Beginnings(self.tokenizer, ids, text).of)))

    def parse_text(self, text: str, *, prefix: str) -> Parsed:
        """As `parse`, for engines that give text only: `start` is None."""
        body = text
        for control in CONTROLS:
            body = body.removesuffix(control)
        return Parsed(text, tuple(_name(_FINDERS[self.style](body), prefix, lambda _: None)))

    def told(self, role: str, text: str, kind: Kind = "prompt") -> tuple[Segment, ...]:
        """One whole message that the model did not write."""
        return (
            self._glue(f"{TURN_START}{role}\n", kind),
            self._plain(text, kind),
            self._glue(f"{TURN_END}\n", kind),
        )

    def reopened(self, told: Sequence[str], kind: Kind = "scaffold") -> tuple[Segment, ...]:
        """What stands between a message that has ended, its line end included, and the model's next turn: messages of
        the user, if any, and the opening of that turn."""
        between = [segment for text in told for segment in self.told("user", text)]
        return (*between, self._glue(f"{TURN_START}assistant\n", kind))

    def wrote(self, text: str) -> Segment:
        """A whole turn of the model's, of kind `sampled`, that somebody else wrote; it ends as the model's own do."""
        return self._segment((*self.tokenizer.encode(text), self._turn_end), "sampled")

    def answered(self, told: Sequence[str]) -> tuple[Segment, ...]:
        """What follows a turn without calls, where the conversation goes on."""
        return (self._glue("\n", "scaffold"), *self.reopened(told))

    def observations(
        self,
        calls: Sequence[ToolCall],
        observations: Sequence[Observation],
        *,
        last_id: int | None = None,
        told: Sequence[str] = (),
    ) -> tuple[Segment, ...]:
        """What follows a turn with calls: an observation for each, in glue that ends by reopening the assistant's turn.

        last_id: the last id of the turn. The glue begins after `<|im_end|>`, which a turn that ended well has as its
        own last id; where `last_id` is another one (`<|endoftext|>`, or a cut), the glue brings the missing
        `<|im_end|>` itself. None is taken for a turn that ended well. told: what the user says after it. Raises
        ValueError where calls and observations do not match.
        """
        if not calls or [c.id for c in calls] != [o.call_id for o in observations]:
            raise ValueError(
                f"observations {[o.call_id for o in observations]} do not answer calls {[c.id for c in calls]} in order"
            )
        closing = "" if last_id is None or last_id == self._turn_end else TURN_END
        before, between, after = _GLUE[self.style]
        pieces: list[Segment] = []
        for n, observation in enumerate(observations):
            pieces.append(self._glue(between if n else closing + before, "scaffold"))
            if observation.text:
                pieces.append(self._plain(observation.text, "observation"))
        if told:
            return (*pieces, self._glue(f"{after}\n", "scaffold"), *self.reopened(told))
        return (*pieces, self._glue(f"{after}\n{TURN_START}assistant\n", "scaffold"))

    def _glue(self, text: str, kind: Kind) -> Segment:
        return self._segment(self.tokenizer.encode(text, special=True), kind)

    def _plain(self, text: str, kind: Kind) -> Segment:
        return self._segment(self.tokenizer.encode(text), kind)

    def _segment(self, ids: Sequence[int], kind: Kind) -> Segment:
        # The text is what the ids say, which a tokenizer that normalises may have changed.
        return Segment(kind, self.tokenizer.decode(ids), tuple(ids))


_GLUE: dict[Style, tuple[str, str, str]] = {  # before the first observation, between two, after the last
    "markdown": (f"\n{TURN_START}tool\n", f"{TURN_END}\n{TURN_START}tool\n", TURN_END),
    "hermes": (
        f"\n{TURN_START}user\n<tool_response>\n",
        "\n</tool_response>\n<tool_response>\n",
        f"\n</tool_response>{TURN_END}",
    ),
}


def _name(found: Iterable[FoundCall], prefix: str, index: Callable[[int], int | None]) -> Iterator[ToolCall]:
    for n, call in enumerate(found):
        yield ToolCall(f"{prefix}.{n}", call.name, call.arguments, call.char, index(call.char))


def _optional_id(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    try:
        return (tokenizer.special_id(text),)
    except CheckpointError:
        return ()
