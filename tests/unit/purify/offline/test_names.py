"""What programs leave behind and need, as far as it can be told from their text."""

from __future__ import annotations

import pytest

from retcon.purify.programs import (
    assertions,
    effects,
    goals,
    handlers,
    needs,
    only_constants,
    runs_nothing,
    works_out,
)


@pytest.mark.parametrize(
    ("code", "before", "defined"),
    [
        ("x = 1\ny = x / 0\nz = 2", 2, {"x"}), ("x = 1\ny = x / 0\nz = 2", None, {"x", "y", "z"}),
        ("import math as m\nfrom a.b import c\nm.f()", 3, {"m", "c"}),
        ("for i in range(3):\n    t = i\n    1 / 0\nu = 1", 3, {"i", "t"}),
        ("def f():\n    inner = 1\nf()", 3, {"f"}),
        ("[k for k in range(3)]\nwith open('f') as g:\n    pass", None, {"g"}),
        (" import math\nx = 1", None, {"math", "x"}), ("print 'old'\nimport os\nv = 1", None, {"os", "v"}),
        ("!pip install x\nw = 1", None, {"w"}), ("x = 1", 0, set()), ("for i in f():\n    t = i", 1, {"i", "t"}),
        ("rows = [\n    1 / 0,\n]", 2, set()),
        ("import os.path\ntry:\n    pass\nexcept ValueError:\n    pass", None, {"os"}),
    ],
)  # fmt: skip
def test_what_ran_before_a_line_failed_has_bound_names(code: str, before: int | None, defined: set[str]) -> None:
    assert effects(code, before).defined == defined


def test_changes_in_place_and_beyond_the_session_are_seen() -> None:
    left = effects(
        "rows.append(1)\ndf['a'] = 2\ncount += 1\nown = []\nown.append(1)\nopen('f', mode='w')\nos.remove('g')"
    )
    assert left.changed == {"rows", "df", "count", "os"}
    assert left.outside == {"open('f', mode='w')", "os.remove('g')"}
    assert effects("items.remove(1)\nopen('f')\nopen('f', 'rb')").outside == frozenset()
    assert effects("!pip install -q a\n%pip install b\nos.chdir('c')\n%cd d\n!ls\nx = 7\nx %2\n%time x", 5).outside == {
        "!pip install -q a", "%pip install b", "os.chdir('c')", "%cd d"
    }  # fmt: skip
    assert effects("del rows, own.x\nall.append(f(1))", 2).changed == {"rows", "own", "all"}
    assert effects("%%bash\npip install x").outside == {"%%bash"}
    assert effects("open('f', 'w')\nmade()()").outside == {"open('f', 'w')"}, "a call may be of what a call gave"


PATH = "from pathlib import Path\n"


@pytest.mark.parametrize(
    ("imports", "reaching"),
    [
        ("", "np.save('a.npy', x)"), ("", "np.savez('a.npz', x=x)"), ("", "img.save('a.png')"),
        ("", "plt.imsave('a.png', x)"), ("", "joblib.dump(model, f'{name}.pkl')"),
        ("from joblib import dump\n", "dump(model, name)"), ("", "tool.dump(x, 'a.json')"),
        ("", "tool.dump(x, f'{name}.json')"), ("", "df.to_sql('t', connection)"), ("", "shutil.copy2('a', 'b')"),
        ("import shutil as sh\n", "sh.make_archive('a', 'zip')"),
        ("from shutil import rmtree as clear\n", "clear('a')"), ("from os import chdir\n", "chdir('/data')"),
        ("from subprocess import run\n", "run(['make'])"), ("import subprocess as sp\n", "sp.run(['make'])"),
        ("import zipfile\n", "zipfile.ZipFile('a.zip', 'w')"), (PATH, "Path('a').open('w')"),
        ("", "path.open(mode='a')"), ("", "path.open('w')"),
        ("from joblib import numpy_pickle\n", "numpy_pickle.dump(model, name)"),
        ("from joblib.numpy_pickle import dump\n", "dump(model, name)"),
        ("import joblib.numpy_pickle as store\n", "store.dump(model, name)"),
        ("from numpy import save\n", "save('a.npy', x)"), (PATH, "Path('a').chmod(0o600)"),
    ],
)  # fmt: skip
def test_what_writes_files_moves_them_or_starts_processes_is_seen_by_whatever_name(imports: str, reaching: str) -> None:
    assert effects(imports + reaching).outside == {reaching.replace("0o600", "384")}


@pytest.mark.parametrize(
    "code",
    [
        "df.rename(columns={'a': 'b'})\nseries.rename('b')\ndf.replace(1, 2)\n'a'.replace('a', 'b')\nitems.copy()",
        "run(3)\ncall()\nsave(x)\nform.save()\nx.move(1)",
        "from . import save\nsave(x)",
        "json.dumps(x)\njson.dump(x, file)\nyaml.dump(x)",
        "from PIL import Image\nImage.open('a')\nbook.open('page')\nbook.open('page', 'XML')\nnp.load('a.npy')",
        PATH + "p = Path('a.txt')\np.name.replace('a', 'b')\np.read_text().replace('a', 'b')\nstr(p).replace('a', 'b')",
        PATH + "p = Path('a.txt')\np.open()\np.open('rb')\np.open(encoding='utf-8')",
        "from mine import run, copy\nrun(['make'])\ncopy(x)",
        "book.open(page)\n(a / b).replace(1, 2)\n(a + b).rename('c')",
        "open('a', 'r', size)\nopen('a', encoding='latin-1')",
        "tool.dump(x)\ntool.dump(x, 1)\ntool.dump('a', file, 'b')",
    ],
)
def test_what_only_sounds_like_it_is_not(code: str) -> None:
    assert effects(code).outside == frozenset()


@pytest.mark.parametrize(
    ("code", "before", "stars"),
    [
        ("from sympy import *\nfrom math import pi", None, {"from sympy import *"}),
        ("try:\n    from .a import *\nexcept ImportError:\n    pass\n1 / 0\nfrom b import *", 5, {"from .a import *"}),
        ("from sympy import *\nprint 'old'\nfrom math import*", None, {"from sympy import *", "from math import*"}),
    ],
)
def test_an_import_of_all_names_is_seen_and_binds_none_that_is_known(
    code: str, before: int | None, stars: set[str]
) -> None:
    assert {text for name, text in effects(code, before).imported if name == "*"} == stars
    assert "*" not in effects(code, before).defined


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("print(x)", {"x"}), ("x = 2\nprint(x)", set()), ("x = x + 1", {"x"}), ("x += 1", {"x"}),
        ("for x in range(3):\n    print(x)", set()), ("print([x for x in range(3)])", set()),
        ("def f(x):\n    return x\nf(1)", set()), ("def f():\n    return x\nx = 1\nf()", set()),
        ("def f():\n    return x\nf()", {"x"}), ("print 'x is', x", {"x"}), ("y.x = 1", set()),
        ("try:\n    pass\nexcept ValueError as x:\n    print(x)", set()),
        ("def f():\n    import x\n    return x\nf()", set()), ("for n in nums:\n    x += n", {"x"}),
        ("for n in nums:\n    if n > x:\n        x = n", {"x"}), ("for n in nums:\n    x = n\n    print(x)", set()),
        ("while x < 5:\n    x = x + 1", {"x"}), ("while True:\n    x = 1\n    print(x)", set()),
        ("with open('f') as f:\n    x = x + f.read()", {"x"}),
        ("with open('f') as x:\n    print(x)\nprint(x)", set()),
        ("try:\n    x = x + 1\nexcept NameError:\n    pass", {"x"}),
        ("try:\n    x = f()\nexcept ValueError:\n    print(x)", {"x"}),
        ("try:\n    x = f()\nexcept ValueError:\n    x = 0\nprint(x)", set()),
        ("if a:\n    x = 1\nelse:\n    print(x)", {"x"}), ("if a:\n    x = 1\nelif b:\n    x = 2\nprint(x)", set()),
        ("if (x := f()) and x > 1:\n    print(x)", set()), ("match a:\n    case [x, *_]:\n        print(x)", set()),
        ("print([x for x in range(3)], x)", {"x"}), ("print([x for x in x])", {"x"}),
        ("print({y: x for y in z for x in y})", set()),
        ("def f(x):\n    return x\ndef g():\n    return x\ng()", {"x"}), ("def f(y=x):\n    return y", {"x"}),
        ("def f(x):\n    def g():\n        return x\n    return g", set()),
        ("def f():\n    global x\n    x += 1\nf()", {"x"}), ("class A:\n    x = 1\n    y = x", set()),
        ("class A:\n    x = 1\n    def f(self):\n        return x", {"x"}), ("f = lambda x: x\ng = lambda: x", {"x"}),
        ("x: int = 1\nx.y = x[0] = 2", set()), ("del x", {"x"}), ("[0 for x in z for y in x]\nprint(x)", {"x"}),
        ("x = 1\nprint([y for y in z])\nprint(x)", set()),
        ("def f():\n    return x\ndef g():\n    return 1\ng()", {"x"}), ("def f(*x, **y):\n    return x", set()),
        ("def f(*y, **x):\n    return x", set()), ("def f(*, x):\n    return x", set()),
        ("def f(*, y=x):\n    return y", {"x"}), ("def f(y: x):\n    return y", {"x"}),
        ("def f() -> x:\n    return 1", {"x"}), ("@x\ndef f():\n    return 1", {"x"}), ("y[0] += x", {"x"}),
        ("x.a += 1", {"x"}), ("try:\n    pass\nfinally:\n    print(x)", {"x"}), ("y = x if z else 0", {"x"}),
        ("x = 1\nif y:\n    z = 2\nelse:\n    print(x)", set()), ("x = 1\nclass A:\n    y = 2\nprint(x)", set()),
        ("for i in y:\n    x = 1\n    class A:\n        z = 2\n    print(x)", set()),
        ("def f():\n    try:\n        x = 1\n    except ValueError:\n        print(x)\nf()", set()),
        ("class x:\n    y = 1\nx()", set()),
    ],
)  # fmt: skip
def test_a_program_needs_what_it_reads_before_it_binds_it(code: str, needed: set[str]) -> None:
    assert needs(code, frozenset({"x"})) == needed


def test_goals_are_what_the_end_and_the_failing_line_are_about() -> None:
    code = "x, y = symbols('x y')\neq = x + y\ns = solve(eq)\nprint(s)"
    assert goals(code) == {"s"}
    assert goals(code, 2) == {"s", "eq"}
    assert goals("if") == frozenset()
    assert goals("a = 1\nb = 2\nc = 3\nprint 'old'") == {"c"}
    assert goals("eq = sum([\n    1,\n    2,\n])\nlast = 2", 3) == {"eq", "last"}


def test_what_a_print_is_given_is_worked_out_and_what_another_call_is_given_is_not() -> None:
    assert works_out("print(area(3), x + 12)") == {"area(3)", "x + 12"}
    assert works_out("show(area(3), x + 12)") == {"show(area(3), x + 12)"}


def test_of_a_program_the_end_and_the_failing_line_are_worked_out_or_all_of_it() -> None:
    code = "area(1)\nside = sum([\n    area(2),\n])\nprint(rows[0])\nb\n7"
    assert works_out(code) == frozenset()
    assert works_out(code, 3) == {"sum([area(2)])"}
    assert works_out(code, whole=True) == {"area(1)", "sum([area(2)])", "rows[0]"}
    assert works_out("f(1)\ng()\nx[0]", 1) == {"f(1)", "x[0]"}
    assert works_out("f(1)\ntotal += g(1)") == {"g(1)"}
    assert works_out("total: int = g(1)") == {"g(1)"}
    assert works_out("total: int") == frozenset()
    assert works_out("display(f(1))") == {"f(1)"}
    assert works_out("g()") == works_out("print 'old'\nf(1)") == frozenset()


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [
        ("r = f(3)", "r = 9", "r"), ("r = f(3)", "r = max(3, 4)", "r"), ("r = f(3)", "r = a + b", "r"),
        ("r = f(3)", "print(9)", None), ("r = f(3)", "r = 3 + a", None), ("r = f(3)", "r = g(9)", None),
        ("r = f(3)", "def g():\n    return 9\nr = 9", None), ("r = f(3)", "for n in rows:\n    n\nr = 9", None),
        ("r = f(3)", "rows = [n for n in data]\nr = 9", None), ("r = 3", "r = 9", None), ("r = f(3", "r = 9", None),
        ("r = f(3)", "r = 9)", None), ("r = x * y", "r = 12", "r"), ("r = x * y", "r = 3 * 4", None),
        ("r = x * y", "r = y", None), ("r = f(x)", "r = g(3)", "r"), ("r = m.f(x)", "r = m.g(3)", "r"),
        ("r = m.f(3)", "r = g(3)", None), ("x = 3\nr = x * 4", "r = 12", None), ("x = [3]\nr = x * 4", "r = 12", "r"),
        ("x = y\nr = x * 4", "r = 12", "r"), ("r = x * y\ns = 1", "r = 12\ns = 1", None),
    ],
)  # fmt: skip
def test_what_was_worked_out_and_is_only_stated(before: str, after: str, name: str | None) -> None:
    assert only_constants(before, after) == name


def test_a_program_that_only_imports_and_defines_runs_nothing() -> None:
    assert runs_nothing("import math\nfrom a import b\ndef f():\n    return g()\nclass A:\n    x = 1")
    assert not runs_nothing("def f():\n    return 1\nf()")
    assert not runs_nothing("def f(")


def test_assertions_and_handlers_are_counted() -> None:
    assert assertions("assert f(1) == 2, 'no'\nassert g") == {"f(1) == 2", "g"}
    assert handlers("try:\n    pass\nexcept A:\n    pass\nexcept B:\n    pass") == 2
    assert handlers("def (") == 0


@pytest.mark.parametrize("code", ["1" + " + 1" * 900, "assert " + "a." * 900 + "b", "x" + "[0]" * 900])
def test_a_program_that_is_nested_too_deeply_is_read_by_lines(code: str) -> None:
    program = f"total = 1\n{code}"
    assert "total" in effects(program).defined
    assert (assertions(program), works_out(program)) == (frozenset(), frozenset())
