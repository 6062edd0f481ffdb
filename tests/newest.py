#!/usr/bin/env python
"""Try Retcon with the newest releases on the index: `make newest`.

    python3.11 tests/newest.py .venv-newest [--keep] [CHECK …]

Makes the environment anew (not with --keep) from README's install line and the newest releases of PEERS and CLIENTS,
past constraints.txt and the upper bounds in pyproject.toml. Runs all checks, or those named, prints what broke, and
which versions differ from the pinned ones. Exits with 1 if something broke. Needs the network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ".[train,report,serve,sandbox,grade,formats,gguf,dev]"
PEERS = ("torch", "transformers", "trl", "peft", "openai", "datasets")
CLIENTS = ("langchain", "langchain-openai", "langgraph", "openai-agents", "smolagents[openai]")
PINNED = ("constraints.txt", "tests/plugins/requirements.txt", "tests/plugins/clients.txt")

TESTS = ("python", "-m", "pytest", "-p", "no:cacheprovider", "--tb=short")
CHECKS: dict[str, tuple[str, ...]] = {
    "ask": ("python", "-m", "retcon", "ask", "base", "find x. 3*x = 12"),
    "unit": (*TESTS, "-n", "2", "tests/unit"),
    "engine": (*TESTS, "-n", "2", "tests/contract", "tests/integration/learning", "tests/integration/train"),
    "trl": (*TESTS, "tests/plugins/test_trl.py"),
    "clients": (*TESTS, "tests/plugins/test_clients.py", "tests/plugins/test_harnesses.py"),
    "verl": ("make", "verl-resolve"),
}


def build(venv: Path) -> None:
    """Raises CalledProcessError where pip fails."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
    pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
    subprocess.run([*pip, "--editable", EXTRAS, *PEERS, *CLIENTS], cwd=ROOT, check=True)
    subprocess.run([*pip, *PEERS], cwd=ROOT, check=True)  # alone, so that pip only warns of our upper bounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--keep", action="store_true", help="use the environment that is there")
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    args = parser.parse_intermixed_args()
    if unknown := [check for check in args.checks if check not in CHECKS]:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
    if not args.keep:
        build(args.venv)
    programs = {"python": str(args.venv.absolute() / "bin/python")}
    env = {**os.environ, "RETCON_INTEGRATION": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    ends = []
    for check in args.checks or CHECKS:
        print(f"\n== {check}", flush=True)
        begun = time.monotonic()
        program, *words = CHECKS[check]
        code = subprocess.run([programs.get(program, program), *words], cwd=ROOT, env=env, check=False).returncode
        ends.append((check, code, time.monotonic() - begun))

    print("\n== versions that differ from the pinned ones", flush=True)
    subprocess.run([programs["python"], "tests/pinned.py", "check", *PINNED], cwd=ROOT, check=False)
    print("\n== with the newest releases")
    for check, code, seconds in ends:
        print(f"{check:10} {'works' if code == 0 else f'BROKE (exit code {code})':24} {seconds:6.0f} s")
    sys.exit(any(code for _, code, _ in ends))


if __name__ == "__main__":
    main()
