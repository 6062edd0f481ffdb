"""A model behind an OpenAI-compatible URL as teacher, by text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from retcon.config.schema import DemosSection
from retcon.config.section import NonNegative, Positive, Rate, api_url
from retcon.engine.openai.messages import INSTRUCTIONS

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class OpenAI(DemosSection):
    """Section `kind = "openai"`: a model behind a URL as teacher."""

    url: str = Field("", description="the API's base, such as http://127.0.0.1:8000/v1")
    model: str = Field("", description="the teacher's name there")
    key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the API's key; empty for none")
    seconds: Rate = Field(120.0, description="wall seconds of a request")
    patience: NonNegative = Field(300, description="as engine.patience: seconds for which a teacher that went away is "
                                  "asked again")  # fmt: skip
    instructions: str = Field(INSTRUCTIONS, description="the teacher's system prompt; the learner has none of it")
    tries: Positive = Field(4, description="attempts at a problem, until one is right")

    _url = field_validator("url")(api_url)

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.remote import open_remote

        return open_remote(self, setup)
