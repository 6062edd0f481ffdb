"""What the documentation names is there: files, what is imported, keys and sections of recipes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from test_commands import PAGES, pytestmark  # noqa: F401
from test_house import ROOT, tracked

from retcon.config.load import all_keys, shipped_recipes
from retcon.config.schema import SECTIONS

CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
KEY = re.compile(rf"({'|'.join(SECTIONS)})\.([a-z_]+)(?:\s*=.*)?")
NOT_KEYS = {
    "run.json", "model.safetensors", "track.id", "repair.cut",  # files, and a field of an audit
    "rollout.n", "rollout.calculate_log_probs",  # verl's
}  # fmt: skip
FILE = re.compile(
    r"(?:[\w-]+/)*[\w-]+\.(?:py|toml|tsv|sh)|(?:docs|benchmarks|examples|recipes|tests|src|deploy)/[\w/.-]+"
)
NOT_OURS = {
    "purify/kinds/once.py",  # an example of what a reader may write
    "quick_test.py", "test_sandbox_fusion_on_cpu.py", "docs/plan_b_rollback.md",  # in others' repositories
}  # fmt: skip
MODULE = re.compile(r"retcon(?:\.\w+)+")
IMPORT = re.compile(r"^ *from (retcon[\w.]*) import (\([^)]*\)|[^#\n(]+)", re.MULTILINE)
DOCS = re.compile(r"\bdocs/[\w/-]+\.md")


def spoken(page: Path) -> list[str]:
    """Code between backticks within sentences."""
    return CODE.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@cache
def endings() -> frozenset[str]:
    """Every file of the project, also by the last parts of its path; and every folder."""
    paths = [path.relative_to(ROOT) for path in tracked("*")]
    files = {"/".join(path.parts[n:]) for path in paths for n in range(len(path.parts))}
    return frozenset(files | {str(folder) for path in paths for folder in path.parents})


@cache
def defined(module: Path) -> frozenset[str]:
    """The names at the top of a module, without running it."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = {
        name.asname or name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    }
    for node in tree.body:
        found |= {node.name} if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else set()
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def there(dotted: str) -> bool:
    """Whether a module, or a name in one, is in the package."""
    path = ROOT / "src"
    for n, part in enumerate(parts := dotted.split(".")):
        if (path / part).is_dir():
            path /= part
        elif (path / f"{part}.py").is_file():
            path /= f"{part}.py"
        else:
            module = path if path.suffix else path / "__init__.py"
            return n == len(parts) - 1 and module.is_file() and part in defined(module)
    return True


def absent(wrong: Callable[[Path], Iterable[str]]) -> list[str]:
    """Names on the pages that lead nowhere, each after its page."""
    return [f"{page.relative_to(ROOT)}: {name}" for page in PAGES for name in sorted(wrong(page))]


def test_files_that_pages_name_exist() -> None:
    def missing(page: Path) -> set[str]:
        named = {word.rstrip("/") for word in spoken(page) if FILE.fullmatch(word) and "NAME" not in word}
        return named - NOT_OURS - endings()

    assert absent(missing) == []


def test_modules_and_imports_that_pages_name_exist() -> None:
    def missing(page: Path) -> list[str]:
        text = page.read_text(encoding="utf-8")
        named = {found[0] for word in spoken(page) if (found := MODULE.match(word)) and "/" not in word}
        imported = {f"{module}.{name}" for module, names in IMPORT.findall(text) for name in re.findall(r"\w+", names)}
        return [name for name in named | imported if not there(name)]

    assert absent(missing) == []


def test_keys_of_recipes_that_pages_name_exist() -> None:
    def missing(page: Path) -> list[str]:
        found = [match for word in spoken(page) if word not in NOT_KEYS and (match := KEY.fullmatch(word))]
        return [match[0] for match in found if match[2] not in all_keys(match[1])]

    assert absent(missing) == []


def test_recipes_that_pages_name_exist() -> None:
    """Or folders of them."""
    shipped = set(shipped_recipes())
    known = shipped | {name.rpartition("/")[0] for name in shipped}
    recipe = re.compile(rf"({'|'.join({name.partition('/')[0] for name in shipped if '/' in name})})/[\w/-]+")
    assert absent(lambda page: {word for word in spoken(page) if recipe.fullmatch(word)} - known) == []


def test_pages_that_the_program_names_exist() -> None:
    """In messages and helps, also where a line of source ends within the name."""
    missing = []
    for file in tracked("src/*.py", "examples/*", "recipes/*", "deploy/*", "Makefile"):
        text = re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8", errors="replace"))
        missing += [f"{file.relative_to(ROOT)}: {page}" for page in DOCS.findall(text) if not (ROOT / page).exists()]
    assert missing == []
