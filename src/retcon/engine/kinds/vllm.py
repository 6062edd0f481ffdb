"""vLLM servers in a recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from retcon.config.schema import EngineSection, Recipe
from retcon.config.section import Positive, Rate, StrList, server_urls
from retcon.core.errors import CheckpointError, EngineError, RecipeError
from retcon.engine.types import EngineSetup
from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from retcon.engine.vllm.process import Launch, Server
from retcon.models.remote import is_key_missing


class VLLMSection(EngineSection):
    """Section `kind = "vllm"` of `VLLMEngine`."""

    in_process: ClassVar[bool] = False
    carries_over: ClassVar[bool] = True
    resume_keys: ClassVar = {"rl": ("kind", "seeds")}

    url: StrList = Field((), description="of vLLM servers that run already, such as http://127.0.0.1:8000, one "
                         "or several")  # fmt: skip
    python: str = Field("", description="the Python of an environment that has vLLM, such as vllm/bin/python: with it "
                        "a server is started and ended, in place of url")  # fmt: skip
    arguments: StrList = Field((), description="with python: further arguments of the server, such as "
                               "--enforce-eager")  # fmt: skip
    start_seconds: Rate = Field(600.0, description="with python: how long the server may take to start")
    model: str = Field("", description="with url: its name there; empty: the only one that the server has")
    key_env: str = Field("", description="environment variable that holds the servers' key; empty for none")
    seeds: bool = Field(True, description="give each request its own seed; a server on a CPU takes one only where it "
                        "does not chunk prefills")  # fmt: skip
    seconds: Rate = Field(600.0, description="wall seconds of a request")
    patience: Rate = Field(300.0, description="seconds that a request waits while all servers are down")
    at_once: Positive = Field(256, description="requests of a server at a time")
    lora: bool = Field(False, description="with lora.rank: give the servers the adapters as such, in place of merged "
                       "weights")  # fmt: skip
    weights_folder: str = Field("", description="a folder by which weights go to the servers, for those on other "
                                "machines that see it under the same path; empty: this machine's memory")  # fmt: skip

    @field_validator("url")
    @classmethod
    def _urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(url.rstrip("/").removesuffix("/v1") for url in server_urls(value))

    def check_training(self, recipe: Recipe) -> None:
        self._check()
        if self.lora and not recipe.lora.rank:
            raise RecipeError("engine.lora gives servers adapters, and lora.rank is 0: set a rank, or leave it out")
        folder = self.weights_folder
        if folder and not (Path(folder).is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise RecipeError(f"engine.weights_folder: {folder} is not a writable folder")

    def requests(self) -> int:
        return self.at_once * max(1, len(self.url))

    def subject(self, folder: Path) -> str:
        return super().subject(folder) if self.python else f"{' '.join(self.url)} {self.model}".strip()

    def build(self, setup: EngineSetup) -> VLLMEngine:
        self._check()
        own, adapters = None, setup.adapters if self.lora else None
        if self.python:
            if setup.folder is None:
                raise EngineError("engine.python: a server needs a model's folder, and the setup has no `folder`")
            launch = Launch(
                self.python,
                setup.folder,
                dtype_of(setup, setup.folder),
                setup.max_len,
                setup.kv_memory_mb,
                setup.threads,
                self.arguments,
                adapters,
            )
            own = Server(launch, self.start_seconds)
        settings = VLLMSettings(
            self.url,
            self.model,
            self.key_env,
            self.seconds,
            self.patience,
            self.at_once,
            self.seeds,
            Path(self.weights_folder).absolute() if self.weights_folder else None,
        )
        return VLLMEngine(
            settings,
            setup.tokenizer,
            max_len=setup.max_len,
            model=setup.model,
            own=own,
            trained=setup.trained,
            adapters=adapters,
        )

    def _check(self) -> None:
        if bool(self.url) == bool(self.python):
            both = "both are given" if self.url else "neither is given"
            raise RecipeError(f"engine.kind = 'vllm' needs engine.url or engine.python, and {both}")
        if is_key_missing(self.key_env):
            raise RecipeError(f"engine.key_env names {self.key_env}, which is not set")


def dtype_of(setup: EngineSetup, folder: Path) -> str:
    """Return the dtype of the server's weights: the recipe's, else the trained model's, else the folder's.

    vLLM's own `auto` would make 16 bits of float32, unlike the engine in this process. Raises CheckpointError."""
    if setup.dtype != "auto":
        return setup.dtype
    if setup.trained:
        return str(setup.model().dtype).removeprefix("torch.")
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        return str(config.get("dtype") or config.get("torch_dtype") or "auto")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
