"""A server of chat completions in a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.schema import EngineSection, Recipe
from retcon.config.section import NonNegative, Positive, Rate, api_url
from retcon.core.errors import EngineError, RecipeError
from retcon.core.types import ToolSpec
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import INSTRUCTIONS, FencedMessages, Manner, SurrogateTokenizer
from retcon.engine.types import EngineSetup
from retcon.models.remote import DEFAULT_KEY_ENV, is_key_missing


class OpenAISection(EngineSection):
    """Section `kind = "openai"`: the tokenizer of model.path stands in for the server's (`OpenAIEngine`)."""

    in_process: ClassVar[bool] = False

    url: str = Field("", description="the API's base, such as http://127.0.0.1:8000/v1")
    model: str = Field("", description="its name there; empty: the only one that the server has")
    calls: Manner = Field("native", description="how the model calls tools: native (the request's `tools`) | fence (a "
                          "block of Python in its text)")  # fmt: skip
    instructions: str = Field(INSTRUCTIONS, description="with calls = 'fence': what the prompt says about tools")
    key_env: str = Field(DEFAULT_KEY_ENV, description="environment variable that holds the API's key; empty for none")
    context: Positive = Field(32768, description="tokens that the server takes, as model.path counts them")
    answer_tokens: NonNegative = Field(0, description="most tokens of one message; 0: what rollout.max_tokens leaves")
    seeds: bool = Field(True, description="send each request's seed; not every server takes one")
    seconds: Rate = Field(120.0, description="wall seconds of a request")
    attempts: Positive = Field(4, description="attempts at a request, if the connection to the server fails")
    at_once: Positive = Field(16, description="requests at a time")
    patience: NonNegative = Field(300, description="seconds for which a server that went away during the work (no "
                                  "connection, 429, 502, 503, 504) is asked again, beyond these attempts")  # fmt: skip

    _url = field_validator("url")(api_url)

    def check_training(self, recipe: Recipe) -> None:
        raise RecipeError(
            "engine.kind = 'openai' cannot be trained with: a server of chat completions gives text, and neither the "
            "ids that its model saw nor their log-probs; train with engine.kind = 'local' or 'vllm' (a server that "
            "writes demonstrations is demos.kind = 'openai')"
        )

    def room(self) -> int:
        return self.context

    def requests(self) -> int:
        return self.at_once

    def subject(self, folder: Path) -> str:
        return f"{self.url} {self.model}".strip()

    def chat(self, folder: Path, system: str | None, tools: Sequence[ToolSpec]) -> Chat:
        """Return a chat of messages in the tokens of `folder`'s model."""
        tokenizer = SurrogateTokenizer(load_tokenizer(folder), str(folder))
        framing = FencedMessages(self.instructions) if self.calls == "fence" else None
        style = "retcon.engine.openai.messages:" + ("FENCED" if self.calls == "fence" else "NATIVE")
        return Chat(tokenizer, style=style, system=system, tools=tools, framing=framing)

    def build(self, setup: EngineSetup) -> OpenAIEngine:
        if not self.url:
            raise RecipeError("engine.url: it is empty; engine.kind = 'openai' needs it")
        if is_key_missing(self.key_env):
            raise RecipeError(f"engine.key_env names {self.key_env}, which is not set")
        if not isinstance(setup.tokenizer, SurrogateTokenizer):
            raise EngineError("engine.kind = 'openai' speaks messages: it takes the chat of `build_chat` alone")
        settings = OpenAISettings(
            self.url, self.model, self.calls, self.key_env, self.seconds, self.attempts, self.at_once,
            seeds=self.seeds, answer_tokens=self.answer_tokens, patience=self.patience,
        )  # fmt: skip
        return OpenAIEngine(settings, setup.tokenizer)
