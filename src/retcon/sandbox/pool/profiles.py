"""Import profiles of zygotes, and the choice of one for a program.

A program's imports are found by a pattern, not by parsing: the text is hostile, may be megabytes, and can crash
Python's own parser with the process. A wrong guess costs time, never correctness: a call imports the other modules
itself.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from retcon.core.errors import nearest
from retcon.sandbox.types import Limits

# Possessive, without backtracking, as a run of spaces may be megabytes long.
_STATEMENT = re.compile(r"(?:^|[;:])[ \t]*+(import|from)[ \t]++([^#;\n]++)", re.MULTILINE)
_BASE64 = re.compile(r"""b64decode\(["']([A-Za-z0-9+/=]++)["']""")
SCANNED = 1 << 16
"""Characters of a program that are scanned, in some milliseconds; imports stand at the beginning."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Modules that a zygote imports, in this order; submodules may be among them.

    exercise: a program that runs once in a temporary fork, to find the packages' lazy imports, which the zygote then
    imports too.
    """

    name: str
    modules: tuple[str, ...]
    exercise: str = ""

    @property
    def packages(self) -> frozenset[str]:
        """Top-level names of its modules."""
        return frozenset(module.partition(".")[0] for module in self.modules)


_STDLIB = (
    *("math", "cmath", "re", "itertools", "functools", "operator", "collections", "json", "string", "time", "typing"),
    *("heapq", "bisect", "random", "datetime", "fractions", "decimal", "statistics", "dataclasses", "copy", "enum"),
)
_NUMPY = ("numpy", "numpy.random")
_SCIPY = (*_NUMPY, "scipy", "scipy.optimize", "scipy.integrate", "scipy.interpolate", "scipy.stats")
_SYMPY = ("sympy", "mpmath", "sympy.parsing.sympy_parser")
_ALGEBRA = """
from sympy import *
x, y = symbols("x y")
solve(x**2 - 5*x + 6, x), solve([x + y - 3, x - y - 1], [x, y]), solveset(x**2 - 1, x), solve(x**2 < 4, x)
integrate(sin(x) * exp(x), x), integrate(1 / (x**3 + 1), (x, 0, 1)), simplify(sin(x)**2 + cos(x)**2)
nsolve(cos(x) - x, 1), factor(x**3 - 1), summation(x**2, (x, 1, 10)), latex(x**2), pretty(x / 2), factorint(360)
Matrix([[1, 2], [3, 4]]).eigenvals(), dsolve(Derivative(Function("f")(x), x) - x), limit(sin(x) / x, x, 0)
diophantine(x**2 + y**2 - 25)
"""
BARE = Profile("bare", ())
BUILT_IN = (
    BARE,
    Profile("stdlib", _STDLIB),
    Profile("numpy", (*_STDLIB, *_NUMPY)),
    Profile("sympy", (*_STDLIB, *_SYMPY), _ALGEBRA),
    Profile("scipy", (*_STDLIB, *_SCIPY)),
    Profile("science", (*_STDLIB, *_SCIPY, *_SYMPY), _ALGEBRA),
)
"""From the smallest to the largest: each module that is preloaded makes every fork slower (docs/sandbox/sandbox.md)."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package's settings.

    modules: further modules of it that programs use. exercise: typical work; see `Profile`. memory_mb, cpu_seconds: a
    call's needs for the exercise after preloading, with a margin (`benchmarks/sandbox.py --packages`).
    """

    exercise: str
    memory_mb: int
    cpu_seconds: float
    modules: tuple[str, ...] = ()


PACKAGES = {
    "pandas": Package(
        """
import io, pandas as pd
table = pd.read_csv(io.StringIO("a,b,day\\n1,x,2024-01-01\\n2,y,2024-01-02"), parse_dates=["day"])
table.describe(), table.groupby("b").agg({"a": "sum"}), table.merge(table, on="b"), table.pivot_table("a", "b")
table.set_index("day").resample("D").sum(numeric_only=True), str(table), table.to_csv(), table.eval("a + 1")
""",
        memory_mb=64,
        cpu_seconds=1.0,
    ),
    "matplotlib": Package(
        """
import io, matplotlib.pyplot as plt
figure, axes = plt.subplots()
axes.plot([1, 2], label="$x^2$"), axes.bar([1], [2]), axes.set_title("a"), axes.legend(), plt.tight_layout()
plt.savefig(io.BytesIO(), format="png"), plt.close("all")
""",
        memory_mb=64,
        cpu_seconds=1.0,
        modules=("matplotlib.pyplot",),
    ),
    "sklearn": Package(
        """
from sklearn import cluster, datasets, decomposition, ensemble, linear_model, metrics, model_selection, naive_bayes
from sklearn import neighbors, neural_network, pipeline, preprocessing, svm, tree
x, y = datasets.load_iris(return_X_y=True)
model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression())
model_selection.cross_val_score(model, x, y), ensemble.RandomForestClassifier(5).fit(x, y).predict(x)
cluster.KMeans(2, n_init=1).fit(x), decomposition.PCA(2).fit_transform(x), svm.SVC().fit(x, y)
""",
        memory_mb=128,
        cpu_seconds=1.0,
        modules=("sklearn.base",),
    ),
    "torch": Package(
        """
import torch
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
loss = torch.nn.functional.cross_entropy(model(torch.rand(4, 1, 4, 4)), torch.tensor([0, 1, 0, 1]))
loss.backward(), optimizer.step(), str(torch.rand(2)), torch.linalg.svd(torch.rand(3, 3)), torch.rand(2).numpy()
""",
        memory_mb=128,
        cpu_seconds=1.0,
    ),
}
"""Packages that programs use most besides the built-in ones."""

DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "bs4": "beautifulsoup4",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
}
"""pip's names of packages that are imported by other names."""


def build_profiles(packages: Sequence[str] | Mapping[str, Sequence[str]]) -> tuple[Profile, ...]:
    """Return the built-in profiles, then one for each of `packages`.

    packages: names to import, or a mapping from a profile's name to its modules. After several names comes one more
    profile with all of them. It replaces a built-in one of its name. Raises ValueError for an invalid module name.
    """
    if isinstance(packages, str):
        raise ValueError(f"packages={packages!r} is one text: give a sequence of names, ({packages!r},)")
    given = packages if isinstance(packages, Mapping) else {name: (name,) for name in packages}
    for modules in given.values():
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                names = [f": write {name!r}" for name, pip in DISTRIBUTIONS.items() if pip == module.lower()]
                raise ValueError(f"package {module!r} is not the name of a module to import{''.join(names)}")
    own = [_profile(name, modules) for name, modules in given.items()]
    if not isinstance(packages, Mapping) and len(given) > 1:
        own.append(_profile("+".join(given), tuple(given)))
    return tuple(profile for profile in BUILT_IN if profile.name not in given) + tuple(own)


def _profile(name: str, modules: Sequence[str]) -> Profile:
    known = [PACKAGES[module] for module in modules if module in PACKAGES]
    more = [module for package in known for module in package.modules]
    return Profile(name, (*_STDLIB, *modules, *more), "".join(package.exercise for package in known))


def check_limits(profiles: Iterable[Profile], limits: Limits) -> None:
    """Check that calls can use preloaded packages under `limits`; else raise ValueError."""
    for profile in profiles:
        for name in profile.modules:
            for key in ("memory_mb", "cpu_seconds") if name in PACKAGES else ():
                found, needed = getattr(limits, key), getattr(PACKAGES[name], key)
                if found < needed:
                    raise ValueError(
                        f"{key} is {found:g}, and calls that use {name} need {needed:g}: raise {key}, or leave {name} "
                        "out of `packages`"
                    )


def find_profile(name: str, profiles: Sequence[Profile]) -> Profile:
    """Return the profile of that name. Raises ValueError, which names the nearest."""
    for profile in profiles:
        if profile.name == name:
            return profile
    names = [profile.name for profile in profiles]
    raise ValueError(f"no profile {name!r}{nearest(name, names)}: there are {', '.join(names)}")


def append_wrapped(code: str) -> str:
    """Append programs that `code` holds in base64 (rStar2-Agent's and CLEANER's wrappers)."""
    inner = []
    for match in _BASE64.finditer(code):
        try:
            inner.append(base64.b64decode(match[1], validate=True).decode())
        except ValueError:
            continue
    return "\n".join((code, *inner)) if inner else code


def find_imports(code: str) -> frozenset[str]:
    """Return the top-level names of import statements in `code`, by a pattern.

    It does not find `__import__` and importlib, but may find an import statement inside a string. In linear time for
    any text.
    """
    found = set()
    for keyword, clause in _STATEMENT.findall(code.replace("\\\n", " ")):
        if keyword == "from":
            found.add(_module_before(clause, "import"))
        else:
            found.update([_module_before(name, "as") for name in clause.split(",")])
    return frozenset(top for name in found if (top := name.partition(".")[0]).isidentifier())


def _module_before(clause: str, word: str) -> str:
    """Return the module before `word`, or alone; else ""."""
    words = clause.split(None, 2)
    return words[0] if len(words) == 1 or (words and words[1].startswith(word)) else ""


class Chooser:
    """Choice of a profile for a program; the first profile must be empty."""

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = {profile.name: profile for profile in profiles}
        self._covers = {profile.name: profile.packages for profile in profiles}
        self._preloaded = frozenset[str]().union(*self._covers.values())

    def learn(self, profile: str, packages: Iterable[str]) -> None:
        """Record the imports (top-level names) of a profile's zygote."""
        self._covers[profile] |= self._preloaded & frozenset(packages)

    def drop(self, profile: str) -> None:
        """Exclude a profile from now on."""
        del self._covers[profile]

    def __call__(self, code: str, warm: Container[str] = (), besides: Iterable[str] = ()) -> str:
        """Return the name of the profile for `code`: of those with most of its imports the first in `warm`, else the
        first.

        Of two with as many but different ones the later, as the pool's `packages` come last. besides: packages that
        count among its imports.
        """
        code = code[:SCANNED]
        needed = find_imports(append_wrapped(code)).union(besides) & self._preloaded
        if not needed:
            return BARE.name
        had = {name: needed & covers for name, covers in self._covers.items()}
        most = max(map(len, had.values()))
        best = [name for name, packages in had.items() if len(packages) == most]
        best = [name for name in best if had[name] == had[best[-1]]]
        return next((name for name in best if name in warm), best[0])
