"""What texts say, and how they say it."""

from __future__ import annotations

import pytest

from retcon.chat import family as registry
from retcon.core.texts import counted, is_url, without_turn_end


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2, 1024)] == ["0 workers", "1 worker", "2 workers", "1,024 workers"]


def test_a_url_is_distinguished_from_a_name() -> None:
    assert [is_url(text) for text in ("http://a", "https://a:1/v1", "a:80", "httpd", "")] == [True, True, *[False] * 3]


@pytest.mark.parametrize("family", registry.names())
def test_so_it_is_for_every_mark_by_which_a_family_of_chats_ends_a_turn(family: str) -> None:
    known = registry.named(family)
    assert {without_turn_end(f"It is 5.{mark}") for mark in (*known.ends, *known.stops)} == {"It is 5."}
