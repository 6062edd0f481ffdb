"""Processes that `multiprocessing` starts as new interpreters, which read the program from a file.

Standard library only. A call gets that file when it first starts one. A session's code is in no file: there
`multiprocessing` forks, and the other start methods are refused as on a system that lacks them.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from retcon.sandbox.jail.imports import after_import

MAIN = "init_main_from_path"


def write_main_when_spawning(source: str, filename: str, folder: str) -> None:
    """filename: of the program's `__main__`, which is in no file until then; folder: where it is written."""
    after_import({"multiprocessing.spawn": partial(_write_main, source, filename, folder)})


def refuse_spawning() -> None:
    """To be called in a session."""
    after_import({"multiprocessing.context": _fork_only})


def _write_main(source: str, filename: str, folder: str, module: ModuleType) -> None:
    prepare = module.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        if data.get(MAIN, "").endswith(filename):
            data[MAIN] = f"{folder}/{filename}"
            with open(data[MAIN], "wb") as file:
                file.write(source.encode("utf-8", "surrogatepass"))
        return data

    module.get_preparation_data = get_preparation_data  # type: ignore[attr-defined]


def _fork_only(module: ModuleType) -> None:
    def refuse(context: Any) -> NoReturn:
        raise ValueError(
            f"the start method {context._name!r} cannot be used in a session, whose code is in no file: use "
            "multiprocessing.get_context('fork')"
        )

    refuse.__code__ = refuse.__code__.replace(co_filename="<sandbox>")  # a traceback shows nothing of this package
    module.SpawnContext._check_available = module.ForkServerContext._check_available = refuse
    module._default_context._default_context = module._concrete_contexts["fork"]  # it is forkserver since Python 3.14
