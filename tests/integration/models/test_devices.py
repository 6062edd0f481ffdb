"""Where a recipe computes: chosen from what a machine has, given here as numbers, and refused by name before work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import GPT2Config, LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3ForCausalLM

from retcon.config.schema import ComputeSection
from retcon.core.errors import RecipeError
from retcon.core.types import Sample
from retcon.engine.local.attention import forward
from retcon.engine.local.forward import Chunk, Invariance, Step, plan_forward
from retcon.engine.local.sampling import Sampler
from retcon.engine.local.slabs import KeysAndValues, Memory, disable_cudnn, free_memory
from retcon.engine.types import SamplingParams
from retcon.models import devices
from retcon.models.devices import Computing, Gpu, Machine, Placement, choose, crowding, supports_dtype
from retcon.planning.needs import free_on
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch


PLAIN = Machine("Some CPU", 1.0, cores=4)
QWEN = Qwen3Config(hidden_size=128)


class Unknown(PretrainedConfig):
    model_type = "unknown"
    hidden_size = 128


def chosen(machine: Machine = PLAIN, config: PretrainedConfig = QWEN, threads: int = 1, **section: object) -> Placement:
    return choose(ComputeSection.model_validate(section), config, machine, threads=threads)


SMOLLM2 = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                      num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)  # fmt: skip


@pytest.mark.parametrize(
    ("gib", "tokens", "chunk"), [(80, 16384, 28), (40, 8192, 27), (24, 8192, 26), (16, 4096, 26), (4, 2048, 24)]
)
def test_micro_batches_are_as_large_as_suits_the_gpu(
    gib: int, tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2-135M keeps 1.1 MB of a token: 16,384 took 17 of an H100's GiB, optimiser and rollouts aside."""
    monkeypatch.setattr(devices, "supports_dtype", lambda _device, _dtype: True)  # this torch knows no CUDA
    machine = Machine("Some CPU", 1.0, 4, (Gpu("NVIDIA A", True, gib * 2**30),))
    found = chosen(machine, SMOLLM2)
    assert (found.micro_batch_tokens, found.logits_chunk, found.hints) == (tokens, 2**chunk, ())
    assert chosen(machine, SMOLLM2, checkpointing=True).micro_batch_tokens == (16384 if gib > 4 else 4096)
    asked = chosen(machine, SMOLLM2, micro_batch_tokens=7, logits_chunk=11)
    assert (asked.micro_batch_tokens, asked.logits_chunk) == (7, 11)
    only_decodes = choose(ComputeSection(), SMOLLM2, machine, threads=1, uses=("rollout_dtype",))
    assert only_decodes.micro_batch_tokens == 2048
    on_cpu = chosen(machine, SMOLLM2, device="cpu")
    assert (on_cpu.micro_batch_tokens, on_cpu.logits_chunk) == (2048, 2**24)


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_where_there_is_none_is_refused(device: str) -> None:
    with pytest.raises(RecipeError, match=rf"compute\.device = '{device}'.*CUDA.*use 'cpu'"):
        chosen(device=device)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    machine = Machine("Some CPU", 1.0, 4, (Gpu("NVIDIA A", True), Gpu("NVIDIA B", True)))
    with pytest.raises(RecipeError, match=r"'cuda:2'.*'cuda:0' \(NVIDIA A\), 'cuda:1' \(NVIDIA B\)"):
        chosen(machine, device="cuda:2")
    assert chosen(machine, device="cpu").device == "cpu"


def test_a_gpu_computes_in_bfloat16_where_it_has_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others imitate it, slowly."""
    monkeypatch.setattr(devices, "supports_dtype", lambda device, dtype: device.startswith("cuda"))  # not this one
    machine = Machine("Some CPU", 2.1, 4, (Gpu("NVIDIA A", True), Gpu("NVIDIA T4", False)))
    found = [chosen(machine, Qwen3Config(hidden_size=2048), device=device) for device in ("auto", "cuda", "cuda:1")]
    assert [(one.device, one.name, one.dtype, one.rollout_dtype) for one in found] == [
        ("cuda:0", "NVIDIA A", "bfloat16", "bfloat16"),
        ("cuda:0", "NVIDIA A", "bfloat16", "bfloat16"),
        ("cuda:1", "NVIDIA T4", "float32", "float32"),
    ]
    assert not any("CPU" in hint for one in found for hint in one.hints), "what its CPU does matters to nobody"
    assert "thread" not in found[0].line


def test_a_dtype_that_torch_lacks_on_a_device() -> None:
    assert all(supports_dtype("cpu", dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    assert not supports_dtype("cpu", torch.float8_e4m3fn)


def test_attention_goes_by_the_model() -> None:
    assert chosen(config=GPT2Config()).attention == "sdpa"
    assert chosen(config=Unknown()).attention == "eager"
    with pytest.raises(RecipeError, match=r"compute\.attention = 'sdpa': unknown has none; use 'eager'"):
        chosen(config=Unknown(), attention="sdpa")


@pytest.mark.parametrize(
    ("threads", "workers", "cores", "crowded"),
    [(1, 2, 2, False), (1, 2, 1, False), (2, 2, 2, False), (3, 0, 2, True), (1, 16, 2, True), (8, 16, 8, False)],
)
def test_more_threads_and_workers_than_cores_can_hold(threads: int, workers: int, cores: int, crowded: bool) -> None:
    found = crowding(threads, workers, cores)
    assert (found is not None) == crowded
    if found is not None:
        assert f"run.threads = {threads}" in found
        assert f"sandbox.workers = {workers}" in found


# On a device that is no CPU: what a forward is made of lies there, and drawing ids asks for nothing in between.


ELSEWHERE = torch.device("meta")
PROMPT, LEARNT = 5, 8
SAMPLES = [
    Sample(tuple(range(start, start + PROMPT + LEARNT)), mask, (None,) * PROMPT + (-1.0,) * LEARNT, (0,) * len(mask))
    for start, mask in ((0, (0,) * PROMPT + (1,) * LEARNT), (20, (0,) * PROMPT + (1,) * LEARNT))
]
ALIKE = [
    *SAMPLES,
    Sample((*range(PROMPT), *range(30, 38)), *(getattr(SAMPLES[0], k) for k in ("mask", "logprobs", "spliced"))),
]


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield monkeypatch


def found(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As a fake holds no values, so many of them are said to be true."""
    monkeypatch.setattr(Tensor, "nonzero", lambda x: torch.zeros(count, x.ndim, dtype=torch.long, device=x.device))


def model(dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    with ELSEWHERE:
        made = Qwen3ForCausalLM(config)
    for module in made.modules():
        for name, old in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(torch.empty(old.shape, dtype=dtype, device=ELSEWHERE)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=ELSEWHERE))
    made.train(False)
    return made


@dataclass(frozen=True)
class Wants:
    """What a plan is for, as on a GPU."""

    replays: bool
    invariance: Invariance = field(default_factory=Invariance)


@pytest.mark.parametrize(
    "computing",
    [
        Computing(),
        Computing(share_prompts=False),
        Computing(checkpointing=True),
        Computing(logits_chunk=256, temperature=0.7),
    ],
    ids=["shared", "apart", "checkpointed", "sliced"],
)
def test_a_training_step_lies_on_the_models_device(faked: pytest.MonkeyPatch, computing: Computing) -> None:
    found(faked, 3 * LEARNT)
    # no values can be compared there
    faked.setattr("retcon.train.kernels.forward._packs_alike", lambda _: True)
    for module in ("forward", "logprobs"):
        faked.setattr(f"retcon.train.kernels.{module}.output_head", lambda model: (model.get_output_embeddings(), 1.0))
    faked.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    faked.setattr(torch, "is_autocast_enabled", lambda _: False)
    with forwards(model(), ALIKE, computing, entropies=True) as parts:
        for part in parts:
            assert part.entropies is not None
            (part.logprobs.sum() + part.entropies.sum()).backward()
            assert part.logprobs.device == ELSEWHERE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_forward_of_the_engine_lies_on_the_models_device(faked: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    stretch = (3, 1, 4, 1, 5, 9, 2)
    found(faked, len(stretch))
    policy, layers = model(dtype), dict.fromkeys(range(2), (2, 8, 8))
    memory = Memory(KeysAndValues(layers, dtype, ELSEWHERE), device=ELSEWHERE, max_len=256, max_slots=8, budget=2**24)
    places = [memory.take(20) for _ in range(3)]
    first, second, third = (place for place in places if place is not None)
    with torch.no_grad():
        for steps, stretches in (
            ([Step(first, (3,), 5), Step(second, (4,), 9)], []),
            ([Step(first, (3, 4), 5), Step(third, (4,), 9)], []),
            ([Step(second, (4,), 9)], [Chunk(first, 0, stretch, 1), Chunk(third, 5, stretch, 1)]),
        ):
            for planned in (Wants(replays=False), Wants(replays=True)):
                logits = forward(policy, plan_forward(steps, stretches, planned, ELSEWHERE))
                assert (logits.device, logits.dtype) == (ELSEWHERE, dtype)
        memory.copy([(first, second, 5)])
        memory.compact([third], 0.75)


@pytest.mark.parametrize("vocabulary", [64, 9000])
def test_plain_ids_are_drawn_without_waiting(vocabulary: int) -> None:
    params = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(temperature=0.7)]
    logits = torch.empty(len(params), vocabulary, device=ELSEWHERE)  # has no values that could be asked for
    ids, logprobs, _ = Sampler(params, ELSEWHERE)(logits, torch.empty(len(params), device=ELSEWHERE))
    assert (ids.shape, logprobs.device) == ((len(params),), ELSEWHERE)


def test_what_torch_holds_for_later_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, told in {"mem_get_info": (10, 80), "memory_reserved": 7, "memory_allocated": 4}.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, told=told: told)
    assert free_memory(torch.device("cuda:0")) == free_on("cuda:0") == 13


def test_gpus_attend_without_cudnn() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        disable_cudnn.__wrapped__()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
