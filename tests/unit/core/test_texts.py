"""What texts say, and how they say it."""

from __future__ import annotations

from retcon.core.texts import counted, is_url


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2, 1024)] == ["0 workers", "1 worker", "2 workers", "1,024 workers"]


def test_a_url_is_distinguished_from_a_name() -> None:
    assert [is_url(text) for text in ("http://a", "https://a:1/v1", "a:80", "httpd", "")] == [True, True, *[False] * 3]
