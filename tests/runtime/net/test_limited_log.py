"""One line per cause and interval, and none is lost from the count."""

from __future__ import annotations

import logging

import pytest

from bkctl.runtime.net.limited_log import LimitedLog
from tests.until import until

LOGGER = logging.getLogger("tests.limited")


async def test_repeated_causes_are_counted_and_told_when_the_interval_ends(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(LOGGER, 0.05, "connections")
    for number in range(5):
        log.report(f"peer {number}", f"a frame of {number} bytes")
    log.report("peer 9", "another cause")
    assert [record.getMessage() for record in caplog.records] == ["peer 0: a frame of 0 bytes", "peer 9: another cause"]
    await until(lambda: len(caplog.records) >= 3)
    assert caplog.records[2].getMessage() == "4 more connections in 0.05 s: a frame of # bytes"
    log.close()
    assert len(caplog.records) == 3


async def test_digits_of_words_stay(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(LOGGER, 1000, "connections")
    for number in (7, 8):
        log.report(
            "peer", f"wire protocol v2, useV2WireProtocol=false, at {number}, log {number}f, 10.0.0.{number}:3181"
        )
    log.close()
    assert caplog.records[1].getMessage() == (
        "1 more connections in 1000 s: wire protocol v2, useV2WireProtocol=false, at #, log #, #.#.#.#:#"
    )


async def test_closing_tells_what_was_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = LimitedLog(LOGGER, 1000, "connections")
    log.report("a", "cause")
    log.report("b", "cause")
    log.close()
    log.close()
    assert [record.getMessage() for record in caplog.records] == ["a: cause", "1 more connections in 1000 s: cause"]
