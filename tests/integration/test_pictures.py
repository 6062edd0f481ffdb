"""The learning curves, drawn, and the page that they stand on."""

import re
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures need the [report] extra")

from comparing import comparison, repaired
from retcon.core.errors import StorageError
from retcon.report.page import Report, comparison_page
from retcon.report.plots import CURVES, draw, draw_curves, top_of


def test_the_page_needs_no_network_and_embeds_its_pictures(tmp_path: Path) -> None:
    pictures = draw_curves(comparison(steps=3).arms, tmp_path)
    embedded = {curve: file.read_bytes() for curve, file in pictures.items()}
    text = comparison_page(Report(comparison(steps=3), embedded, repaired(), ["retcon quickstart"]))
    assert len(pictures) == len(CURVES)
    assert text.count('src="data:image/png;base64,') == len(CURVES)
    assert not re.search(r"https?://|@import|<link|<script", text)
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in pictures.values())


@pytest.mark.parametrize(("greatest", "top"), [(0.09, None), (0.3, 1.0)])
def test_a_share_has_an_axis_on_which_it_can_be_read(greatest: float, top: float | None) -> None:
    (curve,) = (curve for curve in CURVES if curve.name == "pass_rate")
    assert top_of(curve, {"a": np.array([[0.0, np.nan]]), "b": np.array([[0.02, greatest]])}) == top


def test_a_picture_that_cannot_be_written_is_named_and_the_one_before_is_whole(tmp_path: Path) -> None:
    (curve,) = (curve for curve in CURVES if curve.name == "pass_rate")
    before = draw(curve, {"a": np.array([[0.0, 0.5]])}, ["a"], tmp_path).read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # as on a disk that is full
    try:
        with pytest.raises(StorageError, match=r"pass_rate\.png could not be written, and is as it was before"):
            draw(curve, {"a": np.array([[0.0, 1.0]])}, ["a"], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("pass_rate.png", before)]
    (tmp_path / "pages/pass_rate.png").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"pass_rate\.png could not be written"):
        draw(curve, {"a": np.array([[0.0, 1.0]])}, ["a"], tmp_path / "pages")


def test_curves_that_no_run_has_are_not_drawn(tmp_path: Path) -> None:
    bare = comparison(("baseline",), steps=3)
    runs = [
        replace(run, metrics=[{"step": 1, "pass_rate": 0.5}, {"step": 2, "pass_rate": None}])
        for run in bare.arms["baseline"]
    ]
    drawn = draw_curves({"baseline": runs}, tmp_path)
    assert [curve.name for curve in drawn] == ["pass_rate"]
