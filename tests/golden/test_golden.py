"""What Retcon does is what the files in `values` say; `make.py` beside writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.make import SECTIONS, TOLERANCE, VALUES, differences, made_apart, read

SHOWN = 20


@pytest.mark.parametrize("section", SECTIONS)
def test_behaviour_is_unchanged(section: str, tmp_path: Path) -> None:
    if section in ("prompts", "training"):
        pytest.importorskip("torch", reason="needs the [train] extra")
    old, new = read(VALUES, section), made_apart(section, tmp_path)
    for values in (old, new) if section == "training" else ():
        for run in values.values():
            del run["weights"]  # another processor rounds otherwise: `make.py --base COMMIT` compares them
    found = list(differences(old, new, TOLERANCE if section == "training" else 0.0))
    if found:
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = [f"{section} changed (`tests/golden/make.py {section}` writes it anew):", *found[:SHOWN], *more]
        pytest.fail("\n".join(lines), pytrace=False)
