"""In place of verl's vLLM replica: our local engine in a Ray actor, behind the interface of its server handle."""

from __future__ import annotations

from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput


@ray.remote
class Replica:
    """Takes and gives what verl's `vLLMHttpServer.generate` does. model: a folder. max_len: tokens that it takes.
    losing: so many of its first requests meet an engine that is gone."""

    def __init__(self, model: str, max_len: int, *, losing: int = 0) -> None:
        import torch

        from retcon.engine.local.engine import LocalEngine
        from retcon.models.loading import load_model

        torch.set_num_threads(1)
        weights = load_model(model, "float32")
        self._engine = LocalEngine(weights, max_len=max_len, max_requests=256)
        self._losing = losing
        self.params: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any],
        image_data: object = None, video_data: object = None, priority: int = 0,
    ) -> TokenOutput:  # fmt: skip
        from retcon.engine.types import SamplingParams

        self.params.append(sampling_params)
        if self._losing:
            self._losing -= 1
            raise RuntimeError("the engine is dead")
        if len(prompt_ids) >= self._engine.max_len:
            raise ValueError(f"{len(prompt_ids)} tokens leave no room")
        params = SamplingParams(
            temperature=sampling_params["temperature"], top_p=sampling_params["top_p"],
            top_k=max(0, sampling_params["top_k"]), min_p=sampling_params["min_p"],
            max_tokens=min(sampling_params["max_tokens"], self._engine.max_len - len(prompt_ids)),
            stop_ids=tuple(sampling_params["stop_token_ids"]), seed=sampling_params["seed"],
        )  # fmt: skip
        made = await self._engine.generate(request_id, prompt_ids, params)
        await self._engine.release(request_id)  # verl names each turn anew
        wanted = made.sampling_logprobs if sampling_params["logprobs"] else None
        return TokenOutput(
            token_ids=list(made.ids), log_probs=None if wanted is None else list(wanted), stop_reason="completed",
            extra_fields={"global_steps": 0},
        )  # fmt: skip

    async def seen(self) -> list[dict[str, Any]]:
        """How its requests were to be sampled."""
        return self.params
