"""A conversation as it was sampled: a tree, as harnesses rewrite what was said and go on from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from retcon.core.sample import token_count
from retcon.core.types import Observation, Provenance, Segment, Stop, Trajectory, Turn
from retcon.serve.said import Key, Said, after


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one request added.

    keys: of the messages that were new in it. given: their ids, from where the turn before ended (or all began) to
    where the model's opens; observations: those of the calls of the turn before. turns: what the model did; what
    follows the last of them is the next exchange's `given`. shown: the message that the client was answered with.
    whole: its text with what ended it, which a client may put back. refused: whether a call of it is none that the
    client's tools take. added: what the client added to the message before, see `goes_on`.
    """

    keys: tuple[Key, ...]
    given: tuple[Segment, ...]
    observations: tuple[Observation, ...]
    turns: tuple[Turn, ...]
    shown: Said
    whole: str
    stop: Stop
    refused: bool = False
    added: str = ""
    _says: tuple[Key, ...] = field(init=False, repr=False, compare=False)  # in each request they are compared with all

    def __post_init__(self) -> None:
        object.__setattr__(self, "_says", (replace(self.shown, text=self.whole).key, self.shown.key))

    def goes_on(self, said: Said, key: Key) -> str | None:
        """What a message, of this key, adds to the one that the client was answered with: nothing where it says the
        same; None where it is another one.

        Some harnesses write on a message of the model's before they send it back: smolagents adds `Calling tools: …`,
        in place of the calls, with their ids; OpenHands closes the tag that a stop string cut. A call that no tool
        takes comes back as the client has put it right, or as an error of its own: the id tells which one it is.
        """
        if self.refused and [call.id for call in said.calls] == [call.id for call in self.shown.calls]:
            key = replace(said, calls=self.shown.calls).key
        if key in self._says:
            return ""
        if said.role != "assistant" or said.calls or not all(call.id in said.text for call in self.shown.calls):
            return None
        for _, begins, *_ in self._says:
            if key[1].startswith(begins) and (begins or self.shown.calls):
                return after(len(begins), said.text).rstrip() or None
        return None

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the model generated, abandoned attempts among them."""
        return token_count(s for turn in self.turns for made in turn.raw() for s in made.generated)


@dataclass(slots=True, eq=False)
class Node:
    """An exchange after another one. engine: the request's id that its keys and values are kept under. number: of the
    trajectory that it is a turn of: its parent's, unless another exchange followed that first."""

    exchange: Exchange
    parent: Node | None
    engine: str
    number: int
    children: list[Node] = field(default_factory=list)

    @property
    def path(self) -> list[Node]:
        """From the conversation's first exchange to this one."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def leaves(self) -> Iterator[Node]:
        """The last exchange of each conversation that goes through this one, in the order of the branches."""
        left = [self]
        while left:
            node = left.pop()
            if not node.children:
                yield node
            left.extend(reversed(node.children))


def joined(exchanges: Sequence[Exchange]) -> tuple[tuple[Segment, ...], tuple[Turn, ...]]:
    """Prompt and turns of exchanges that follow one another; what follows a turn stands in it."""
    first, *others = exchanges
    turns = list(first.turns)
    for exchange in others:
        turns[-1] = continued(turns[-1], exchange.observations, exchange.given)
        turns.extend(exchange.turns)
    return first.given, tuple(turns)


def continued(turn: Turn, observations: Sequence[Observation], given: Sequence[Segment]) -> Turn:
    """A turn with what follows it now, in place of what followed it."""
    return replace(turn, segments=(*turn.generated, *given), observations=tuple(observations))


def recorded(leaf: Node, *, id: str, task: str, reward: float | None, provenance: Provenance) -> Trajectory:
    """The trajectory that ends with a node. What another one began with, and this one branches off from, stands in its
    prompt: it is learnt there, and not again here."""
    path = leaf.path
    start = next(
        (n + 1 for n in range(len(path) - 2, -1, -1) if path[n].children[0] is not path[n + 1]), 0
    )  # of what is its own
    prompt: tuple[Segment, ...] = ()
    if start:
        told, before = joined([node.exchange for node in path[:start]])
        seen = (*told, *(s for turn in before for s in turn.segments), *path[start].exchange.given)
        prompt = tuple(Segment("prompt", s.text, s.ids) for s in seen)
    own_prompt, turns = joined([node.exchange for node in path[start:]])
    return Trajectory(
        id, task, prompt or own_prompt, turns, reward=reward, stop=leaf.exchange.stop, provenance=provenance
    )  # fmt: skip
