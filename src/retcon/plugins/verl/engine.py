"""verl's servers as an engine: token ids both ways, through the client that verl gives its agent loops."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.types import Generation, SamplingParams, check_params

ABORTED = ("aborted", "abort")
REFUSALS = (ValueError, TypeError, AssertionError)
"""What verl's servers raise of a request that they will never serve; all else may pass."""


class Client(Protocol):
    """verl's `LLMServerClient`, as far as it is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """A `TokenOutput`."""
        ...


class ServerEngine:
    """A `Generator` over verl's client, for one rollout, whose counters it keeps.

    logprobs: whether the servers are to give them: those of the distribution that was sampled from, as verl has them
    (`rollout.logprobs_mode`). The client routes by request id, so that a rollout stays where its prefix is cached.

    seconds: spent waiting for servers. preempted: times that they preempted its requests, None where they do not say.
    steps: the training steps whose weights sampled it. fault: of a server, the last one that it met.
    """

    def __init__(self, client: Client, *, logprobs: bool = False) -> None:
        self._client, self._logprobs = client, logprobs
        self.seconds = 0.0
        self.preempted: int | None = None
        self.steps: list[int] = []
        self.fault = ""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`. Raises EngineError for what a server refuses, InfrastructureFault where it is gone, or gave
        the request up."""
        check_params(request_id, params)
        if params.stop:
            raise EngineError(
                f"request {request_id}: verl's servers do not give the ids of a stop string; use stop_ids"
            )
        told = await self._ask(request_id, ids, _asked(params, self._logprobs))
        found = tuple(int(i) for i in told.token_ids)
        if told.stop_reason in ABORTED or not found:
            raise self._fault(f"request {request_id}: the server gave it up ({told.stop_reason})")
        self._count(told)
        logprobs = tuple(told.log_probs) if self._logprobs and told.log_probs else None
        ended = found[-1] in params.stop_ids  # verl calls both ends "completed"
        return Generation(found, logprobs, "stop" if ended else "length", version=_version(told.extra_fields))

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        """Nothing: verl computes log-probs of the whole sequence itself, with the weights that it trains."""

    async def release(self, request_id: str) -> None:
        """The servers evict what nobody asks for."""

    async def _ask(self, request_id: str, ids: Sequence[int], asked: dict[str, Any]) -> Any:
        """The answer of the first server that does not fail: `RetconRouter` has another one for each try."""
        from ray.exceptions import RayError, RayTaskError

        failed = getattr(getattr(self._client, "_load_balancer", None), "failed", None)
        began = time.perf_counter()
        try:
            for tried in count(1):
                try:
                    return await self._client.generate(request_id, prompt_ids=list(ids), sampling_params=asked)
                except RayError as error:
                    gone: object = f"verl's server is gone: {error}"
                    if isinstance(error, RayTaskError):
                        gone = repr(error.cause)
                    if isinstance(error, RayTaskError) and isinstance(error.cause, REFUSALS):
                        raise EngineError(f"request {request_id}: {error.cause}") from error
                    if failed is None or tried >= await failed.remote(request_id):
                        raise self._fault(f"request {request_id}: {gone}") from error
        finally:
            self.seconds += time.perf_counter() - began

    def _fault(self, what: str) -> InfrastructureFault:
        self.fault = what
        return InfrastructureFault(what)

    def _count(self, told: Any) -> None:
        if told.num_preempted is not None and told.num_preempted >= 0:
            self.preempted = (self.preempted or 0) + told.num_preempted
        about = told.extra_fields
        self.steps += [
            step for step in (about.get("min_global_steps"), about.get("max_global_steps")) if step is not None
        ]


def _asked(params: SamplingParams, logprobs: bool) -> dict[str, Any]:
    """In vLLM's terms."""
    return {
        "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k or -1, "min_p": params.min_p,
        "max_tokens": params.max_tokens, "stop_token_ids": list(params.stop_ids), "ignore_eos": True,
        "seed": params.seed, "repetition_penalty": 1.0, "logprobs": logprobs,
    }  # fmt: skip


def _version(about: dict[str, Any]) -> str | None:
    first, last = about.get("min_global_steps"), about.get("max_global_steps")
    return str(first) if first is not None and first == last else None
