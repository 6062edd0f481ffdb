"""The next ids of a batch of calls, several in a row where a call has a draft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from retcon.engine.local.drawing.sampling import Sampler, entropies
from retcon.engine.local.requests import Drawn, GenerateCall


class Drawing:
    """Keeps the sampler of the rows that it was asked about last: where nothing is drafted, most forwards have the same
    ones."""

    def __init__(self) -> None:
        self._sampler: tuple[list[GenerateCall], Sampler] | None = None

    def __call__(self, calls: Sequence[GenerateCall], counts: Sequence[int], logits: Tensor) -> list[list[Drawn]]:
        """Of each call its next `count` ids, as if every id of its draft had been sampled: logits (sum of counts,
        V), in order.

        The uniforms stay the call's next ones; whoever takes ids skips as many.
        """
        wanted, first = [], 0
        for call, count in zip(calls, counts, strict=True):
            if call.wants_entropy:
                wanted.append((call, first))
            first += count
        found = entropies(logits[[row for _, row in wanted]]) if wanted else ()
        for (call, _), entropy in zip(wanted, found, strict=True):
            call.entropies.append(entropy)
        rows = [call for call, count in zip(calls, counts, strict=True) for _ in range(count)]
        if self._sampler is None or self._sampler[0] != rows:
            self._sampler = (rows, Sampler([c.params for c in rows], logits.device))
        uniform = [u for call, count in zip(calls, counts, strict=True) for u in call.draws.ahead(count)]
        columns = self._sampler[1](logits, torch.tensor(uniform, dtype=torch.float32, device=logits.device))
        if logits.device.type != "cpu":
            # In one copy, for which a GPU is waited for once; float64 holds ids and float32 exactly.
            ids, logprobs, sampling_logprobs = torch.stack([column.double() for column in columns]).cpu()
            columns = ids.long(), logprobs, sampling_logprobs
        drawn = zip(*(column.tolist() for column in columns), strict=True)
        return [[next(drawn) for _ in range(count)] for count in counts]
