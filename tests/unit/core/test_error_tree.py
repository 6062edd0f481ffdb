"""The tree of errors in the docstring is the one that the classes make."""

import inspect

from retcon.core import errors


def test_the_docstring_names_every_error_at_its_place() -> None:
    drawn = {}
    parents: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip(" │├└─").split(" ")[0]
        if not name.endswith(
            ("Error", "Extra", "Ids", "Tokens", "Diverged", "Fault", "Lost", "Unavailable", "Busy", "Refused")
        ):
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
        parents[depth:] = [name]
        drawn[name] = parents[depth - 1] if depth else "Exception"
    classes = {
        name: found.__bases__[0].__name__
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if issubclass(found, errors.RetconError)
    }
    assert drawn == classes
