from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.storage.json_text import JsonTextError, decode_json


class Named(msgspec.Struct, frozen=True):
    name: str = ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (b"\xff", "malformed"),
        (b'{"name":5}', r"Expected `str`, got `int` - at `\$\.name`"),
        (b'{"name":"\x80"}', "invalid start byte"),
        (b'{"other":' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_such_json_is_one_error_that_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(JsonTextError, match=reason):
        decode_json(data, Named)
    assert decode_json(b'{"other":1,"name":"\xc3\xbc"}', Named) == Named("\u00fc")


@given(st.binary(max_size=40) | st.binary(max_size=20).map(lambda data: b'{"name":"' + data + b'"}'))
@example(b'"\x80"')
def test_any_bytes_are_a_value_or_that_error(data: bytes) -> None:
    for kind in (Named, dict[str, Any], object):
        with contextlib.suppress(JsonTextError):
            decode_json(data, kind)
