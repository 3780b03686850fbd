"""The log of a server says what a reload changed."""

from __future__ import annotations

from pathlib import Path

from commands.bookie.server_log import ServerLog
from commands.context import LogLevel, LogSettings


def test_a_reload_logs_a_new_level(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ServerLog(LogSettings(log_file=str(path)), is_debug=False)
    try:
        log.reload(LogSettings(log_file=str(path), log_level=LogLevel.DEBUG))
        log.reload(LogSettings(log_file=str(path), log_level=LogLevel.DEBUG))
        log.reload(LogSettings(log_file=str(path), log_level=LogLevel.ERROR))
        log.reload(LogSettings(log_file=str(path), log_level=LogLevel.WARNING))
    finally:
        log.close()
    assert [line.partition("log level = ")[2] for line in path.read_text().splitlines()] == [
        "debug (was info)",
        "error (was debug)",
        "warning (was error)",
    ]
