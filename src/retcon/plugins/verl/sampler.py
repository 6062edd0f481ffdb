"""Replay buffer for verl with the recipe's selection and replacement prompts."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import transfer_queue
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.plugins.verl.choosing import PACKED, Step, unpack
from retcon.plugins.verl.settings import recipe_of

log = logging.getLogger(__name__)
Key = str
"""`{uid}_{session}_{index}` in verl's queue; of a session the last is the rollout, the others its children."""


class RetconSampler(ReplayBuffer):  # type: ignore[misc]  # verl has no types
    """Class for `trainer.v1.sampler.custom_sampler`; its `sampler_kwargs` are the section `retcon`.

    A step's prompts are rolled out `rollout.n` times (G'); once all are over, the recipe's selection keeps `rl.group`
    (G) of each, the same ones that our own trainer keeps of the same rollouts. Where dynamic sampling, or groups that
    faults or masks took, leave too few, verl is asked for as many fresh prompts, in the rounds and bounds of [select].
    What is not kept leaves the queue. Validation takes everything that was rolled out, as verl has it.

    Raises RecipeError for an asynchronous trainer, whose batches are made of rollouts as they come.
    """

    def __init__(self, *about: Any, sampler_kwargs: Mapping[str, Any], **more: Any) -> None:
        super().__init__(*about, sampler_kwargs=sampler_kwargs, **more)
        if self.trainer_mode != "sync":
            raise RecipeError(
                f"trainer.v1.trainer_mode = '{self.trainer_mode}': a selection needs whole groups of one step; set it "
                "to sync, or leave out trainer.v1.sampler.custom_sampler"
            )
        self._recipe = recipe_of(sampler_kwargs)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        """Return a step's batch and metrics of its selection. Raises SandboxUnavailable where none is left."""
        if partition_id == "val":
            found: tuple[Any, dict[str, float]] = super().sample(global_steps, partition_id, batch_size)
            return found
        step = Step(self._recipe, global_steps, batch_size)
        waited = time.time()
        while True:
            self._sync_metadata_from_transfer_queue()
            if self.pending_keys[partition_id] or self.running_keys[partition_id]:
                waited = self._wait_for_next_poll(partition_id, waited)
                continue
            over = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            self._take(step, partition_id, sorted(over - step.groups.keys()))
            if missing := step.to_draw():
                self.refill_fn(missing)
                continue
            if not any(group.kept for group in step.groups.values()):
                raise SandboxUnavailable(
                    f"step {global_steps}: faults, or rollouts that [rl] masks, left fewer than two rollouts of every "
                    "group: the workers' logs name the faults; see `retcon doctor`"
                )
            batch, metrics = self._batch(step, partition_id), step.metrics()
            return batch, metrics | {"retcon/children": len(batch.keys) - metrics["retcon/kept"]}

    def _take(self, step: Step, partition_id: str, uids: Sequence[str]) -> None:
        """Add finished groups: what was rolled out of each, and what of it is kept."""
        new = set(uids)
        there = sorted((k for k in self.partitions[partition_id] if _uid(k) in new), key=_place)
        keys = list({_session(key): key for key in there}.values())
        rolled: dict[str, dict[Key, Trajectory]] = defaultdict(dict)
        sizes: dict[str, int] = {}
        if keys:
            read = transfer_queue.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
            for key, about in zip(keys, read["extra_fields"], strict=True):
                fields = getattr(about, "data", about)
                rolled[_uid(key)][key] = unpack(fields[PACKED])
                sizes[_uid(key)] = int(fields["group_size"])
        for uid in uids:
            made = sizes.get(uid, step.made)  # faults may have taken a whole group
            if len(rolled[uid]) < made:
                log.warning("prompt %s: faults took %d of %d rollouts", uid, made - len(rolled[uid]), made)
            step.add(uid, rolled[uid], made)

    def _batch(self, step: Step, partition_id: str) -> Any:
        """Metadata of the rollouts to train on and their children; all others leave the queue."""
        chosen = {uid: group for uid, group in step.groups.items() if uid in step.trained()}
        sessions = {_session(key) for group in chosen.values() for key in group.kept}
        kept = {key for key in self.partitions[partition_id] if _session(key) in sessions}
        left_out = [*(step.groups.keys() - chosen.keys()), *(self.partitions[partition_id].keys() - kept)]
        if left_out:
            transfer_queue.kv_clear(partition_id=partition_id, keys=left_out)
        partition = {key: tag for key, tag in self.partitions[partition_id].items() if key in kept}
        order = sorted(partition, key=_place)
        return self._materialize_batch(partition_id, list(chosen), {key: partition[key] for key in order})


def _uid(key: Key) -> str:
    return key.rsplit("_", 2)[0]


def _session(key: Key) -> str:
    return key.rpartition("_")[0]


def _place(key: Key) -> tuple[str, int, int]:
    uid, session, index = key.rsplit("_", 2)
    return uid, int(session), int(index)
