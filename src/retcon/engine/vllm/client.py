"""One vLLM server: what it is, what it generates, and which weights it has."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.core.together import cancelled
from retcon.engine.types import Adapters
from retcon.engine.vllm.process import start_line
from retcon.models.remote import BadResponse, JsonClient, RequestRefused, ServerFailed

GRACE = 10.0
"""Seconds that an update has to end by itself when its engine does."""
OLDEST = (0, 32)
"""The first version that tells of each token by which weights it was sampled."""
GENERATE = "/inference/v1/generate"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
PROBE = "def area(r):\n    return 3.14 * r**2  # Größe 東京\n"


@dataclass(slots=True)
class Weights:
    """What servers are to have. version: its name; None: what they were started with, whatever that is. folder: where
    they are, None where nothing was written yet. steps: how many steps have made each version whose tokens are taken,
    by its name; with `carried` those before the newest too: a generation then goes on where it takes over."""

    version: str | None = None
    folder: Path | None = None
    steps: dict[str, int] = field(default_factory=dict)
    carried: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a server is to be. model: its name there, empty for the only one. tokenizer: of the model. max_len: tokens
    of a request. seeds: whether requests have one. trained: whether it will have to take weights. adapters: that it
    will have to take in their place."""

    model: str
    tokenizer: Tokenizer
    max_len: int
    seeds: bool
    trained: bool
    adapters: Adapters | None = None


class VLLMClient:
    """A server that is asked for tokens; `weights` are those that it is to have when it answers.

    A fault of the way is raised at once: whether another server is asked, or this one again, the engine decides. After
    one the server is looked at anew: it may be another one by then.
    """

    def __init__(self, remote: JsonClient, wanted: Wanted, weights: Weights) -> None:
        self.remote, self._wanted, self._weights = remote, wanted, weights
        self._model = ""
        self._checked = self._was_usable = False
        self._has: str | None = None  # the version of its weights, as far as we know
        self.capacity: int | None = None  # tokens of keys and values that it holds, where it tells
        self._preparing: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Sees that the server is what it should be, and has the weights. Raises EngineError where it cannot serve what
        it is asked for, InfrastructureFault where it does not answer. It goes on where who asked is cancelled: half of
        an update leaves a server paused."""
        while not (self._checked and self._weights.version in (None, self._has)):
            if self._preparing is None or self._preparing.done():
                self._preparing = asyncio.create_task(self._prepare())
            await asyncio.shield(self._preparing)

    async def close(self) -> None:
        """Connections end, once an update that has begun is over."""
        if self._preparing is not None:
            await asyncio.wait([self._preparing], timeout=GRACE)
            await cancelled([self._preparing])
        await self.remote.close()

    async def _prepare(self) -> None:
        if not self._checked:
            await self._check()
            self._checked = self._was_usable = True
        await self._update()

    def lost(self) -> None:
        """Nothing is known of it any more."""
        self._checked, self._has = False, None

    async def _check(self) -> None:
        url, wanted = self.remote.url, self._wanted
        try:
            version = str((await self.remote.get("/version"))["version"])
            card = _only(await self._cards(), wanted.model, url)
            self._model = str(card["id"])
            told = {"model": self._model, "prompt": PROBE, "add_special_tokens": False}
            tokens = (await self.remote.post("/tokenize", told))["tokens"]
        except (RequestRefused, LookupError, TypeError) as error:
            self._may_be_away(error)
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
        """Of the models that the server has, and of the adapters, each with its model as its `parent`."""
        cards: Sequence[Mapping[str, Any]] = (await self.remote.get("/v1/models"))["data"]
        return cards

    def _may_be_away(self, error: Exception) -> None:
        """Raises InfrastructureFault where a way that was there is not: while a server is started anew, what stands
        before it may answer in its place."""
        if self._was_usable and isinstance(error, RequestRefused) and error.error.status in (404, 405):
            raise InfrastructureFault(str(error)) from error

    async def _check_how_started(self) -> None:
        wanted = self._wanted
        url = self.remote.url
        how = start_line(wanted.max_len, wanted.adapters)
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
        """Why a server cannot be given adapters. about: what it says of those that it takes."""
        if int(about.get("max_lora_rank") or 0) < adapters.rank:
            return f"takes no adapters of rank {adapters.rank}"
        if on_cpu and not about.get("target_modules"):
            return "adapts its output layer, too, and on a CPU vLLM's engine ends where it then scores a prompt"
        return None if await self._has_route(LOAD) else "takes no adapters while it runs"

    async def _has_route(self, path: str) -> bool:
        """Whether the server has a route. One that is there says that this is no request; a whole one would wait where
        the server is paused, as one is whose trainer was killed in an update."""
        try:
            await self.remote.post(path, {})
        except RequestRefused as refused:
            return refused.error.status not in (404, 405)
        return True

    async def generate(
        self, ids: Sequence[int], params: Mapping[str, object], *, version: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The first choice, with `prompt_logprobs` and `prompt_tokens`, and the version of the weights that made each
        of its tokens. version: that is asked for. Raises InfrastructureFault, also for tokens of weights that are not
        to be taken; RequestRefused."""
        await self.ready()
        body: dict[str, object] = {"model": self._model, "token_ids": list(ids), "sampling_params": dict(params)}
        adapter = None if self._wanted.adapters is None else version
        if version is not None:
            body |= {"cache_salt": version, "model": adapter or self._model}
        try:
            answer = await self.remote.post(GENERATE, body)
        except RequestRefused as refused:
            self._may_be_away(refused)  # what it is now, it says when it is looked at anew
            raise
        try:
            choice = dict(answer["choices"][0])
            spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice["weight_versions"] or ()]
            if adapter is not None:  # what the server tells is the version of the weights below it
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
            except ServerFailed:  # one has begun that nobody ended: its trainer was killed, perhaps
                with suppress(InfrastructureFault):  # vLLM drops the connection on which it failed, and does not say so
                    await self.remote.get("/health")
                await self.remote.post("/finish_weight_update", {"weight_version": "unfinished"})
                await self.remote.post("/start_weight_update", {})
            await self.remote.post("/update_weights", {"update_info": {"folder": str(folder)}})
            await self.remote.post("/finish_weight_update", {"weight_version": wanted})
        # Not before: half of the weights would sample under the old name. And also where it was not paused, or has them
        # already: whoever paused it may be gone.
        await self.remote.post("/resume", {})

    async def _load(self, wanted: str, folder: Path | None) -> None:
        """An adapter more: requests under way go on with theirs. Of this run's the server keeps the one before."""
        there = [str(card["id"]) for card in await self._cards() if card.get("parent") is not None]
        if wanted in there:
            return
        try:
            await self._tell(LOAD, {"lora_name": wanted, "lora_path": str(folder)})
        except ServerFailed as failed:
            if failed.error.status != 500:
                raise
            raise EngineError(f"{self.remote.url} cannot load the run's adapters: {failed}") from failed
        run = wanted.rpartition("-")[0]
        for old in [name for name in there if name.rpartition("-")[0] == run][:-1]:
            await self._tell(UNLOAD, {"lora_name": old})

    async def _tell(self, path: str, body: Mapping[str, object]) -> None:
        with suppress(BadResponse):  # its yes is a sentence, no JSON
            await self.remote.post(path, body)


def _only(cards: Sequence[Mapping[str, Any]], model: str, url: str) -> Mapping[str, Any]:
    cards = [card for card in cards if card.get("parent") is None]  # the others are adapters
    found = [card for card in cards if not model or card["id"] == model]
    if not found or (not model and len(found) > 1):
        names = ", ".join(str(card["id"]) for card in cards)
        raise EngineError(f"engine.model: {url} serves {names}; '{model}' names none of them, or not one alone")
    return found[0]


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+", maxsplit=1)[0].split(".")
    return tuple(int(part) for part in parts[:2] if part.isdecimal())


def _prompt_tokens(answer: Mapping[str, Any]) -> int:
    """As the server counts them; 0 where it does not say, or something in between says something else."""
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) else 0
