"""The log of a server: what a reload changes, and one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkctl.commands.config import Settings
from bkctl.commands.context import LogFormat, LogSettings
from bkctl.commands.server_log import ServerLog
from bkctl.log_setup import configure_logging
from bkctl.runtime.log_level import LogLevel, change_log_level, log_level
from tests.processes import free_port, run_bkctl, start_bkctl
from tests.until import wait_until

DEADLINE_S = 60.0
FIELDS = ["Timestamp", "SeverityText", "Body", "Attributes"]


@contextlib.contextmanager
def log_to(path: Path, log_format: LogFormat = LogFormat.TEXT, *, is_debug: bool = False) -> Iterator[ServerLog]:
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    log = ServerLog(LogSettings(log_file=str(path), log_format=log_format), is_debug=is_debug)
    try:
        yield log
    finally:
        log.close()
        for handler, formatter in zip(logging.getLogger().handlers, formatters, strict=True):
            handler.setFormatter(formatter)


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a JSON log; every line must be one."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(list(each) == FIELDS for each in found)
    return found


def test_a_reload_logs_a_new_level(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log_to(path) as log:
        for level in (LogLevel.DEBUG, LogLevel.DEBUG, LogLevel.ERROR, LogLevel.WARNING):
            log.reload(LogSettings(log_file=str(path), log_level=level))
    assert [line.partition("log level = ")[2] for line in path.read_text().splitlines()] == [
        "debug (was info)",
        "error (was debug)",
        "warning (was error)",
    ]


def test_a_reload_compares_the_format_with_the_one_in_use(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log_to(path, LogFormat.JSON) as log:
        for log_format in (LogFormat.TEXT, LogFormat.TEXT, LogFormat.JSON):
            log.reload(LogSettings(log_file=str(path), log_format=log_format))
    assert [each["Body"] for each in objects(path.read_text())] == [
        "a changed setting needs a restart: the log format"
    ] * 2


def test_a_reload_keeps_a_level_set_at_run_time_unless_the_setting_changes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log_to(path) as log:
        change_log_level(LogLevel.DEBUG, "the operator")
        log.reload(LogSettings(log_file=str(path)))
        assert log_level() is LogLevel.DEBUG
        log.reload(LogSettings(log_file=str(path), log_level=LogLevel.WARNING))
        assert log_level() is LogLevel.WARNING
        change_log_level(LogLevel.INFO, "the operator")
        log.reload(LogSettings(log_file=str(path)))
        assert log_level() is LogLevel.INFO
    sentences = (
        "the operator: log level = debug (was info)",
        "log level debug, set at run time, stays; the setting is info",
        "setting changed: log level = warning (was debug)",
        "the operator: log level = info (was warning)",
    )
    lines = path.read_text().splitlines()
    assert [line.endswith(sentence) for line, sentence in zip(lines, sentences, strict=True)] == [True] * 4


def test_each_record_is_one_line_also_with_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with log_to(path, LogFormat.JSON) as log:
        logger = logging.getLogger("some.place")
        logger.warning("two\nlines\x1b[31m \u2028 %s", "é\udc80", extra={"attributes": {"free_bytes": 5}})
        try:
            json.loads("bad\nvalue")
        except ValueError:
            logger.exception("it failed")
        logger.info("nothing raised", exc_info=True)
        log.reopen()
    first, second, third, fourth = objects(path.read_text())
    assert first["Body"] == "two\nlines\x1b[31m \u2028 é\udc80"
    assert first["SeverityText"] == "WARN"
    assert first["Attributes"] == {"logger": "some.place", "thread": "MainThread", "free_bytes": 5}
    assert first["Timestamp"].endswith("Z")
    assert second["SeverityText"] == "ERROR"
    assert second["Attributes"]["exception.type"] == "JSONDecodeError"
    assert second["Attributes"]["exception.message"] == "Expecting value: line 1 column 1 (char 0)"
    assert second["Attributes"]["exception.stacktrace"].startswith("Traceback (most recent call last):\n")
    assert (third["Body"], fourth["Body"]) == ("nothing raised", "log file reopened")
    assert path.read_bytes().isascii()
    assert b"\x1b" not in path.read_bytes()


def test_what_python_would_print_is_logged_too(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("in a thread")

    class Unfinished:
        def __del__(self) -> None:
            raise KeyError("at the end")

    hooks = threading.excepthook, sys.unraisablehook
    path = tmp_path / "log"
    with log_to(path, LogFormat.JSON):
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
        Unfinished()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old name", DeprecationWarning, stacklevel=1)
    uncaught, ignored, warned = objects(path.read_text())
    assert uncaught["Body"] == "thread worker ended with an error"
    assert uncaught["Attributes"]["exception.type"] == "OSError"
    assert ignored["Attributes"]["exception.type"] == "KeyError"
    assert "DeprecationWarning: old name" in warned["Body"]
    assert (threading.excepthook, sys.unraisablehook) == hooks


@pytest.mark.cluster
def test_a_bookie_writes_json_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    """A bookie without any configuration: its warnings and messages have the same form as its log."""
    log = tmp_path / "stderr"
    arguments = ("bookie", "start", "--log-format", "json", "--port", str(free_port()), "--set", "openFileLimit=1")
    with log.open("wb") as stderr:
        process = start_bkctl(*arguments, "--set", "bookieProt=1", cwd=tmp_path, stderr=stderr)
    try:
        wait_until(lambda: "listening on port" in log.read_text(), process=process, tell=log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    bodies = [each["Body"] for each in objects(log.read_text())]
    assert any("unknown key bookieProt" in body for body in bodies)
    assert any("using an embedded ZooKeeper" in body for body in bodies)
    assert "shut down cleanly" in bodies[-1]


def test_a_failed_start_ends_with_a_json_line(tmp_path: Path) -> None:
    own = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"), "--timeout", "500ms")
    start = ("bookie", "start", "-u", "zk://127.0.0.1:1/ledgers", "--port", "0", *own, "--set", "allowLoopback=true")
    failed = run_bkctl(*start, BKCTL_LOG_FORMAT="json")
    assert failed.exit_code == 2
    last = objects(failed.stderr)[-1]
    assert last["SeverityText"] == "ERROR"
    assert last["Body"].startswith("no ZooKeeper server responds at 127.0.0.1:1")
    with_traceback = objects(run_bkctl(*start, "--debug", BKCTL_LOG_FORMAT="json").stderr)[-1]
    assert with_traceback["Attributes"]["exception.type"] == "MetadataUnavailableError"

    in_a_file = run_bkctl(*start, "--log-format", "json", "--log-file", str(tmp_path / "log"))
    assert "bookie stopped by an error: no ZooKeeper" in objects((tmp_path / "log").read_text())[-1]["Body"]
    assert objects(in_a_file.stderr)[-1]["Body"].startswith("no ZooKeeper server responds")


def raised(error: Exception) -> Exception:
    """The error, with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


@pytest.mark.parametrize("is_debug", [False, True])
@pytest.mark.parametrize(
    ("error", "is_exhaustion"),
    [(MemoryError(), True), (RuntimeError("can't start new thread"), True), (RuntimeError("a defect"), False)],
)
def test_without_memory_there_is_a_traceback_only_with_debug(
    tmp_path: Path, error: Exception, is_exhaustion: bool, is_debug: bool
) -> None:
    """Neither on stderr nor in a log file."""
    path = tmp_path / "log"
    restore = configure_logging(Settings(is_debug=is_debug), sys.stderr, is_server=True)
    try:
        settings = LogSettings(log_file=str(path))
        with contextlib.closing(ServerLog(settings, is_debug=is_debug)):
            logging.getLogger("bkctl.runtime.bookie").error("reads failed", exc_info=raised(error))
    finally:
        restore()
    said = path.read_text()
    assert "reads failed" in said
    assert ("Traceback" in said) is (is_debug or not is_exhaustion)
