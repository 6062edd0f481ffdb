"""Import profiles: what a zygote has imported before it forks, and which one serves a given program.

A program's imports are found by a pattern, not by parsing: the text is hostile, it may be megabytes, and Python's own
parser can be driven to take the process down with it. A wrong guess costs time, never correctness: what is not
preloaded is imported by the call itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from retcon.core.errors import nearest

_STATEMENT = re.compile(r"(?:^|[;:])[ \t]*(?:import|from)[ \t]+([^#;\n]+(?:\\\n[^#;\n]+)*)", re.MULTILINE)
_ALIAS = re.compile(r"\s+as\s+\w+")


@dataclass(frozen=True, slots=True)
class Profile:
    """modules: imported by its zygote, in this order; submodules may be among them."""

    name: str
    modules: tuple[str, ...]

    @property
    def packages(self) -> frozenset[str]:
        """Top-level names that it serves."""
        return frozenset(module.partition(".")[0] for module in self.modules)


BARE = Profile("bare", ())
BUILT_IN = (
    BARE,
    Profile("numpy", ("numpy", "numpy.random", "numpy.linalg")),
    Profile("sympy", ("sympy", "mpmath")),
    Profile("scipy", ("numpy", "scipy", "scipy.optimize", "scipy.integrate", "scipy.linalg", "scipy.special")),
    Profile("science", ("numpy", "sympy", "mpmath", "scipy", "scipy.optimize", "scipy.integrate", "scipy.linalg")),
)
"""From the smallest to the largest: the first that covers a program's imports serves it."""


def with_packages(packages: Sequence[str] | Mapping[str, Sequence[str]]) -> tuple[Profile, ...]:
    """The built-in profiles, then one for each of `packages`: names to import, or a profile's name to its modules.

    A name that is built in already is replaced. Raises ValueError where a name is no module's.
    """
    if isinstance(packages, str):
        raise ValueError(f"packages={packages!r} is one text: give a sequence of names, ({packages!r},)")
    given = packages if isinstance(packages, Mapping) else {name: (name,) for name in packages}
    for modules in given.values():
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"package {module!r} is not the name of a module to import")
    own = tuple(Profile(name, tuple(modules)) for name, modules in given.items())
    return tuple(profile for profile in BUILT_IN if profile.name not in given) + own


def find(name: str, profiles: Sequence[Profile]) -> Profile:
    """The profile of that name. Raises ValueError that names the nearest."""
    for profile in profiles:
        if profile.name == name:
            return profile
    names = [profile.name for profile in profiles]
    raise ValueError(f"no profile {name!r}{nearest(name, names)}: there are {', '.join(names)}")


def imports(code: str) -> frozenset[str]:
    """Top-level names that `code` imports anywhere in it, as far as a pattern sees.

    `__import__` and importlib are not seen; an import statement inside a string may be.
    """
    found = set()
    for match in _STATEMENT.finditer(code):
        clause = match[1].replace("\\\n", " ")
        if match[0].lstrip(";: \t").startswith("from"):
            clause = clause.partition(" import")[0]
        for name in _ALIAS.sub("", clause).split(","):
            found.add(name.strip().partition(".")[0])
    return frozenset(name for name in found if name.isidentifier())


class Chooser:
    """Chooses among profiles. Those in `broken` (by name) are passed over; `bare` must not be among them."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = tuple(profiles)
        self.profile = {profile.name: profile for profile in profiles}.__getitem__
        self.broken: set[str] = set()
        self._preloaded = frozenset[str]().union(*(profile.packages for profile in profiles))
        names = "|".join(sorted(map(re.escape, self._preloaded)))
        self._mention = re.compile(rf"\b(?:{names})\b") if names else None

    def __call__(self, code: str, warm: Collection[str] = ()) -> str:
        """Name of the profile for `code`: of those that cover most of its imports the smallest that is in `warm`,
        else the smallest."""
        if self._mention is None or not self._mention.search(code):
            return BARE.name
        return self.covering(imports(code) & self._preloaded, warm).name

    def covering(self, needed: Iterable[str], warm: Collection[str] = ()) -> Profile:
        needed = frozenset(needed)
        usable = [profile for profile in self.profiles if profile.name not in self.broken]
        most = max(len(needed & profile.packages) for profile in usable)
        best = [profile for profile in usable if len(needed & profile.packages) == most]
        return next((profile for profile in best if profile.name in warm), best[0])
