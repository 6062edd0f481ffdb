"""What `recipes/verl/launch.sh` asks verl for, and what its processes get; without verl and without Ray."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from retcon.plugins.verl.settings import add_environment

RECIPES = Path(__file__).parents[3] / "recipes/verl"


def launch(folder: Path, *words: str, **environment: str) -> list[str]:
    """The words that python is called with, in a folder with stand-ins of `python` and `retcon`."""
    programs = folder / "bin"
    programs.mkdir()
    for name, does in (("python", 'printf "%s\\n" "$@"'), ("retcon", "true")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    command = ["bash", str(RECIPES / "launch.sh"), *words]
    env = {"PATH": f"{programs}:/usr/bin:/bin", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=folder).stdout.splitlines()


def test_what_is_asked_for_is_on_the_command_line(tmp_path: Path) -> None:
    asked = launch(tmp_path, "cleaner-7b", NODES="8", MODEL="my models/it's 7B", DATA="my data")
    assert asked[:6] == ["-m", "retcon.plugins.verl", "--config-path", str(RECIPES), "--config-name", "cleaner-7b"]
    assert {
        "trainer.nnodes=8", "trainer.n_gpus_per_node=8", "actor_rollout_ref.rollout.agent.num_workers=128",
        r"actor_rollout_ref.model.path='my models/it\'s 7B'", "data.train_files='my data/cleaner-7b-train.parquet'",
        f"actor_rollout_ref.rollout.agent.agent_loop_config_path='{RECIPES}/agent.yaml'",
    } <= set(asked)  # fmt: skip


def test_the_model_is_the_recipes_where_none_is_given(tmp_path: Path) -> None:
    assert not [word for word in launch(tmp_path, "cleaner-4b") if word.startswith("actor_rollout_ref.model.path")]


def test_a_worker_takes_folder_and_keys_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"RETCON_SANDBOX_TOKEN": "a", "MY_JUDGE_API_KEY": "b", "HF_HOME": "c", "CUDA_VISIBLE_DEVICES": "0"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    runtime_env = add_environment({"env_vars": {"NCCL_DEBUG": "WARN"}})
    assert runtime_env["env_vars"] == {"NCCL_DEBUG": "WARN"}  # Ray shows these to every account of the machine
    monkeypatch.chdir("/")
    for name in values:
        monkeypatch.setenv(name, "of ray start")
    runtime_env["worker_process_setup_hook"]()
    assert Path.cwd() == tmp_path
    assert [os.environ[name] for name in values] == ["a", "b", "c", "of ray start"]
