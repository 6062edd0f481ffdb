"""The local engine in a program that set nothing up: how its threads wait, and what it decodes with."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines import MAX_LEN, model_of
from retcon.core.errors import ComputeWarning
from retcon.core.machine import V1, V2, available_memory, total_memory
from retcon.engine.local import decoder
from retcon.engine.local.engine import LocalEngine

pytestmark = pytest.mark.torch

PROGRAM = """
import os, threading, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from retcon.engine.local.engine import LocalEngine
before = dict(os.environ)
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                     num_key_value_heads=1, head_dim=8, intermediate_size=8))
for threads in (1, 2):
    torch.set_num_threads(threads)
    for _ in range(2):
        LocalEngine(model, max_len=16)
    assert dict(os.environ) == before, "the environment is the program's"
    asleep = sum(thread.name == "retcon-openmp" for thread in threading.enumerate())
    print(asleep, len(os.listdir("/proc/self/task")) > len(os.sched_getaffinity(0)), torch.get_num_threads())
"""
WAITS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def printed(code: str, without: tuple[str, ...], **variables: str) -> list[str]:
    """What a program prints in an environment without those variables."""
    outer = {name: value for name, value in os.environ.items() if name not in without}
    path = os.pathsep.join(["src", *filter(None, [outer.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**outer, "PYTHONPATH": path, **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="only Linux tells which OpenMP is loaded")
def test_threads_are_calmed_once_and_only_where_nobody_has_decided():
    one, _, _, *two = printed(PROGRAM, WAITS)
    assert one == "0"
    assert two == ["1", "True", "2"], "more OpenMP threads than cores: libgomp then spins 100 times at most"
    assert printed(PROGRAM, WAITS, OMP_WAIT_POLICY="ACTIVE")[3] == "0"


def test_the_engine_says_what_it_decodes_with_and_why(caplog):
    with caplog.at_level(logging.INFO, logger="retcon"):
        assert LocalEngine(model_of("qwen3"), max_len=MAX_LEN).decoding.startswith("the fused forward")
    assert "decoding with the fused forward" in caplog.text


def test_a_lack_of_memory_for_the_quicker_decoder_is_not_passed_over(monkeypatch):
    monkeypatch.setattr(decoder, "needed_memory", lambda *_: (3 << 30, 1 << 30))
    with pytest.warns(ComputeWarning, match=r"needs 3\.00 GiB of free memory, and 1\.00 are free"):
        engine = LocalEngine(model_of("qwen3"), max_len=MAX_LEN)
    assert engine.decoding.startswith("transformers' own forward: the fused one needs")


def machine(tmp_path: Path, **files: str) -> int | None:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    return available_memory(tmp_path / "meminfo", tmp_path)


MEMINFO = "MemTotal: 8000 kB\nMemFree: 100 kB\nMemAvailable: 5000 kB\n"


def test_cached_files_count_as_available(tmp_path):
    assert machine(tmp_path) is None
    assert machine(tmp_path, meminfo=MEMINFO) == 5000 * 1024
    limited = {"memory_max": "3000000", "memory_current": "2500000", "memory_stat": "anon 1\ninactive_file 400000\n"}
    assert machine(tmp_path, **limited) == 900000, "what a container's limit leaves"
    assert machine(tmp_path, **limited | {"memory_stat": "anon 1\n"}) == 500000
    assert machine(tmp_path, memory_max="max") == 5000 * 1024


def limited(folder: Path, limit: int, files: tuple[str, str, str]) -> None:
    """A control group with that limit, of which half is used and a quarter are files that give way."""
    folder.mkdir(parents=True, exist_ok=True)
    most, used, kept = files
    (folder / most).write_text(f"{limit}\n")
    (folder / used).write_text(f"{limit // 2}\n")
    (folder / "memory.stat").write_text(f"cache 1\n{kept} {limit // 4}\n")


@pytest.mark.parametrize(
    ("top", "files", "line"),
    [("", V2, "0::"), ("memory", V1, "11:cpu,cpuacct:/other\n4:cpuset,memory:")],
    ids=["v2", "v1"],
)
def test_a_limit_counts_wherever_the_process_is(tmp_path, top, files, line):
    """In a container, whose own group is on top; in a job of Slurm, deep below; in one that its parent bounds."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    groups, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_bytes(f"{line}/slurm/job_7/step ä:".encode() + b"\xff X\n9:cpu:/another\n")  # a name may be any bytes
    step = os.fsdecode("slurm/job_7/step ä:".encode() + b"\xff X")

    def known() -> tuple[int | None, int]:
        return available_memory(tmp_path / "meminfo", groups, own), total_memory(groups, own)

    assert known()[0] == 5000 * 1024
    for folder, limit in (("", 4_000_000), ("slurm/job_7", 3_000_000), (step, 2_000_000)):
        limited(groups / top / folder, limit, files)
        assert known() == (3 * limit // 4, limit)
    limited(groups / top / "slurm/job_8", 1000, files)
    assert known()[1] == 2_000_000, "another job's"
    own.write_text(f"{line}/\n")
    assert known()[1] == 4_000_000
    own.write_text(f"{line}/../away\n")
    assert known()[1] == 4_000_000
    for nothing in ("no line of groups\n", "7\n"):
        own.write_text(nothing)
        assert known() == (3_000_000, 4_000_000)
    own.unlink()
    assert known() == (3_000_000, 4_000_000)
    (groups / top / files[0]).write_text("max\n")
    assert known() == (5000 * 1024, total_memory(tmp_path / "no groups"))
