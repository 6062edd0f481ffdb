"""What the local engine has done, in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made. Ids: generated; fed in prefills; scored; found cached; copied from an equal
    prompt.

    steps: forwards that decoded. rows: requests that they decoded, so rows / steps is the mean batch. drafted: ids fed
    before they were known; accepted: those of them that were sampled then. preempted: requests under way that gave
    their room to others. carried: requests that went on with other weights. evicted: requests at rest, or waiting, that
    lost their keys and values. seconds: wall time in the model, the sampler and their bookkeeping. gathered: wall time
    in which a thin batch waited for company. starved: wall time in which requests were open and none of them had a
    call, as all waited for their tools. kv_used, kv_peak, kv_budget: bytes of keys and values, allocated.
    """

    generated: int = 0
    prefilled: int = 0
    scored: int = 0
    reused: int = 0
    copied: int = 0
    steps: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    carried: int = 0
    evicted: int = 0
    seconds: float = 0.0
    gathered: float = 0.0
    starved: float = 0.0
    kv_used: int = 0
    kv_peak: int = 0
    kv_budget: int = 0

    def since(self, before: EngineStats) -> EngineStats:
        """The difference to an earlier copy; of the bytes, what they are now."""
        earlier = asdict(before)
        return EngineStats(**{k: v if k.startswith("kv") else v - earlier[k] for k, v in asdict(self).items()})

    def metrics(self) -> dict[str, float | None]:
        """What a run logs of a step: engine_utilisation, mean batch, ids drafted and accepted, ids fed, found
        cached and copied, requests that gave way, and MiB of keys and values. They depend on how quick tools were."""
        utilisation, batch = self.utilisation, self.batch
        return {
            "engine_utilisation": None if utilisation is None else round(utilisation, 4),
            "engine_batch": None if batch is None else round(batch, 2),
            "engine_drafted": self.drafted,
            "engine_accepted": self.accepted,
            "engine_prefilled": self.prefilled,
            "engine_reused": self.reused + self.copied,
            "engine_preempted": self.preempted,
            "engine_evicted": self.evicted,
            "engine_kv_mb": round(self.kv_peak / 2**20, 2),
        }

    @property
    def batch(self) -> float | None:
        """Mean number of requests that a forward decodes; None where none did."""
        return self.rows / self.steps if self.steps else None

    @property
    def utilisation(self) -> float | None:
        """Share of the time in which requests were open that the engine computed; None where none was."""
        total = self.seconds + self.gathered + self.starved
        return self.seconds / total if total else None
