"""verl's own actor update on a CPU: its FSDP engine, registered for a platform of ours. Run as a program, as what verl
computes on is settled when it is imported: `actor_on_cpu.py MODEL IN.pt OUT.pt`."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from verl.plugin.platform import PlatformBase, set_platform


class _NoDevice(types.ModuleType):
    """What verl asks of `torch.cuda`; counters of memory are 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        told = {"mem_get_info": (1, 1), "get_device_name": "cpu"}.get(name, 0)
        return (lambda *_, **__: told) if told or not hasattr(torch.cpu, name) else getattr(torch.cpu, name)


def _nothing(*_: object) -> None:
    return None


class CPU(PlatformBase):
    """verl has platforms of accelerators alone."""

    device_name, vendor_name, device_module = "cpu", "none", _NoDevice("cpu")
    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: "cpu")
    device_count = staticmethod(lambda: 1)
    set_device = synchronize = set_allocator_settings = empty_cache = staticmethod(_nothing)
    profiler_start = profiler_stop = cudart = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_device_capability = staticmethod(lambda _=0: (None, None))
    communication_backend_name = staticmethod(lambda: "gloo")
    visible_devices_envvar = staticmethod(lambda: "CUDA_VISIBLE_DEVICES")
    nvtx_range = staticmethod(lambda _: contextlib.nullcontext())
    ray_resource_name = staticmethod(lambda: "CPU")
    ray_noset_envvars = staticmethod(list)
    is_ipc_supported = staticmethod(lambda: False)


def main(model: str, given: str, out: str) -> None:
    """given: rows with prompts, responses, response_mask and advantages, each a list of tensors. Writes the log-probs
    that verl computes of the responses, and the metrics of an update on them, with those as the old ones less a bit."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0")  # fmt: skip
    set_platform(CPU())
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    import verl.workers.engine  # noqa: F401  registers its own
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import response_from_nested
    from verling import config_of

    EngineRegistry.register("language_model", ["fsdp2"], device="cpu")(FSDPEngineWithLMHead)
    root = "actor_rollout_ref"
    config = config_of(Path(model), Path("none.parquet"), [
        f"{root}.actor.strategy=fsdp2", f"{root}.model.use_remove_padding=true", f"{root}.actor.clip_ratio_high=0.28",
        f"{root}.actor.use_torch_compile=false", f"{root}.actor.fsdp_config.use_torch_compile=false",
        f"+{root}.actor.fsdp_config.mixed_precision={{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}}",
        f"{root}.actor.ppo_micro_batch_size_per_gpu=64",
        f"+{root}.model.override_config.attn_implementation=sdpa",
    ])  # fmt: skip
    settings = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model", model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
            engine_config=settings.fsdp_config, optimizer_config=settings.optim, checkpoint_config=settings.checkpoint,
        )
    )  # fmt: skip
    worker.reset()
    worker.set_loss_fn(partial(ppo_loss, config=settings))
    rows = torch.load(given)
    count = len(rows["prompts"])

    def nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    ids = [torch.cat(pair) for pair in zip(rows["prompts"], rows["responses"], strict=True)]
    fields = {name: nested(values) for name, values in rows.items()}
    positions = nested([torch.arange(len(row)) for row in ids])
    data = TensorDict(
        {**fields, "input_ids": nested(ids), "position_ids": positions, "loss_mask": fields["response_mask"]},
        batch_size=count,
    )
    tu.assign_non_tensor(data, temperature=1.0, calculate_entropy=False, compute_loss=False, use_dynamic_bsz=False,
                         micro_batch_size_per_gpu=count)  # fmt: skip
    told = response_from_nested(worker.infer_batch(data)["log_probs"], data["response_mask"])
    found = [row.clone() for row in told.unbind()]
    data["old_log_probs"] = nested([row + torch.linspace(-0.5, 0.5, len(row)) for row in found])
    tu.assign_non_tensor(data, compute_loss=True, global_batch_size=count, mini_batch_size=count, epochs=1, seed=1,
                         dataloader_kwargs={"shuffle": False})  # fmt: skip
    metrics = worker.train_mini_batch(data)["metrics"]
    torch.save({"log_probs": found, "metrics": {k: v for k, v in metrics.items() if k != "mfu"}}, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
