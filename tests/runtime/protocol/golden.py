"""Frames that real bookies and clients exchanged, and vectors that Java's own digest code confirmed."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

DIRECTORY = os.path.join(os.path.dirname(__file__), "..", "..", "golden", "wire")


class Row(NamedTuple):
    """One frame: ``decoded`` is what another reader found in it."""

    name: str
    direction: str
    frame: bytes
    decoded: dict[str, Any]

    @property
    def payload(self) -> bytes:
        """The frame without its length word."""
        return self.frame[4:]

    @property
    def operation(self) -> str:
        """Operation named in the header."""
        return str(self.decoded["header"]["operation"])

    @property
    def inner(self) -> dict[str, Any]:
        """Contents of the message beside the header; empty when there is none."""
        for field, value in self.decoded.items():
            if field.endswith(("Request", "Response")):
                assert isinstance(value, dict)
                return value
        return {}


def rows(file_name: str) -> list[Row]:
    """All rows of a file of frames, in the order of their exchange."""
    with open(os.path.join(DIRECTORY, file_name), encoding="utf-8") as file:
        return [
            Row(
                row["name"],
                row.get("direction", "request"),
                bytes.fromhex(row.get("hex", "")),
                row.get("decoded", {}),
            )
            for row in map(json.loads, file)
        ]


def vectors() -> dict[str, bytes]:
    """Named byte strings: keys, bodies, frames."""
    with open(os.path.join(DIRECTORY, "vectors.json"), encoding="utf-8") as file:
        return {name: bytes.fromhex(text) for name, text in json.load(file).items()}
