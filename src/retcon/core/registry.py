"""What can be chosen by name, without a list of it: a kind is a module of its room's folder, or an import path."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Generic, TypeVar

from retcon.core.errors import RecipeError, nearest, raised

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """The subclasses of `base` that can be named: one in each module of `package`, called as its module is; any other
    by its import path, `my_package.my_module:MyClass`.

    what: a kind in one word, for messages, such as `repair`. Nothing is imported before it is asked for, so that a room
    may have kinds that need packages which others do without.
    """

    what: str
    package: str
    base: type[T]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Those in the package, in the order of the alphabet."""
        return modules_of(self.package)

    def find(self, name: str) -> type[T]:
        """The class of that name or import path.

        Raises RecipeError: with the nearest name where there is none, and where an import path leads nowhere or to what
        is no subclass of `base`.
        """
        if name in self.names:
            return self._only_one_in(import_module(f"{self.package}.{name}"))
        if ":" not in name:
            own = f"my_package.my_module:My{self.what.title().replace(' ', '')}"
            raise RecipeError(unknown(self.what, name, self.names, own))
        try:
            found = at_path(name)
        except ImportError as error:
            raise RecipeError(f"{self.what} '{name}' cannot be imported: {error}") from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise RecipeError(f"{self.what} '{name}' is not a subclass of {base}")
        return found

    def name_of(self, kind: type[T]) -> str:
        """What `find` finds this class by."""
        package, _, module = kind.__module__.rpartition(".")
        return module if package == self.package else f"{kind.__module__}:{kind.__qualname__}"

    def all(self) -> Iterator[tuple[str, type[T]]]:
        """(name, class) of all in the package, imported."""
        return ((name, self.find(name)) for name in self.names)

    def _only_one_in(self, module: ModuleType) -> type[T]:
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, self.base) and value.__module__ == module.__name__
        ]
        if len(found) != 1:
            raise RecipeError(
                f"{module.__name__} must define one subclass of {self.base.__qualname__}, not {len(found)}"
            )
        return found[0]


def modules_of(package: str) -> tuple[str, ...]:
    """The modules of a package in the order of the alphabet, but for those that begin with `_`; none is imported."""
    spec = find_spec(package)
    found = iter_modules(spec.submodule_search_locations or ()) if spec is not None else ()
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


def unknown(what: str, name: str, known: Collection[str], own: str) -> str:
    """What to say of a name that is not among the known ones. own: an import path such as a user's own would have."""
    there = ", ".join(known)
    return f"no {what} '{name}'{nearest(name, known)}; there are: {there}, and by import path your own, such as {own}"


def at_path(path: str) -> Any:
    """What an import path names, `my_package.my_module:MINE` or `…:Mine.part`. Raises ImportError that says why not."""
    name, _, attribute = path.partition(":")
    try:
        module = imported(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # what the module itself imports
            raise ModuleNotFoundError(raised(error), name=error.name) from error
        here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py"]
        raise ModuleNotFoundError(f"{error}{nearest(name, here)}", name=error.name) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        raise ImportError(raised(error)) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ImportError(f"{name} has no '{attribute}'{nearest(attribute, vars(module))}")
        found = getattr(found, part)
    return found


def imported(name: str) -> ModuleType:
    """The module, also one in the folder that a command was called in: a console script does not look there."""
    top = name.partition(".")[0]
    here = Path.cwd()
    if top not in sys.modules and find_spec(top) is None and ((here / top).is_dir() or (here / f"{top}.py").is_file()):
        sys.path.append(str(here))
    return import_module(name)
