"""What a program does beyond its session: files that it writes, folders that it changes, processes that it starts."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from retcon.purify.reading.trees import IMPORTS, below, source

_SHELL = re.compile(
    r"^[ \t]*((?:!|%{1,2}(?:pip|conda|mamba|uv|cd|pushd|popd|env|set_env|run|sx|system|bash|sh|script|writefile)\b)"
    r"[^\n]*)", re.MULTILINE,
)  # fmt: skip
"""IPython's lines that reach beyond the session: a shell's, packages, folders, files."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_WRITES = frozenset(
    {"write_text", "write_bytes", "to_csv", "to_json", "to_excel", "to_parquet", "to_pickle", "to_feather", "to_hdf"}
    | {"to_sql", "savefig", "savetxt", "savez", "savez_compressed", "imsave", "imwrite", "extractall", "urlretrieve"}
    | {"makedirs", "mkdir", "unlink", "rmdir", "rmtree", "copyfile", "copytree", "touch", "Popen", "make_archive"}
)
"""Whatever they are called of."""
_SYSTEM = frozenset({"os", "shutil", "subprocess"})
_SYSTEM_WRITES = frozenset(
    {"remove", "rename", "renames", "replace", "system", "popen", "move", "copy", "copy2", "run", "call", "check_call"}
    | {"check_output", "getoutput", "getstatusoutput", "chdir", "chmod", "symlink", "link", "putenv", "removedirs"}
    | {"truncate", "mkfifo", "unpack_archive"}
)
"""Called of one of those modules."""
_OPENS = frozenset({"open", "ZipFile", "TarFile"})
"""Which do it in a mode that writes."""
_SAVES = frozenset({"save", "dump"})
"""Which may do it, by what they are called of and with."""
_PATH_WRITES = frozenset({"rename", "replace", "chmod", "symlink_to", "hardlink_to"})
"""Of a path; strings and tables have some of them too."""
_REACHING = _WRITES | _SYSTEM_WRITES | _OPENS | _SAVES | _PATH_WRITES
"""Names without which no program reaches beyond the interpreter."""
_MODE = re.compile(r"[rwaxbtU+]{1,4}")


def shell_lines(text: str) -> frozenset[str]:
    """IPython's lines that reach beyond the session, as they stand."""
    return frozenset(line.strip() for line in _SHELL.findall(text)) if "!" in text or "%" in text else frozenset()


def outside(code: str, tree: ast.Module, ran: Sequence[ast.stmt]) -> frozenset[str]:
    """The calls in `ran` that reach beyond the interpreter, as source text: files opened for writing, folders,
    processes. tree: the program, by whose imports and bindings names are understood; code: its text."""
    if not may_reach_outside(code):
        return frozenset()
    names = _Names(tree)
    calls = [node for top in ran for node in below(top) if isinstance(node, ast.Call)]
    return frozenset(source(call) for call in calls if names.reaches_out(call))


def may_reach_outside(code: str) -> bool:
    """Whether a word stands in it without which no program reaches beyond the interpreter."""
    return not _REACHING.isdisjoint(_WORD.findall(code))


class _Names:
    """What a program's names stand for: modules, what is imported of them, and paths."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules: dict[str, str] = {}
        self._imported: dict[str, tuple[str, str]] = {}  # (module, name there)
        self._paths: set[str] = set()
        nodes = below(tree)
        for node in nodes:
            if isinstance(node, IMPORTS):
                self._import(node)
        for node in nodes:
            if isinstance(node, ast.Assign) and self._is_path(node.value):
                self._paths.update(target.id for target in node.targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.For | ast.comprehension) and self._is_path(node.iter):
                self._paths.update(n.id for n in [node.target] if isinstance(n, ast.Name))

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            first = alias.name.partition(".")[0]
            if isinstance(node, ast.ImportFrom):
                self._imported[alias.asname or alias.name] = (node.module or "").partition(".")[0], alias.name
            else:
                self._modules[alias.asname or first] = first

    def reaches_out(self, call: ast.Call) -> bool:
        module, name = self._called(call.func)
        if name in _WRITES or (name in _SYSTEM_WRITES and module in _SYSTEM):
            return True
        if name in _OPENS:
            return self._opens_to_write(call, module)
        if name == "save":
            return bool(call.args or call.keywords) and (isinstance(call.func, ast.Attribute) or bool(module))
        if name == "dump":
            return module == "joblib" or any(self._names_a_file(given) for given in call.args[1:2])
        return name in _PATH_WRITES and isinstance(call.func, ast.Attribute) and self._is_path(call.func.value)

    def _called(self, function: ast.expr) -> tuple[str, str]:
        """(module, name there) of what is called; the module is empty where it is of none that is known."""
        if isinstance(function, ast.Name):
            return self._imported.get(function.id, ("", function.id))
        if not isinstance(function, ast.Attribute):
            return "", ""
        root = _root(function)
        if isinstance(root, ast.Name):  # a session's earlier cell may have imported a module under its own name
            known = self._modules.get(root.id, root.id if root.id in _SYSTEM else "")
            return known or self._imported.get(root.id, ("", ""))[0], function.attr
        return "", function.attr

    def _opens_to_write(self, call: ast.Call, module: str) -> bool:
        modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
        if isinstance(call.func, ast.Attribute) and call.func.attr == "open" and not module:
            of_path = self._is_path(call.func.value)
            modes += [m for m in call.args[:1] if (of_path and not isinstance(m, ast.Constant)) or _is_mode(m)]
        return any(not isinstance(m, ast.Constant) or bool(set("wax+") & set(str(m.value))) for m in modes)

    def _is_path(self, node: ast.expr) -> bool:
        """Whether it is a path of `pathlib`, or what one of its attributes or methods gives."""
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and (self._is_path(node.left) or self._is_path(node.right))
        if isinstance(node, ast.Call):
            return self._called(node.func)[1] == "Path" or (
                isinstance(node.func, ast.Attribute) and node.func.attr not in _TEXTS and self._is_path(node.func.value)
            )
        if isinstance(node, ast.Attribute | ast.Subscript):
            texts = isinstance(node, ast.Attribute) and node.attr in _TEXTS
            return not texts and self._is_path(node.value)
        return isinstance(node, ast.Name) and (node.id in self._paths or self._called(node)[1] == "Path")

    def _names_a_file(self, node: ast.expr) -> bool:
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        return text or isinstance(node, ast.JoinedStr) or self._is_path(node)


_TEXTS = frozenset({"name", "stem", "suffix", "parts", "read_text", "read_bytes", "as_posix", "open"})
"""What a path has that is no path."""


def _is_mode(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_MODE.fullmatch(node.value))


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node
