"""Scheduler of requests and slots: continuous batching.

Every forward takes one id of each decoding request and the next uncached chunk of each newly admitted one. Requests
join when there is room and leave with their last id; their keys and values stay until the next call, unless others need
the room.

Room is found in this order: free slots; slots of requests at rest, the least recently used first; and, for a decoding
request that must grow, the slots of the latest arrivals. Lost keys and values are computed again from the ids: nothing
that was generated is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from retcon.engine.local.decoder import Decoder
from retcon.engine.local.forward import AT_ONCE, CHUNK_LOGITS, FORWARD_IDS, Chunk, Output, Step, chunk_end, thin_drafts
from retcon.engine.local.requests import (
    AHEAD,
    Drafts,
    GenerateCall,
    PromptCache,
    Request,
    ScoreCall,
    Token,
    common_prefix,
)
from retcon.engine.local.sampling import Sampler, entropies
from retcon.engine.local.slabs import Memory, Place


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
        """Return the difference to an earlier copy; bytes as they are now."""
        earlier = asdict(before)
        return EngineStats(**{k: v if k.startswith("kv") else v - earlier[k] for k, v in asdict(self).items()})

    def metrics(self) -> dict[str, float | None]:
        """Return a step's metrics, which depend on the speed of tools."""
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
        """Mean requests of a decoding forward; None before the first."""
        return self.rows / self.steps if self.steps else None

    @property
    def utilisation(self) -> float | None:
        """Computing time per time with open requests; None without any."""
        total = self.seconds + self.gathered + self.starved
        return self.seconds / total if total else None


class BatchSampler:
    """Sampling of calls, which reuses the last sampler: without drafts most forwards have the same rows."""

    def __init__(self) -> None:
        self._sampler: tuple[list[GenerateCall], Sampler] | None = None

    def __call__(self, calls: Sequence[GenerateCall], counts: Sequence[int], logits: Tensor) -> list[list[Token]]:
        """Sample each call's next `count` ids, as if its draft had been sampled: logits (sum of counts, V), in order.

        The uniforms stay the call's next ones; `Request.take` skips as many as it takes.
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


COMPACT_AT = 0.75
"""Decoding requests of a slab are moved together when they are fewer than this share of the slots up to their last:
less often costs attention over slots at rest, more often costs moving keys and values."""
REST = 64
"""Forwards after which a request without a new call makes room for another: it may never be released."""
HEADROOM = 0.1
"""Share of the budget that new requests leave to those that grow."""


class Scheduler:
    """Scheduler of calls, up to `rows` side by side: `step` until not `busy`."""

    def __init__(
        self, decoder: Decoder, memory: Memory, *, rows: int, vocabulary: int, device: torch.device, stats: EngineStats
    ) -> None:
        self._decoder, self._memory, self._rows, self._stats = decoder, memory, rows, stats
        self._vocabulary, self._device = vocabulary, device
        self._most = FORWARD_IDS if device.type == "cpu" else AT_ONCE  # ids of a forward
        self._stale = False  # whether the weights have changed
        self._threads = torch.get_num_threads()  # for which the decoder is laid out
        self._version: int | None = None
        self._waiting: dict[str, Request] = {}  # those that were admitted before
        self._new: dict[str, Request] = {}
        self._feeding: dict[str, Request] = {}
        self._decoding: dict[str, Request] = {}
        self._resting: dict[str, Request] = {}  # with keys and values but no call, those longest out of use first
        self._prompts, self._drafts, self._draw = PromptCache(), Drafts(), BatchSampler()
        self._changed, self._forwards = True, 0

    @property
    def busy(self) -> bool:
        return self.present > 0

    @property
    def present(self) -> int:
        """Number of requests with a call."""
        return len(self._waiting) + len(self._new) + len(self._feeding) + len(self._decoding)

    @property
    def computing(self) -> bool:
        """Whether a request is under way."""
        return bool(self._feeding or self._decoding)

    @property
    def version(self) -> int | None:
        """Version of the weights, returned with their tokens; None: not returned."""
        return self._version

    @version.setter
    def version(self, version: int | None) -> None:
        if self._version is not None:
            for request in (*self._waiting.values(), *self._feeding.values(), *self._decoding.values()):
                if isinstance(request.call, GenerateCall):
                    request.call.stamp(self._version)
        self._version = version

    def add(self, request: Request) -> None:
        """Add a request with a new call."""
        self._resting.pop(request.id, None)
        (self._waiting if request.admitted else self._new)[request.id] = request

    def fork(self, request: Request, source: Request, length: int) -> None:
        """Copy a resting request's first `length` positions to a new one."""
        kept = min(length, len(source.cached)) if source.id in self._resting else 0
        place = self._memory.take(min(kept + AHEAD, self._memory.max_len)) if kept else None
        if place is None or source.place is None:
            return
        self._memory.copy([(source.place, place, kept)])
        request.place, request.cached, request.admitted = place, source.cached[:kept], True
        self._stats.copied += kept
        self._rest(request)

    def remove(self, request: Request) -> None:
        """Remove a request and free its slot."""
        self._evict(request)
        for group in (self._waiting, self._new, self._feeding, self._decoding, self._resting):
            group.pop(request.id, None)
        self._changed = True

    def forget(self) -> None:
        """Drop all keys and values."""
        for group in (self._waiting, self._new, self._resting):
            for request in group.values():
                request.place, request.cached = None, []
        self._resting.clear()
        self._prompts.clear()
        self._memory.drop()
        self._stats.kv_used = self._memory.used
        self._stale = True

    def suspend(self) -> None:
        """Set computing requests back to waiting, without keys and values; their generated ids stay."""
        for request in (*self._feeding.values(), *self._decoding.values()):
            self._stats.carried += 1
            self._set_back(request)

    def step(self) -> None:
        """Admit requests, run one forward, sample, and answer finished calls."""
        began = time.perf_counter()
        if self._stale or self._threads != torch.get_num_threads():
            self._decoder.refresh()
            self._stale, self._threads = False, torch.get_num_threads()
        known = self._admit()
        self._make_room()
        rows = self._ordered()
        drafted = self._decoder.invariance.drafted
        steps = thin_drafts([self._next(r, drafted) for r in rows], CHUNK_LOGITS // self._vocabulary)
        count = sum(len(s.ids) for s in steps)
        fed = sorted(self._chunks(self._most - count), key=lambda f: (f[1].start > 0, len(f[1].ids)))
        sampled, parts = list(rows), []
        if steps or fed:
            kept = self._forward(steps, [chunk for _, chunk in fed])
            led = list(self._fed(fed, kept, count))
            if rows or led:
                parts.append(kept.logits([*range(count), *(token for _, token in led)]))
            for (request, _), row in zip(led, parts[0][count:] if led else (), strict=True):
                self._prompts.led(request, row)
                sampled.append(request)
        for request, row in known:
            sampled.append(request)
            parts.append(row[None])
        if sampled:
            drafts = [s.ids[1:] for s in steps] + [()] * (len(sampled) - len(steps))
            self._sample(sampled, drafts, torch.cat(parts) if len(parts) > 1 else parts[0])
        if known:
            self._changed = True
        self._stats.seconds += time.perf_counter() - began
        self._stats.kv_used, self._stats.kv_peak = self._memory.used, self._memory.peak

    # --- admission ---

    def _admit(self) -> list[tuple[Request, Tensor]]:
        """Give waiting requests a slot, continued ones first; return those whose logits are known already."""
        known: list[tuple[Request, Tensor]] = []
        for request in (*self._waiting.values(), *self._new.values()):
            if len(self._feeding) + len(self._decoding) + len(known) >= self._rows:
                break
            call = request.call
            assert call is not None
            if call.done.done():  # its caller is gone
                self.remove(request)
                continue
            if request.place is not None:
                self._crop(request, call)
            begins = isinstance(call, GenerateCall) and not call.made
            shared = self._prompts.find(call.ids) if begins and request.place is None else None
            if shared is not None and shared.logits is None:
                continue  # another request computes it just now
            if not self._place(request, call, new=not request.admitted):
                break
            (self._waiting if request.admitted else self._new).pop(request.id)
            request.admitted = True
            self._changed = True
            if begins and not request.cached:
                # looked for anew: slots that it lay in, or what the request itself had cached, may have been given up
                shared = self._prompts.find(call.ids)
                if shared is None:
                    self._prompts.lead(request, call.ids)
                elif shared.logits is not None:
                    self._prompts.copy(shared, request, self._memory)
                    self._stats.copied += len(call.ids)
                    known.append((request, shared.logits))
                    self._decoding[request.id] = request
                    continue
            self._stats.reused += len(request.cached)
            self._feeding[request.id] = request
        return known

    def _crop(self, request: Request, call: GenerateCall | ScoreCall) -> None:
        """Crop the cache to its common prefix with the call, and to what need not be fed for logits."""
        kept = min(common_prefix(request.cached, call.to_feed), call.wanted)
        assert request.place is not None
        if kept == 0:
            self._evict(request)
        elif kept < len(request.cached):
            request.place.slab.show(request.place.slot, kept)
            del request.cached[kept:]
            self._prompts.cropped(request)

    def _place(self, request: Request, call: GenerateCall | ScoreCall, *, new: bool) -> bool:
        """Find a slot that holds the call. New requests evict no recent ones, unless nothing else can go on."""
        if request.place is not None and len(call.to_feed) <= request.place.capacity:
            return True
        idle = not self._feeding and not self._decoding
        victims = self._victims(request) if idle or not new else self._left_alone()
        while new and not idle and self._memory.scarce(call.room, HEADROOM):
            victim = next(victims, None)
            if victim is None:
                return False
            self._put_out(victim)
        if self._grown(request, call.room, victims):
            return True
        if request.place is None:
            return False
        self._evict(request)  # there is no room for both slots: it is computed anew
        return self._grown(request, call.room, self._victims(request) if idle else ())

    def _left_alone(self) -> Iterator[Request]:
        """Yield requests at rest without a call in a long time, such as those that will never be released."""
        for request in list(self._resting.values()):
            if self._forwards - request.rested > REST:
                yield request

    def _victims(self, request: Request) -> Iterator[Request]:
        """Yield requests to evict, first those at rest, then those that wait."""
        for group in (self._resting, self._waiting):
            yield from (r for r in list(group.values()) if r.place is not None and r is not request)

    def _grown(self, request: Request, length: int, victims: Iterable[Request]) -> bool:
        """Give the request a slot of at least `length`, with its cache; evict victims if needed."""
        place = self._memory.take(min(length, self._memory.max_len))
        for victim in () if place is not None else victims:
            self._put_out(victim)
            place = self._memory.take(min(length, self._memory.max_len))
            if place is not None:
                break
        if place is None:
            return False
        if request.place is not None:
            self._memory.copy([(request.place, place, len(request.cached))])
            self._memory.give(request.place)
        request.place = place
        self._changed = True
        return True

    def _put_out(self, victim: Request) -> None:
        """Take the slot of a request that is not computed."""
        self._evict(victim)
        self._resting.pop(victim.id, None)
        self._stats.evicted += 1

    def _make_room(self) -> None:
        """Let decoding requests grow; without room the latest arrivals wait."""
        full = [r for r in self._decoding.values() if r.place is not None and len(r.cached) >= r.place.capacity]
        moves: list[tuple[Request, Place]] = []
        for request in full:  # all at once, if there is room for all
            assert isinstance(request.call, GenerateCall)
            place = self._memory.take(min(request.call.room, self._memory.max_len))
            if place is None:
                break
            moves.append((request, place))
        self._memory.copy([(r.place, place, len(r.cached)) for r, place in moves if r.place is not None])
        for request, place in moves:
            self._memory.give(request.place)  # type: ignore[arg-type]
            request.place, self._changed = place, True
        for request in sorted(full[len(moves) :], key=lambda r: r.arrived):
            while request.place is not None and len(request.cached) >= request.place.capacity:
                assert isinstance(request.call, GenerateCall)
                if not self._grown(request, request.call.room, self._victims(request)):
                    self._stats.preempted += 1
                    self._set_back(self._last(request))

    def _last(self, request: Request) -> Request:
        """Return the latest arrival of the computing requests, or this one if it is later."""
        decoding = (r for r in self._decoding.values() if isinstance(r.call, GenerateCall) and r.call.made)
        return max((*decoding, *self._feeding.values(), request), key=lambda r: r.arrived)

    def _set_back(self, request: Request) -> None:
        self._evict(request)
        self._decoding.pop(request.id, None)
        self._feeding.pop(request.id, None)
        if isinstance(request.call, ScoreCall):
            request.call.values.clear()  # it begins anew
        self._waiting[request.id] = request
        self._changed = True

    def _evict(self, request: Request) -> None:
        if request.place is not None:
            if request.id in self._feeding or (request.id in self._decoding and request.unsound):
                request.place.slab.wipe(request.place.slot)
            self._memory.give(request.place)
        request.place, request.cached = None, []
        self._prompts.leave(request)

    def _ordered(self) -> list[Request]:
        """Return decoding requests with an id to feed, by slab and slot, moved together where that pays."""
        rows = [r for r in self._decoding.values() if isinstance(r.call, GenerateCall) and r.call.made]
        if self._changed:
            self._memory.compact([r.place for r in rows if r.place is not None], COMPACT_AT)
            self._changed = False
            rows.sort(key=lambda r: r.place.order if r.place is not None else (0, 0))
            self._decoding = {r.id: r for r in rows} | self._decoding
        return rows

    # --- forwards ---

    def _next(self, request: Request, drafted: int) -> Step:
        call, place, length = request.call, request.place, len(request.cached)
        assert isinstance(call, GenerateCall)
        assert place is not None
        most = drafted and min(drafted, place.capacity - length - 1, call.limit - len(call.made) - 1)
        draft = self._drafts.propose(call.nearest, most) if most > 0 and not call.wants_entropy else []
        return Step(place, (call.made[-1], *draft), length)

    def _chunks(self, room: int) -> Iterator[tuple[Request, Chunk]]:
        """Yield the next chunk of each prefill, at least one, while a forward has room; none if the decoder waits."""
        full = sum(request.unfed for request in self._feeding.values()) >= room
        for request in self._feeding.values() if self._decoder.feeds(room < self._most, full) else ():
            call, start = request.call, len(request.cached)
            assert call is not None
            assert request.place is not None
            ids = call.to_feed
            end = chunk_end(start, len(ids), call.wanted, self._vocabulary)
            keep = min(max(end - call.wanted, 0), end - start)
            yield request, Chunk(request.place, start, ids[start:end], keep)
            room -= max(end - start, keep * self._vocabulary * self._most // CHUNK_LOGITS)
            if room <= 0:
                return

    def _forward(self, steps: Sequence[Step], chunks: Sequence[Chunk]) -> Output:
        kept = self._decoder.feed(steps, chunks, self._device)
        for chunk in chunks:
            chunk.place.slab.show(chunk.place.slot, chunk.start + len(chunk.ids))
        self._forwards += 1
        self._stats.steps += bool(steps)
        self._stats.rows += len(steps)
        self._stats.drafted += sum(len(s.ids) - 1 for s in steps)
        self._stats.prefilled += sum(len(s.ids) for s in chunks)
        return kept

    def _fed(self, fed: Sequence[tuple[Request, Chunk]], kept: Output, at: int) -> Iterator[tuple[Request, int]]:
        """Record fed chunks, whose output begins at `at`; yield requests to be sampled, each with its kept token."""
        for request, chunk in fed:
            first, at = at, at + chunk.keep
            call = request.call
            assert call is not None
            request.cached.extend(chunk.ids)
            if isinstance(call, ScoreCall):
                shown = chunk.start + len(chunk.ids) - chunk.keep + 1
                nexts = call.ids[shown : shown + chunk.keep]
                call.values += kept.logprobs(first, nexts)
                self._stats.scored += len(nexts)
            if len(request.cached) < len(call.to_feed):
                continue
            if isinstance(call, ScoreCall):
                call.answer(request.id)
                if kept.is_nan(at - 1):
                    self._evict(request)
                del self._feeding[request.id]
                self._rest(request)
                continue
            del self._feeding[request.id]
            self._decoding[request.id] = request
            self._changed = True
            if not call.made:
                yield request, at - 1

    def _sample(self, requests: Sequence[Request], drafts: Sequence[Sequence[int]], logits: Tensor) -> None:
        """Sample each request's next id, and with a draft those after it; answer those that end."""
        calls = [r.call for r in requests if isinstance(r.call, GenerateCall)]
        drawn = self._draw(calls, [1 + len(draft) for draft in drafts], logits)
        for request, call, draft, rows in zip(requests, calls, drafts, drawn, strict=True):
            before = len(call.made)
            ended = request.take(call, rows, draft)
            self._stats.generated += len(call.made) - before
            self._stats.accepted += len(call.made) - before - 1
            if ended:
                self._end(request, call)

    def _end(self, request: Request, call: GenerateCall) -> None:
        if call.answer(request.id, self.version):
            self._drafts.learn(call.ids, call.made[:-1])
        else:
            self._evict(request)
        del self._decoding[request.id]
        self._changed = True
        self._rest(request)

    def _rest(self, request: Request) -> None:
        if request.place is not None:
            self._resting[request.id] = request
            request.rested = self._forwards
