"""Behaviour on a GPU: `make cuda`. Elsewhere, and in all other calls of pytest, these tests are skipped."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    """Where models and samples of these tests are."""
    import torch

    if os.environ.get("RETCON_CUDA_TESTS") != "1":
        pytest.skip("GPUs are hidden from tests but in `make cuda`")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return "cuda"
