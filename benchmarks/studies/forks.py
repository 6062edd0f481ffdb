#!/usr/bin/env python
"""What each preloaded profile costs a call: CPU of a fork that ends at once and of waiting for it, in milliseconds.

python benchmarks/studies/forks.py [--forks N] [--rounds N]

A profile is imported in a process of its own as a zygote would; profiles take turns, the least of the rounds counts.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

from retcon.sandbox.pool.handles import ENVIRONMENT
from retcon.sandbox.pool.profiles import BUILT_IN

MEASURE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from retcon.sandbox.jail import worker, zygote
problem = zygote.preload(sys.argv[4:], sys.argv[3])
if problem:
    sys.exit(problem)
forks = int(sys.argv[2])
before = sum(os.times()[:4])
for _ in range(forks):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
print(1000 * (sum(os.times()[:4]) - before) / forks, resident)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(": ")[2] if models else platform.machine()
    print(f"{date.today()}  {model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    source = str(Path(__file__).parents[2] / "src")
    took: dict[str, list[tuple[float, int]]] = {profile.name: [] for profile in BUILT_IN}
    for _ in range(arguments.rounds):
        for profile in BUILT_IN:
            command = [sys.executable, "-s", "-P", "-c", MEASURE, source, str(arguments.forks), profile.exercise]
            command += profile.modules
            done = subprocess.run(command, check=False, env=ENVIRONMENT, capture_output=True, text=True)
            if done.returncode:
                print(f"{profile.name}: {done.stderr.strip().splitlines()[-1]}")
                continue
            cpu, resident = done.stdout.split()
            took[profile.name].append((float(cpu), int(resident)))
    for name, rounds in took.items():
        if rounds:
            cpu, resident = min(rounds)
            print(f"{name:8} {cpu:.2f} ms of CPU a fork, {resident} MiB resident")


if __name__ == "__main__":
    main()
