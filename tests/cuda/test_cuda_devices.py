"""Where a recipe computes on a machine with a GPU."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from transformers import Qwen3Config

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.models.devices import Placement, look_at_machine, supports_dtype
from retcon.models.placing import place_model

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")]  # few cores


def placed(**compute: str) -> Placement:
    return place_model(Recipe.model_validate({"compute": compute}), Qwen3Config(hidden_size=128))


def test_auto_is_the_first_gpu_in_bfloat16_where_it_has_units_for_it() -> None:
    found, name = placed(), torch.cuda.get_device_name(0)
    dtype = "bfloat16" if torch.cuda.get_device_capability(0) >= (8, 0) else "float32"
    assert (found.device, found.dtype, found.rollout_dtype, found.attention) == ("cuda:0", dtype, dtype, "sdpa")
    assert found.line == f"computing on cuda:0 ({name}), {dtype}, rollouts {dtype}, sdpa attention"
    assert found.hints == ()
    assert found.micro_batch_tokens == 16384  # of a model this small
    assert asdict(placed(device="cuda")) == asdict(placed(device="cuda:0")) == asdict(found)


def test_what_the_recipe_names_goes_first() -> None:
    told = placed(dtype="float32", rollout_dtype="float16", attention="eager")
    assert (told.device, told.dtype, told.rollout_dtype, told.attention) == ("cuda:0", "float32", "float16", "eager")
    assert (placed(device="cpu").device, placed(device="cpu").dtype) == ("cpu", "float32")


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RecipeError, match=r"compute\.device = 'cuda:77'.*there are: 'cuda:0' \(") as refused:
        placed(device="cuda:77")
    assert torch.cuda.get_device_name(0) in str(refused.value)


def test_the_gpus_of_the_machine_are_named() -> None:
    assert [gpu.name for gpu in look_at_machine().gpus] == [
        torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_gpu_computes_in_every_dtype_of_a_recipe(dtype: torch.dtype) -> None:
    assert supports_dtype("cuda:0", dtype)
    assert not supports_dtype("cuda:0", torch.float8_e4m3fn)
