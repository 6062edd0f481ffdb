"""On a device that is no CPU: what a forward is made of lies there, and drawing ids asks for nothing in between.

No such device is needed: the tensors are fakes, of the device `meta`, which torch refuses to mix with those of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from retcon.core.types import Sample
from retcon.engine.local.attention import forward
from retcon.engine.local.forward import Invariance, Step, Stretch, plan
from retcon.engine.local.machine import attend_without_cudnn, free_memory
from retcon.engine.local.sampling import Sampler
from retcon.engine.local.slabs import KeysAndValues, Memory
from retcon.engine.types import SamplingParams
from retcon.planning.needs import free_on
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch

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


def test_the_fakes_do_not_mix(faked: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, 3, device=ELSEWHERE).index_select(0, torch.tensor([1]))


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
            ([Step(second, (4,), 9)], [Stretch(first, 0, stretch, 1), Stretch(third, 5, stretch, 1)]),
        ):
            for planned in (Wants(replays=False), Wants(replays=True)):
                logits = forward(policy, plan(steps, stretches, planned, ELSEWHERE))
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
        attend_without_cudnn.__wrapped__()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
