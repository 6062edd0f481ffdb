"""verl's trainer as far as it goes without a GPU: its data, queue, manager, workers, client and replay buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import hydra
import ray
import transfer_queue
import verl
from omegaconf import OmegaConf, open_dict
from replica import Replica
from verl.experimental.reward_loop import RewardLoopManager
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import get_router_handle

from retcon.config.schema import TaskSection
from retcon.core.types import Trajectory
from retcon.plugins.verl.manager import RetconManager
from retcon.tasks.registry import RIGHT, WRONG
from retcon.tasks.types import Task
from training import Ones

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "recipes/verl/agent.yaml"
SAMPLER = {"path": "pkg://retcon.plugins.verl.sampler", "name": "RetconSampler"}


def config_of(model: Path, data: Path, overrides: Sequence[str] = (), *, base: str = "ppo_trainer") -> Any:
    """verl's own defaults with what a run without a GPU needs, and these keys."""
    with hydra.initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        return hydra.compose(base, overrides=[
            f"actor_rollout_ref.model.path={model}", f"data.train_files={data}", f"data.val_files={data}",
            "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.calculate_log_probs=false",
            "actor_rollout_ref.rollout.agent.default_agent_loop=retcon",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={AGENT}",
            "actor_rollout_ref.rollout.agent.num_workers=2", "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
            "reward.num_workers=1", "data.dataloader_num_workers=0", "data.filter_overlong_prompts=false",
            "data.shuffle=false",
            "trainer.v1.sampler.sync_refill_failed_groups=true",
            f"trainer.v1.sampler.custom_sampler.path={SAMPLER['path']}",
            f"trainer.v1.sampler.custom_sampler.name={SAMPLER['name']}",
            "trainer.resume_mode=disable", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1", *overrides,
        ])  # fmt: skip


def with_recipe(config: Any, recipe: str, overrides: Sequence[str] = ()) -> Any:
    """The section `retcon`, which the sampler gets too."""
    section = {"recipe": recipe, "overrides": list(overrides)}
    with open_dict(config):
        config.retcon = section
        config.trainer.v1.sampler.sampler_kwargs = section
    OmegaConf.resolve(config)
    return config


@dataclass(frozen=True)
class SaidTasks(Ones):
    """Go, and say the task's answer: a tiny model that says 1 or 2 is right half of the time."""

    name: str = "go"

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(f"go/{n}", "go", str(1 + n % 2)) for n in count())

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop == "infrastructure":
            return trajectory
        said = trajectory.turns[-1].text if trajectory.stop == "answer" else ""
        return replace(trajectory, reward=RIGHT if task.answer in said else WRONG)


class Said(TaskSection):
    """`task.kind = "verling:Said"`."""

    own_lengths: ClassVar[bool] = True

    def build(self, count_tokens: object = None) -> SaidTasks:
        return SaidTasks()


class Training:
    """A step of verl's synchronous trainer up to where its batch would go to the actor. servers: replicas."""

    def __init__(self, config: Any, servers: dict[str, Any]) -> None:
        self.config = config
        transfer_queue.init(config.transfer_queue)
        self.trainer = PPOTrainerSync(config)
        self.trainer.global_steps = 0
        self.trainer._init_tokenizer()
        self.trainer._init_dataloader()
        router = get_router_handle(
            servers=servers, router_config_path=config.actor_rollout_ref.rollout.router_config_path
        )
        client = LLMServerClient(config, router)
        self.trainer.reward_loop_manager = RewardLoopManager(config=config, rm_resource_pool=None)
        self.trainer.agent_loop_manager = RetconManager.create(
            config=config, llm_client=client, reward_loop_worker_handles=self.trainer.get_reward_handles()
        )
        self.trainer.replay_buffer.poll_interval = 0.2

    def step(self, number: int) -> tuple[Any, dict[str, float]]:
        """What `_step_once` does first: prompts out, the batch in."""
        self.trainer.global_steps = number
        self.trainer._add_batch_to_generate()
        size = self.config.data.train_batch_size
        return self.trainer.replay_buffer.sample(global_steps=number, partition_id="train", batch_size=size)

    def read(self, batch: Any, *fields: str) -> dict[str, list[Any]]:
        """Fields of a batch, row by row."""
        found = transfer_queue.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
        )
        return {name: [getattr(one, "data", one) if not hasattr(one, "tolist") else one for one in found[name]]
                for name in fields}  # fmt: skip

    def has(self, batch: Any, field: str) -> bool:
        """Whether rows of a batch have a field."""
        found = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        return field in list(found.keys())

    def left_in_queue(self) -> set[str]:
        """The keys of all that is kept for training."""
        return set(transfer_queue.kv_list("train").get("train", {}))

    def advantages(self, batch: Any) -> dict[str, list[float]]:
        """Those that verl computes, of each rollout of a task, in the order of their sessions."""
        self.trainer._compute_advantage(batch, {})
        rows = self.read(batch, "advantages", "response_mask", "extra_info", "session_id")
        found: dict[str, dict[int, float]] = {}
        for told, mask, about, session in zip(*rows.values(), strict=True):
            first = mask.tolist().index(1) if 1 in mask.tolist() else 0
            found.setdefault(about["id"], {})[int(session)] = float(told.tolist()[first])
        return {task: [one[n] for n in sorted(one)] for task, one in found.items()}

    def close(self) -> None:
        for worker in (*self.trainer.agent_loop_manager.agent_loop_workers, *self.trainer.get_reward_handles()):
            ray.kill(worker)
        transfer_queue.close()


def replicas(model: Path, max_len: int, number: int = 1, **about: Any) -> dict[str, Any]:
    return {f"replica-{n}": Replica.remote(str(model), max_len, **about) for n in range(number)}
