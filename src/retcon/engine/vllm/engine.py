"""Engine over vLLM servers, with token ids and live weight updates.

**Weights.** After an update the trainer's weights are written once to a folder in memory, and every server reads them
through vLLM's weight transfer (`extension/retcon_vllm.py`); or its adapters, which vLLM loads as one more. A version's
name is unique to the run. Tokens carry the version of their weights, and those of another one are rejected: a restarted
server gets the weights first. Cached prefixes are salted with the version.

**Several servers.** `retcon.engine.pool` chooses the server of each request: the one with the trajectory's cache, as
far as it fits.

**Faults.** A failed request goes to another server at once. If all are down it waits up to `patience` seconds. A server
that this process started is restarted.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.pool.engine import Dispatcher
from retcon.engine.pool.policy import Policy
from retcon.engine.types import Adapters, Generation, SamplingParams, check_params
from retcon.engine.vllm.client import Requirements, VLLMClient, Weights
from retcon.engine.vllm.process import Server
from retcon.models.remote import JsonClient, RequestRefused

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """Settings of a `VLLMEngine`.

    Args:
        urls: roots of servers that run already.
        model: its name there, empty for the only one.
        seconds: of a request.
        patience: seconds that a request waits while all servers are down.
        at_once: concurrent requests of one server.
        weights_folder: where weights are written for the servers; None: shared memory, for servers on this machine.
    """

    urls: tuple[str, ...] = ()
    model: str = ""
    key_env: str = ""
    seconds: float = 600.0
    patience: float = 300.0
    at_once: int = 256
    seeds: bool = True
    weights_folder: Path | None = None


@dataclass(slots=True)
class VLLMStats:
    """Counters since the engine was made.

    generated, prefilled, scored: tokens. retried: requests after a fault. restarted: ends of the engine's own server.
    """

    generated: int = 0
    prefilled: int = 0
    scored: int = 0
    retried: int = 0
    restarted: int = 0

    def since(self, before: VLLMStats) -> VLLMStats:
        """Return the difference to an earlier copy."""
        earlier = asdict(before)
        return VLLMStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """Return a step's metrics."""
        return {"engine_prefilled": self.prefilled, "engine_retried": self.retried, "engine_restarted": self.restarted}


class VLLMEngine:
    """A trainable `Generator` over vLLM servers. It works within `connected`.

    Args:
        model: returns the model whose weights `follow` sends.
        own: a server to start and stop with the connections.
        trained: whether servers will be sent weights.
        adapters: sent instead of weights.
    """

    def __init__(
        self,
        settings: VLLMSettings,
        tokenizer: Tokenizer,
        *,
        max_len: int,
        model: Callable[[], PreTrainedModel],
        own: Server | None = None,
        trained: bool = False,
        adapters: Adapters | None = None,
    ) -> None:
        self.settings, self.max_len, self.stats = settings, max_len, VLLMStats()
        self._tokenizer, self._model, self._own = tokenizer, model, own
        self._weights = Weights()
        self._run, self._count = secrets.token_hex(6), 0
        self._clients: list[VLLMClient] = []
        self._dispatcher: Dispatcher | None = None
        self._restarting = asyncio.Lock()
        self._trained, self._adapters = trained, adapters
        self._folders: dict[str, Path] = {}  # by version, those that a server may still have to read
        self._open: Counter[str | None] = Counter()  # requests under way, by requested version
        self.version: int | None = None  # see `CarriesOver`

    @property
    def weights(self) -> str | None:
        """Name of the current version; None before the first `follow`."""
        return self._weights.version

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Do nothing (`CarriesOver`): servers keep generating until `follow`, and keep their caches then."""
        yield

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect within the block. Raises EngineError if a server is unsuitable, or none answers."""
        self._restarting = asyncio.Lock()
        try:
            if self._own is not None:
                await self._own.start()
            urls = self.settings.urls if self._own is None else (self._own.url,)
            about = self.settings
            wanted = Requirements(
                about.model, self._tokenizer, self.max_len, about.seeds, self._trained, self._adapters
            )
            self._clients = [VLLMClient(self._remote(url), wanted, self._weights) for url in urls]
            faults = [fault for client in self._clients if (fault := await self._prepare(client)) is not None]
            if len(faults) == len(self._clients):
                raise EngineError(f"no vLLM server answers: {'; '.join(map(str, faults))}") from faults[0]
            policy = Policy([client.capacity for client in self._clients], max_requests=about.at_once)
            self._dispatcher = Dispatcher(policy, about.patience, "vLLM servers")
            yield
        finally:
            if self._dispatcher is not None:
                self._dispatcher.close()
            self._dispatcher = None
            for client in self._clients:
                await client.close()
            self._clients = []
            if self._own is not None:
                await self._own.stop()
            self._forget_folders()

    def _remote(self, url: str) -> JsonClient:
        about = self.settings
        return JsonClient("vLLM", url, key_env=about.key_env, seconds=about.seconds, attempts=1, at_once=about.at_once)

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, (T,), T < max_len.

        Raises EngineError for a refused request, InfrastructureFault if no server answers in time.
        """
        check_params(request_id, params)
        if len(ids) >= self.max_len:
            raise EngineError(f"request {request_id}: {len(ids)} tokens leave no room within {self.max_len}")
        asked: dict[str, object] = {
            "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p,
            "max_tokens": min(params.max_tokens, self.max_len - len(ids)), "stop_token_ids": list(params.stop_ids),
            "ignore_eos": True, "logprobs": 0, "detokenize": bool(params.stop),
        }  # fmt: skip
        if params.stop:
            asked |= {"stop": list(params.stop), "include_stop_str_in_output": True}
        if self.settings.seeds:
            asked["seed"] = params.seed % 2**31
        choice, versions = await self._ask(request_id, ids, asked, params.max_tokens)
        try:
            found = tuple(int(i) for i in choice["token_ids"])
            logprobs = tuple(_logprob(one) for one in choice["logprobs"]["content"])
            stopped = choice["finish_reason"] == "stop"
        except (LookupError, TypeError, ValueError) as error:
            raise InfrastructureFault(f"request {request_id}: vLLM's answer cannot be read: {error!r}") from error
        for what, many in (("weights", len(versions)), ("log-probs", len(logprobs))):
            if many != len(found):
                raise InfrastructureFault(
                    f"request {request_id}: vLLM sent the {what} of {many} tokens, and {len(found)} tokens"
                )
        self.stats.generated += len(found)
        return Generation(
            found,
            logprobs,
            "stop" if stopped else "length",
            version=versions[0] if len(set(versions)) == 1 else None,
            versions=None if self.version is None else tuple(self._weights.steps[v] for v in versions),
        )

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Return log-probs of ids[start:], (T - start,) nats under the untempered model. Raises as `generate`."""
        if not 1 <= start <= len(ids) <= self.max_len:
            raise EngineError(f"request {request_id}: start {start} of {len(ids)} tokens; at most {self.max_len} fit")
        if start == len(ids):
            return ()
        # The last id is given as what to generate: a prompt as long as the context would leave no room.
        *before, last = ids
        asked = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "logprobs": 0, "detokenize": False,
                 "allowed_token_ids": [last], "ignore_eos": True}  # fmt: skip
        choice, _ = await self._ask(request_id, before, asked, 1)
        try:
            found = choice["prompt_logprobs"]
            scores = [_logprob(found[n][str(ids[n])]) for n in range(start, len(before))]
            scores.append(_logprob(choice["logprobs"]["content"][0]))
        except (LookupError, TypeError, ValueError) as error:
            raise InfrastructureFault(f"request {request_id}: vLLM's scores cannot be read: {error!r}") from error
        self.stats.scored += len(scores)
        return tuple(scores)

    async def release(self, request_id: str) -> None:
        """Forget the trajectory's server, which evicts unused caches itself."""
        if self._dispatcher is not None:
            self._dispatcher.release(request_id)

    def invalidate(self) -> None:
        """Do nothing: caches belong to a version, and `follow` makes a new one."""

    async def follow(self) -> None:
        """Send the model's new weights; servers that are down get them before their next request.

        Raises EngineError if they cannot be written.
        """
        self._count += 1

        save = self._model().save_pretrained if self._adapters is None else self._adapters.save
        folder = await asyncio.to_thread(write_weights, save, self.settings.weights_folder)
        self._forget_folders()
        self._weights.folder, self._weights.version = folder, f"{self._run}-{self._count}"
        self._folders[self._weights.version] = folder
        self._weights.carried = self.version is not None
        if self.version is not None:
            self._weights.steps[self._weights.version] = self.version
        await asyncio.gather(*(self._prepare(client) for client in self._clients))

    async def _prepare(self, client: VLLMClient) -> InfrastructureFault | None:
        try:
            await client.ready()
        except InfrastructureFault as fault:
            client.lost()
            return fault
        return None

    async def _ask(
        self, request_id: str, ids: Sequence[int], params: dict[str, object], limit: int
    ) -> tuple[dict[str, Any], list[str]]:
        dispatcher = self._dispatcher
        if dispatcher is None:
            raise EngineError(f"request {request_id}: the engine is not connected: see `VLLMEngine.connected`")

        async def ask(number: int) -> tuple[dict[str, Any], list[str]]:
            client = self._clients[number]
            await self._restart()
            version = self._weights.version
            self._open[version] += 1
            try:
                found = await client.generate(ids, params, version=version)
            except InfrastructureFault:
                client.lost()
                self.stats.retried += 1
                raise
            finally:
                self._open[version] -= 1
            dispatcher.policy.resized(number, client.capacity)  # it may have been down before
            self.stats.prefilled += found[0]["prompt_tokens"]
            return found

        def made(found: tuple[dict[str, Any], list[str]]) -> int:
            return len(found[0].get("token_ids") or ())

        try:
            return await dispatcher.run(request_id, len(ids), limit, ask, made, group=hash(tuple(ids)))
        except RequestRefused as refused:
            raise EngineError(f"request {request_id}: {refused}") from refused

    async def _restart(self) -> None:
        if self._own is None or self._own.alive:
            return
        async with self._restarting:
            if not self._own.alive:
                await self._own.start()
                self.stats.restarted += 1

    def _forget_folders(self) -> None:
        """Remove folders that are no longer read. Adapters are, while requests with them are open."""
        for version in [v for v in self._folders if self._adapters is None or not self._open[v]]:
            shutil.rmtree(self._folders.pop(version), ignore_errors=True)
        self._weights.folder = None

    async def __aenter__(self) -> VLLMEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: `connected` closes everything."""


def _logprob(entry: Mapping[str, Any]) -> float:
    """Return a log-prob in nats, at most 0. Raises ValueError if it is not finite."""
    found = float(entry["logprob"])
    if not math.isfinite(found):
        raise ValueError(f"a log-prob is {found}")
    return min(0.0, found)


MEMORY = Path("/dev/shm")
PREFIX = "retcon-weights-"


def write_weights(save: Callable[[Path], object], parent: Path | None = None) -> Path:
    """Write weights with `save` into a new folder of `parent`.

    parent: None for shared memory. Folders of killed trainers are removed. Raises EngineError if it cannot be written.
    """
    from safetensors import SafetensorError

    from retcon.models.loading import without_progress_bars

    parent = parent or (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir()))
    try:
        _sweep(parent)
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{_process(os.getpid())}-", dir=parent))
    except OSError as error:
        raise EngineError(f"no folder for the weights can be made in {parent}: {error}") from error
    try:
        folder.chmod(0o755)  # a server may run as another user
        with without_progress_bars():
            save(folder)
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(
            f"the weights cannot be written to {folder}, where {free / 2**20:,.0f} MiB are free: {error}"
        ) from error
    return folder


def _sweep(parent: Path) -> None:
    """Remove folders of processes of this machine that have ended."""
    for folder in parent.glob(f"{PREFIX}*-*-*"):
        pid = folder.name.split("-")[-2]
        if pid.isdecimal() and folder.name.startswith(f"{PREFIX}{_process(pid)}-") and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _process(pid: int | str) -> str:
    """Identify a process among containers and machines that share a folder."""
    space, boot = Path("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id")
    if not (space.exists() and boot.exists()):
        return "unknown"
    return f"{boot.read_text(encoding='ascii')[:8]}-{space.stat().st_ino}-{pid}"
