"""Client of one vLLM server: checks, generations, weight updates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retcon.chat.types import Tokenizer
from retcon.core.concurrency import cancel_all
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.types import Adapters
from retcon.engine.vllm.process import start_command
from retcon.models.remote import BadResponse, JsonClient, RequestRefused, ServerFailed

GRACE = 10.0
"""Seconds that an update of weights may take after the engine was closed."""
OLDEST = (0, 32)
"""The first version whose tokens carry the version of their weights."""
GENERATE = "/inference/v1/generate"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROBE = "def area(r):\n    return 3.14 * r**2  # Größe 東京\n"


@dataclass(slots=True)
class Weights:
    """The weights that servers should have.

    Args:
        version: their name; None: those that a server was started with.
        folder: where they are, None before the first were written.
        steps: training steps of each version whose tokens are accepted, by name.
        carried: whether generations under way continue with new weights, so that older versions are accepted too.
    """

    version: str | None = None
    folder: Path | None = None
    steps: dict[str, int] = field(default_factory=dict)
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Requirements:
    """Requirements on a server.

    model: its name there, empty for the only one. max_len: tokens of a request. seeds: whether requests have one.
    trained: whether it will be sent weights. adapters: sent instead of weights.
    """

    model: str
    tokenizer: Tokenizer
    max_len: int
    seeds: bool
    trained: bool
    adapters: Adapters | None = None


class VLLMClient:
    """Requests to one server, which must have `weights` when it answers.

    Faults are raised at once, as the engine decides which server to retry. After one the server is checked again, since
    it may have been replaced.
    """

    def __init__(self, remote: JsonClient, wanted: Requirements, weights: Weights) -> None:
        self.remote, self._wanted, self._weights = remote, wanted, weights
        self._model = ""
        self._checked = self._was_usable = False
        self._has: str | None = None  # the last known version of its weights
        self.capacity: int | None = None  # tokens that its KV cache holds, if known
        self._preparing: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Check the server and update its weights.

        Cancelling the caller does not stop it, as half an update leaves a server paused. Raises EngineError if the
        server is unsuitable, InfrastructureFault if it does not answer.
        """
        while not (self._checked and self._weights.version in (None, self._has)):
            if self._preparing is None or self._preparing.done():
                self._preparing = asyncio.create_task(self._prepare())
            await asyncio.shield(self._preparing)

    async def close(self) -> None:
        """Close the connections after an update under way."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing], timeout=GRACE)
            await cancel_all([self._preparing])
        await self.remote.close()

    async def _prepare(self) -> None:
        if not self._checked:
            await self._check()
            self._checked = self._was_usable = True
        await self._update()

    def lost(self) -> None:
        """Forget everything known about the server after a fault."""
        self._checked, self._has = False, None

    async def _check(self) -> None:
        url, wanted = self.remote.url, self._wanted
        try:
            version = str((await self.remote.get("/version"))["version"])
            card = _only(await self._cards(), wanted.model, url)
            self._model = str(card["id"])
            request = {"model": self._model, "prompt": PROBE, "add_special_tokens": False}
            tokens = (await self.remote.post("/tokenize", request))["tokens"]
        except (RequestRefused, LookupError, TypeError) as error:
            self._check_route(error)
            other = "" if wanted.trained else "; engine.kind = 'openai' asks any server of chat completions"
            raise EngineError(f"{url} is not a usable vLLM server: {error}{other}") from error
        if _numbers(version) < OLDEST:
            raise EngineError(f"{url} is vLLM {version}; {'.'.join(map(str, OLDEST))} or later is needed")
        if tokens != wanted.tokenizer.encode(PROBE):
            raise EngineError(
                f"{url} serves {card.get('root', self._model)}, whose tokenizer is not that of the model of this run: "
                "the same text has other ids"
            )
        if int(card.get("max_model_len") or wanted.max_len) < wanted.max_len:
            raise EngineError(
                f"{url} takes {card['max_model_len']} tokens and rollouts have up to {wanted.max_len}: start it with "
                f"--max-model-len {wanted.max_len}, or lower rollout.max_tokens and rollout.lookahead_tokens"
            )
        await self._check_how_started()

    async def _cards(self) -> Sequence[Mapping[str, Any]]:
        """Return the cards of the served models and of adapters, which have a `parent`."""
        cards: Sequence[Mapping[str, Any]] = (await self.remote.get("/v1/models"))["data"]
        return cards

    def _check_route(self, error: Exception) -> None:
        """Raise InfrastructureFault if a known route is gone: a proxy answers while the server restarts."""
        if self._was_usable and isinstance(error, RequestRefused) and error.error.status in (404, 405):
            raise InfrastructureFault(str(error)) from error

    async def _check_how_started(self) -> None:
        wanted = self._wanted
        url = self.remote.url
        how = start_command(wanted.max_len, wanted.adapters)
        try:
            if not await self._has_route(GENERATE):
                raise EngineError(f"{url} cannot be asked for tokens as it was started: start it as {how}")
            about = (await self.remote.get("/server_info?config_format=json"))["vllm_config"]
        except (RequestRefused, LookupError, TypeError) as error:
            raise EngineError(f"{url} cannot be used as it was started ({error}): start it as {how}") from error
        on_cpu = "cpu" in str(about.get("device_config"))
        if wanted.seeds and on_cpu and about["scheduler_config"].get("enable_chunked_prefill"):
            raise EngineError(
                f"{url} chunks prefills on a CPU, where a request's own seed ends vLLM's engine (\"CPU "
                f'Generator does not use offset"): start it as {how}, or set engine.seeds = false'
            )
        if about["model_config"].get("logprobs_mode") != "raw_logprobs":
            raise EngineError(f"{url} gives log-probs as sampled from; start it with --logprobs-mode raw_logprobs")
        cache = about.get("cache_config") or {}
        blocks, size = cache.get("num_gpu_blocks"), cache.get("block_size")
        self.capacity = int(blocks) * int(size) if blocks and size else None
        backend = (about.get("weight_transfer_config") or {}).get("backend")
        if wanted.adapters is not None:
            why_not = await self._why_no_adapters(wanted.adapters, about.get("lora_config") or {}, on_cpu=on_cpu)
            if why_not:
                raise EngineError(f"{url} {why_not}; start it as {how}")
        elif wanted.trained and backend != "retcon":
            raise EngineError(f"{url} cannot be given weights (its backend is {backend}); start it as {how}")

    async def _why_no_adapters(self, adapters: Adapters, about: Mapping[str, Any], *, on_cpu: bool) -> str | None:
        """Return why a server cannot take adapters, None if it can. about: its lora_config."""
        if int(about.get("max_lora_rank") or 0) < adapters.rank:
            return f"takes no adapters of rank {adapters.rank}"
        if on_cpu and not about.get("target_modules"):
            return "adapts its output layer, too, and on a CPU vLLM's engine ends where it then scores a prompt"
        return None if await self._has_route(LOAD) else "takes no adapters while it runs"

    async def _has_route(self, path: str) -> bool:
        """Return whether the server has a route; it refuses an empty body, also while paused."""
        try:
            await self.remote.post(path, {})
        except RequestRefused as refused:
            return refused.error.status not in (404, 405)
        return True

    async def generate(
        self, ids: Sequence[int], params: Mapping[str, object], *, version: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the first choice and each token's version of weights.

        The choice has `prompt_logprobs` and `prompt_tokens`. version: the requested one. Raises RequestRefused, and
        InfrastructureFault, also for tokens of other weights.
        """
        await self.ready()
        body: dict[str, object] = {"model": self._model, "token_ids": list(ids), "sampling_params": dict(params)}
        adapter = None if self._wanted.adapters is None else version
        if version is not None:
            body |= {"cache_salt": version, "model": adapter or self._model}
        try:
            answer = await self.remote.post(GENERATE, body)
        except RequestRefused as refused:
            self._check_route(refused)  # checked again before the next request
            raise
        try:
            choice = dict(answer["choices"][0])
            spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"] or ()]
            if adapter is not None:  # the server names the version of the base weights
                spans = [(adapter, 0, len(choice["token_ids"]))]
            choice |= {"prompt_logprobs": answer.get("prompt_logprobs"), "prompt_tokens": _prompt_tokens(answer)}
        except (LookupError, TypeError, ValueError) as error:
            raise self.remote.bad_response("no generation") from error
        versions = {version for version, _, _ in spans}
        wanted = self._weights.version
        if self._weights.carried:
            taken = bool(versions) and versions <= set(self._weights.steps)
        else:
            taken = len(versions) == 1 and versions <= {wanted or next(iter(versions))}
        if not taken:
            raise self.remote.bad_response(f"tokens of the weights {sorted(versions)}, not {wanted}: it was restarted")
        if choice.get("finish_reason") in ("abort", "error"):
            raise self.remote.bad_response("up: it ended the request on its own account")
        return choice, [version for version, start, end in spans for _ in range(start, end)]

    async def _update(self) -> None:
        wanted, folder = self._weights.version, self._weights.folder
        if wanted is None or self._has == wanted:
            return
        try:
            await (self._load if self._wanted.adapters else self._transfer)(wanted, folder)
        except (RequestRefused, LookupError, TypeError) as error:
            raise InfrastructureFault(f"{self.remote.url} does not take weights: {error}") from error
        self._has = wanted

    async def _transfer(self, wanted: str, folder: Path | None) -> None:
        if (await self.remote.get("/weight_info"))["weight_version"] != wanted:
            if self._weights.carried:
                await self.remote.post("/pause?mode=keep", {})
            await self.remote.post("/init_weight_transfer_engine", {"init_info": {}})
            try:
                await self.remote.post("/start_weight_update", {})
            except ServerFailed:  # an update is open, perhaps of a trainer that was killed
                with suppress(InfrastructureFault):  # vLLM silently drops the connection on which it failed
                    await self.remote.get("/health")
                await self.remote.post("/finish_weight_update", {"weight_version": "unfinished"})
                await self.remote.post("/start_weight_update", {})
            await self.remote.post("/update_weights", {"update_info": {"folder": str(folder)}})
            await self.remote.post("/finish_weight_update", {"weight_version": wanted})
        # Not earlier, as half of the weights would sample under the old name; and always, as a killed trainer may have
        # paused it.
        await self.remote.post("/resume", {})

    async def _load(self, wanted: str, folder: Path | None) -> None:
        """Load an adapter; requests under way keep theirs. One of this run's older ones stays loaded."""
        there = [str(card["id"]) for card in await self._cards() if card.get("parent") is not None]
        if wanted in there:
            return
        try:
            await self._post(LOAD, {"lora_name": wanted, "lora_path": str(folder)})
        except ServerFailed as failed:
            if failed.error.status != 500:
                raise
            raise EngineError(f"{self.remote.url} cannot load the run's adapters: {failed}") from failed
        run = wanted.rpartition("-")[0]
        for old in [name for name in there if name.rpartition("-")[0] == run][:-1]:
            await self._post(UNLOAD, {"lora_name": old})

    async def _post(self, path: str, body: Mapping[str, object]) -> None:
        with suppress(BadResponse):  # it answers with a sentence, not JSON
            await self.remote.post(path, body)


def _only(cards: Sequence[Mapping[str, Any]], model: str, url: str) -> Mapping[str, Any]:
    cards = [card for card in cards if card.get("parent") is None]  # adapters have one
    found = [card for card in cards if not model or card["id"] == model]
    if not found or (not model and len(found) > 1):
        names = ", ".join(str(card["id"]) for card in cards)
        raise EngineError(f"engine.model: {url} serves {names}; '{model}' names none of them, or not one alone")
    return found[0]


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdecimal())


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    """Return the server's count of prompt tokens; 0 if it, or a proxy, sends none."""
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0
