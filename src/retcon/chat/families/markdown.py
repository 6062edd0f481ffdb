"""Calls are blocks of Python, observations turns of the role `tool`; no tools are shown: the packaged model's style."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat import markdown
from retcon.chat.family import ChatML, Written, joined
from retcon.chat.jsons import as_json
from retcon.chat.types import TURN_END, TURN_START, FoundCall, Piece

_OBSERVED = re.compile(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", re.DOTALL)


class Markdown(ChatML):
    name = "markdown"
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    piecewise = True
    names_calls = False
    before = f"\n{TURN_START}tool\n"
    between = f"{TURN_END}\n{TURN_START}tool\n"
    after = TURN_END

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return markdown.find_calls(text)

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        return joined(text, (_block(*call) for call in calls))

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _block(name: str, arguments: object) -> str:
    if isinstance(arguments, str):
        return markdown.render_call(arguments.strip("\n"))
    assert isinstance(arguments, dict)
    code = str(arguments.get("code", ""))
    return markdown.render_call(code.strip("\n")) if code else f"```{name}\n{as_json(arguments)}\n```"


FAMILY = Markdown()
