#!/usr/bin/env python
"""Count the modules that a recipe passes through in a command.

python benchmarks/recipe_path.py train mini/grpo rl.steps=1 --out runs/path
python benchmarks/recipe_path.py train mini/grpo rl.steps=1 --dry-run

A module counts if one of its functions takes or returns the recipe (a `Recipe`). Modules where a recipe
is made or checked (`retcon.config`) are listed apart: they are the recipe's own. Threads are followed, processes not.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from types import FrameType

from retcon.cli.app import main
from retcon.config.schema import Recipe


def count_modules(words: list[str]) -> dict[str, set[str]]:
    """Run `retcon` with these words; return module to the functions that took or returned a recipe."""
    passed: defaultdict[str, set[str]] = defaultdict(set)

    def follow(frame: FrameType, event: str, result: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event not in ("call", "return") or not module.startswith("retcon."):
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if event == "call" else ()
        if isinstance(result, Recipe) or any(isinstance(frame.f_locals.get(name), Recipe) for name in names):
            passed[module].add(code.co_name)

    sys.argv = ["retcon", *words]
    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        main()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return passed


if __name__ == "__main__":
    found = count_modules(sys.argv[1:])
    for module, functions in sorted(found.items()):
        print(f"{module:32} {', '.join(sorted(functions))}")
    own = [module for module in found if module.startswith("retcon.config.")]
    print(f"{len(found)} modules, {len(found) - len(own)} without retcon.config")
