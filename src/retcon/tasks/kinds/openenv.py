"""Environments behind OpenEnv servers (docs/training/environments.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from retcon.config.section import NonNegative, server_urls
from retcon.tasks.environments.openenv import OpenEnvEnvironment, Server
from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import Environment, load_rows

Url = Annotated[str, AfterValidator(lambda url: server_urls((url,))[0])]


class Openenv(EnvironmentSection):
    """Section [task] of kind `openenv`."""

    url: Url = Field("http://127.0.0.1:8000", description="the server's")
    prompt: str = Field("", description="what stands before what `reset` shows, where a row has no column of that name")
    path: str = Field("", description="file whose rows `reset` is called with")
    seeds: NonNegative = Field(0, description="in place of a file: that many rows {seed = 0}, {seed = 1}, …")
    failed: str = Field("", description="field of an observation that is neither empty, 0 nor false where a step "
                        "failed, such as exit_code; of listed tools the server says it")  # fmt: skip

    def adapter(self) -> Environment:
        return OpenEnvEnvironment(Server(self.url, self.prompt, self.failed), load_rows(self.path, self.seeds))
