"""What a client is given: the model's message, and the calls of its own tools, which it runs itself."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retcon.chat.chat import Chat
from retcon.chat.family import Family
from retcon.core.sample import ids_of
from retcon.core.schema import ToolSpec
from retcon.core.types import Observation, ToolCall, Turn
from retcon.serve.refusing import wrong
from retcon.serve.said import Called, Said

PYTHON = "python"
"""What a family's calls are of that does not name tools."""


class ClientTool:
    """Implements `Tool`: a call that its schema takes is the client's to run. What came of it is in a later request."""

    def __init__(self, spec: ToolSpec) -> None:
        self.name, self.spec = spec.name, spec

    async def __call__(self, call: ToolCall) -> Observation:
        return Observation(call.id, "", "ok")


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The tools of a request, as the model knows them. names: what the client calls them."""

    tools: Mapping[str, ClientTool]
    names: Mapping[str, str]


def client_tools(specs: Sequence[ToolSpec], family: Family) -> ClientTools:
    """Raises RequestRefused where the family cannot say which tool it calls, and it is not plain which is meant."""
    if family.names_calls:
        return ClientTools({spec.name: ClientTool(spec) for spec in specs}, {spec.name: spec.name for spec in specs})
    runs = [spec for spec in specs if _takes_code(spec)]
    if len(runs) != 1:
        raise wrong(
            "tools",
            f"this model's calls are blocks of Python that name no tool (chat style '{family.name}'): there must be "
            f"exactly one tool that takes 'code', and there are {len(runs)}",
        )
    return ClientTools({PYTHON: ClientTool(replace(runs[0], name=PYTHON))}, {PYTHON: runs[0].name})


def _takes_code(spec: ToolSpec) -> bool:
    arguments = spec.parameters.get("properties")
    return isinstance(arguments, Mapping) and "code" in arguments


def shown_of(turn: Turn, chat: Chat, names: Mapping[str, str] | None, stops: Sequence[str]) -> tuple[Said, str]:
    """The message that a client is given of a turn, and its text with the stop string that ended it.

    names: what the client calls its tools; None where calls are nobody's but ours. (OpenAI's API leaves the stop string
    out; some harnesses put it back.)
    """
    ids, text, family = ids_of(turn.generated), turn.text, chat.family
    if ids and ids[-1] in chat.stop_ids:
        text = text.removesuffix(chat.tokenizer.decode(ids[-1:]))
    if turn.calls:
        said = family.shown(text[: turn.calls[0].char]).rstrip()
        calls = () if names is None else tuple(_called(call, names) for call in turn.calls)
        return Said("assistant", said, calls), said
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    return Said("assistant", family.shown(text[: min(cuts, default=len(text))])), family.shown(text)


def _called(call: ToolCall, names: Mapping[str, str]) -> Called:
    given = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return Called(f"call_{secrets.token_hex(12)}", names.get(call.name, call.name), given)
