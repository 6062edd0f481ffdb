"""The `retcon doctor` command: what this machine has and lacks."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.sandbox import mark, print_advice, sandbox_rows
from retcon.core.installing import how_to_install, requirements
from retcon.core.machine import available_memory, usable_cores
from retcon.core.texts import counted

if TYPE_CHECKING:
    from retcon.sandbox.doctor import Probe

DEVELOPERS = "dev"
"""The extra that only developers of Retcon need."""
NEEDED_GB = 4.0  # memory of the quickstart, at most


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of this machine. cores: usable by this process. memory_gb, disk_gb: available (GiB), None where
    unknown. threads: torch's default."""

    cores: int
    memory_gb: float | None
    disk_gb: float | None
    threads: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Findings of `retcon doctor`. packages: by extra; required ones under "". versions: None for absent packages.
    advice: what to do, if anything."""

    retcon: str
    packages: dict[str, tuple[str, ...]]
    python: str
    system: str
    versions: dict[str, str | None]
    extras: dict[str, bool]
    machine: Machine
    sandbox: Probe
    advice: list[str]


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show what this machine has and lacks: packages, cores, memory, protection of the sandbox."""
    diagnosis = diagnose()
    if as_json:
        import json

        typer.echo(json.dumps(asdict(diagnosis), indent=1))
        return
    _print(diagnosis)


def diagnose() -> Diagnosis:
    """Examine the machine; starts one sandbox worker, imports no extra."""
    from retcon import __version__
    from retcon.sandbox.doctor import inspect_machine, probe
    from retcon.sandbox.doctor import list_advice as sandbox_advice

    packages = {extra: names for extra, names in requirements().items() if extra != DEVELOPERS}
    versions = {name: _installed(name) for names in packages.values() for name in names}
    extras = {extra: all(versions[name] for name in names) for extra, names in packages.items() if extra}
    machine = look_at_machine()
    sandbox = probe(0.1)
    lacking = [name for name in packages.get("", ()) if versions[name] is None]
    advice = [f"pip install {' '.join(lacking)}"] if lacking else []
    advice += [how_to_install(extra) for extra, present in extras.items() if not present]
    if sandbox.tier != "namespaces":
        advice += sandbox_advice(inspect_machine(), sandbox)
    if machine.memory_gb is not None and machine.memory_gb < NEEDED_GB:
        advice.append(f"{machine.memory_gb:.1f} GiB of memory are free; the quickstart may need {NEEDED_GB:g}")
    return Diagnosis(
        retcon=__version__,
        packages=packages,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions=versions,
        extras=extras,
        machine=machine,
        sandbox=sandbox,
        advice=advice,
    )


def look_at_machine() -> Machine:
    from retcon.config.schema import RunSection

    disk = shutil.disk_usage(Path.cwd()).free / 2**30
    memory = available_memory()
    free = None if memory is None else round(memory / 2**30, 1)
    return Machine(usable_cores(), free, round(disk, 1), RunSection().threads)


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table

    machine, sandbox = diagnosis.machine, diagnosis.sandbox
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("retcon", diagnosis.retcon)
    table.add_row("python", f"{diagnosis.python} ({sys.executable})")
    table.add_row("system", diagnosis.system)
    memory = "unknown" if machine.memory_gb is None else f"{machine.memory_gb} GiB free"
    table.add_row("machine", f"{counted(machine.cores, 'core')}, {memory}, disk {machine.disk_gb} GiB free here")
    table.add_row("torch threads", f"{machine.threads} unless a recipe says otherwise (run.threads)")
    for extra, names in diagnosis.packages.items():
        known = ", ".join(f"{name} {diagnosis.versions[name] or 'absent'}" for name in names)
        if extra:
            table.add_row(rf"\[{extra}]", mark(diagnosis.extras[extra], known))
        else:
            table.add_row("core", known)
    for label, text in sandbox_rows("sandbox", sandbox):
        table.add_row(label, text)
    console = Console()
    console.print(table)
    print_advice(console, diagnosis.advice)
