"""What a bookie id may look like. Source: metadata section 8.1."""

from __future__ import annotations

import re

_VALID = re.compile(r"[A-Za-z0-9.\-:-_]+")  # the range from colon to underscore is part of the rule
_HOST_AND_PORT = re.compile(r"(?P<host>.+):(?P<port>\d{1,5})")


def is_valid_bookie_id(text: str) -> bool:
    """Whether Java takes it as a bookie id; one invalid name in a directory makes every Java client hang.

    ``.`` and ``..``, which Java would take, name nobody: ZooKeeper has no such nodes, so no bookie can register so.
    """
    return _VALID.fullmatch(text) is not None and text.lower() != "readonly" and text not in {".", ".."}


def parse_host_and_port(bookie_id: str) -> tuple[str, int] | None:
    """Host and port of an id in the form ``host:port``; None for any other id."""
    found = _HOST_AND_PORT.fullmatch(bookie_id)
    if found is None:
        return None
    port = int(found["port"])
    return (found["host"], port) if 0 < port < 65536 else None
