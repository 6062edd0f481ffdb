from __future__ import annotations

import pytest

from retcon.http.endpoints import RequestRefused
from retcon.sandbox.service.calls import decode_files, fastapi_error_body


@pytest.mark.parametrize(
    ("field", "where"),
    [
        (None, []), ("code", ["code"]), ("cells[12]", ["cells", 12]),
        ("submissions[3].solution", ["submissions", 3, "solution"]), ("files[...]", ["files"]),
    ],
)  # fmt: skip
def test_a_place_is_given_as_fastapi_gives_it(field: str | None, where: list[str | int]) -> None:
    assert fastapi_error_body(RequestRefused.invalid(field, "no"))["detail"][0]["loc"] == ["body", *where]


@pytest.mark.parametrize("name", ["\u00b2", "12", "data.1.csv", "a[0].txt"])
def test_the_name_of_a_file_is_one_step_whatever_it_holds(name: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        decode_files({name: "no base64"}, "files", "namespaces", ())
    assert fastapi_error_body(refused.value)["detail"][0]["loc"] == ["body", "files", name]
