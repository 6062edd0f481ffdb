"""Registries of plug-ins: by shipped module, entry point or import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules, walk_packages
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from retcon.core.errors import RecipeError, RetconError, format_user_error, nearest

T = TypeVar("T")

GROUP = "retcon.plugins"
"""Entry-point group of other packages: `repair.once = "my_package.once:Once"` offers a repair named `once`."""
FOLDERS: Mapping[str, str] = {
    "repair": "retcon.purify.kinds",
    "strategy": "retcon.rollout.strategies",
    "selection": "retcon.select.kinds",
    "algorithm": "retcon.train.algorithms",
    "credit": "retcon.train.credit",
    "engine": "retcon.engine.kinds",
    "tool": "retcon.tools.kinds",
    "task_family": "retcon.tasks.kinds",
    "benchmark": "retcon.tasks.benchmarks",
    "grader": "retcon.tasks.graders",
    "convention": "retcon.tasks.data.conventions",
    "demos_source": "retcon.train.demos.kinds",
    "chat_family": "retcon.chat.families",
    "transcript_format": "retcon.transcripts.formats",
    "dialect": "retcon.transcripts.formats",
    "tracker": "retcon.runs.trackers",
    "panel": "retcon.report.page",
}
"""Each kind of plug-in, with the package (or module) that holds those shipped."""


@dataclass(frozen=True)
class PluginNames:
    """Names of a kind's plug-ins; nothing is imported for them."""

    kind: str
    error: type[RetconError] = RecipeError
    besides: tuple[str, ...] = ()
    """Further names that its place in a recipe takes, such as `auto`."""
    own: str = ""
    """Object name in the example of an import path; by default from the kind."""

    @property
    def what(self) -> str:
        """Return the kind in words, for messages."""
        return self.kind.replace("_", " ")

    @cached_property
    def shipped(self) -> tuple[str, ...]:
        return modules_of(FOLDERS[self.kind])

    @property
    def names(self) -> tuple[str, ...]:
        """Return the shipped names, then those of installed packages, each sorted."""
        return (*self.shipped, *sorted(installed(self.kind)))

    @property
    def example(self) -> str:
        """Return an example of a user plug-in's import path."""
        return f"my_package.my_module:{self.own or 'My' + self.what.title().replace(' ', '')}"

    def check(self, name: str) -> None:
        """Raise the registry's error unless `name` is known or an import path."""
        if not (":" in name or name in self.besides or name in self.shipped or name in installed(self.kind)):
            raise self.unknown(name)

    def unknown(self, name: str) -> RetconError:
        """Return the error for an unknown name."""
        known = (*self.besides, *self.names)
        there = f"{', '.join(known)}, and by import path your own, such as {self.example}"
        return self.error(f"no {self.what} '{name}'{nearest(name, known)}; there are: {there}")

    def load(self, name: str) -> Any:
        """Return the unchecked object at an import path or entry point."""
        points = installed(self.kind).get(name, ())
        if len(points) > 1:
            packages = " and ".join(_package(point) for point in points)
            raise self.error(f"{self.what} '{name}' is offered by {packages}: uninstall one, or give an import path")
        if not points and ":" not in name:
            raise self.unknown(name)
        path, source = (points[0].value, f" (of package {_package(points[0])})") if points else (name, "")
        try:
            return import_object(path)
        except ImportError as error:
            raise self.error(f"{self.what} '{name}'{source} cannot be imported: {error}") from error


@dataclass(frozen=True)
class _Plugins(PluginNames, Generic[T]):
    def _fits(self, value: object) -> bool:
        raise NotImplementedError

    @property
    def _expected(self) -> str:
        raise NotImplementedError

    def _checked(self, name: str, found: object) -> T:
        """Return what fits, else raise the registry's error with what was expected and found."""
        if isinstance(found, ModuleType):
            values = self._members(found)
            if len(values) != 1:
                raise self.error(
                    f"{found.__name__} must define one {self._expected.partition(' ')[2]}, not {len(values)}"
                )
            return values[0]
        if not self._fits(found):
            raise self.error(f"{self.what} '{name}' is not {self._expected}: it is {describe_object(found)}")
        return found  # type: ignore[return-value]

    def _members(self, module: ModuleType) -> list[T]:
        raise NotImplementedError

    def find(self, name: str) -> T:
        """Return the plug-in of that name or import path.

        Raises the registry's error for an unknown name, with the nearest one, a failed import, or an object of another
        type.
        """
        if name in self.shipped:
            return self._checked(name, import_module(f"{FOLDERS[self.kind]}.{name}"))
        return self._checked(name, self.load(name))


@dataclass(frozen=True)
class Registry(_Plugins[type[T]]):
    """Registry of subclasses of `base`; each shipped one is alone in its module."""

    base: type[T] = object  # type: ignore[assignment]

    def all(self) -> Iterator[tuple[str, type[T]]]:
        """Import all classes and yield their names with them."""
        return ((name, self.find(name)) for name in self.names)

    def name_of(self, kind: type[T]) -> str:
        """Return the name by which `find` finds this class."""
        package, _, module = kind.__module__.rpartition(".")
        return module if package == FOLDERS[self.kind] else f"{kind.__module__}:{kind.__qualname__}"

    @property
    def _expected(self) -> str:
        return f"a subclass of {self.base.__module__}.{self.base.__qualname__}"

    def _fits(self, value: object) -> bool:
        return isinstance(value, type) and issubclass(value, self.base)

    def _members(self, module: ModuleType) -> list[type[T]]:
        return [v for v in vars(module).values() if self._fits(v) and v.__module__ == module.__name__]


@dataclass(frozen=True)
class InstanceRegistry(_Plugins[T]):
    """Registry of instances of `base`, by attribute `name` or one of `aliases`.

    A module, also one behind an entry point, offers its public variables that are such instances, or tuples of them.
    """

    base: type[T] = object  # type: ignore[assignment]

    @property
    def names(self) -> tuple[str, ...]:
        """Import everything and return all names and aliases, sorted."""
        return tuple(sorted({name for value in self.all() for name in _names_of(value)}))

    @property
    def example(self) -> str:
        return f"my_package.my_module:{self.own or f'MY_{self.kind.upper()}'}"

    @cached_property
    def _shipped_values(self) -> tuple[T, ...]:
        folder = import_module(FOLDERS[self.kind])
        within = walk_packages(getattr(folder, "__path__", ()), f"{folder.__name__}.")
        modules = [folder, *(import_module(module.name) for module in within)]
        return tuple({id(value): value for module in modules for value in self._members(module)}.values())

    def all(self) -> tuple[T, ...]:
        """Return the shipped instances by module, then those of installed packages."""
        return (*self._shipped_values, *(v for name in sorted(installed(self.kind)) for v in self._installed(name)))

    def _installed(self, name: str) -> Sequence[T]:
        found = self.load(name)
        return self._members(found) if isinstance(found, ModuleType) else [self._checked(name, found)]

    def find(self, name: str) -> T:
        return self.find_all(name)[0]

    def find_all(self, name: str) -> Sequence[T]:
        """Return all instances of a name, or one by import path. Raises the registry's error without any."""
        if ":" in name:
            return [self._checked(name, self.load(name))]
        if name in self.shipped:
            module = import_module(f"{FOLDERS[self.kind]}.{name}")
            if found := [value for value in self._members(module) if name in _names_of(value)]:
                return found
        found = [value for value in self.all() if name in _names_of(value)]
        if not found and name in installed(self.kind):
            found = list(self._installed(name))
        if not found:
            raise self.unknown(name)
        return found

    @property
    def _expected(self) -> str:
        return f"an instance of {self.base.__module__}.{self.base.__qualname__}"

    def _fits(self, value: object) -> bool:
        return isinstance(value, self.base) and not isinstance(value, type)

    def _members(self, module: ModuleType) -> list[T]:
        public = [value for name, value in vars(module).items() if not name.startswith("_")]
        values = [one for value in public for one in (value if isinstance(value, tuple) else (value,))]
        return [value for value in values if self._fits(value)]


def describe_object(value: object) -> str:
    """Describe a class or value for an error: `the class my_module.Mine`, `int 3`."""
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    return f"{type(value).__name__} {value!r:.80}"


def _names_of(value: object) -> tuple[str, ...]:
    return (value.name, *getattr(value, "aliases", ()))  # type: ignore[attr-defined]


def installed(kind: str) -> Mapping[str, Sequence[EntryPoint]]:
    """Map names to entry points of installed packages, for one kind."""
    return _installed().get(kind, MappingProxyType({}))


@cache
def _installed() -> Mapping[str, Mapping[str, Sequence[EntryPoint]]]:
    """Map kinds to names to entry points. Raises RecipeError for an entry point of an unknown kind."""
    found: dict[str, dict[str, list[EntryPoint]]] = {}
    for point in entry_points(group=GROUP):
        kind, _, name = point.name.partition(".")
        if kind not in FOLDERS or not name:
            raise RecipeError(f"package {_package(point)} has the entry point '{point.name}' in {GROUP}: it must be "
                f"kind.name, such as repair.once{nearest(kind, FOLDERS)}; kinds: {', '.join(FOLDERS)}")  # fmt: skip
        found.setdefault(kind, {}).setdefault(name, []).append(point)
    return found


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"


def modules_of(package: str) -> tuple[str, ...]:
    """Return the names of a package's public modules, sorted, without importing them."""
    spec = find_spec(package)
    found = iter_modules(spec.submodule_search_locations or ()) if spec is not None else ()
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


def import_object(path: str) -> Any:
    """Import the object of a path: `my_package.my_module:MINE`, `…:Mine.part`, or a module.

    Raises ImportError with the reason, and the line of the user's code that raised it.
    """
    name, _, attribute = path.partition(":")
    try:
        module = import_local(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):  # what the module itself imports
            raise ModuleNotFoundError(format_user_error(error), name=error.name) from error
        here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py"]
        raise ModuleNotFoundError(f"{error}{nearest(name, here)}", name=error.name) from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        raise ImportError(format_user_error(error)) from error
    found: Any = module
    for part in attribute.split(".") if ":" in path else ():
        if not hasattr(found, part):
            raise ImportError(f"{name} has no '{attribute}'{nearest(attribute, vars(module))}")
        found = getattr(found, part)
    return found


def import_local(name: str) -> ModuleType:
    """Import a module, also from the current folder (unlike console scripts)."""
    top = name.partition(".")[0]
    here = Path.cwd()
    if top not in sys.modules and find_spec(top) is None and ((here / top).is_dir() or (here / f"{top}.py").is_file()):
        sys.path.append(str(here))
    return import_module(name)
