"""A Spark session on this machine alone: loopback, no web page, no noise, this very Python on the executors."""

from __future__ import annotations

import logging
import os
import pwd
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from runtime.errors import ConfigurationError
from spark_reports.errors import SparkReportError

_LOG = logging.getLogger(__name__)
_LOOPBACK = "127.0.0.1"
_LOG_CONFIGURATION = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log_path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@contextmanager
def local_session(
    cores: int | None = None, *, log_path: str | None = None, on_starting: Callable[[], None] = lambda: None
) -> Iterator[SparkSession]:
    """A session for one report, stopped at the end. It starts a JVM, which takes some seconds.

    ``cores`` None: all of them. ``log_path``: where Spark and its JVM write what they have to say; None: nowhere that
    stays, but when the report fails it is logged for debugging. ``on_starting`` is called just before Spark
    starts. Raises ConfigurationError when SPARK_HOME is wrong, SparkReportError when Spark cannot start.
    """
    _check_spark_home()
    _check_user()
    on_starting()
    # A path of this virtual environment: the executors must import the same code.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    with _temporary_directory() as directory:
        log_path = os.path.abspath(log_path or os.path.join(directory, "spark.log"))
        configuration_path = os.path.join(directory, "log4j2.properties")
        with open(configuration_path, "w", encoding="utf-8") as configuration:
            configuration.write(_LOG_CONFIGURATION.format(log_path=log_path))
        builder = SparkSession.builder.master(f"local[{cores or os.cpu_count() or 1}]").appName("bkctl audit")
        settings = {
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.driver.host": _LOOPBACK,
            # One short job: time to start is all that counts, so no second compiler, no code generation, few threads.
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile=file:{configuration_path} -Djava.io.tmpdir={directory} "
                f"-Duser.home={directory} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
            ),
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.local.dir": directory,
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.session.timeZone": "UTC",
            # A report has few rows after its aggregations: the default of 200 is all start-up cost.
            "spark.sql.shuffle.partitions": str(2 * (cores or os.cpu_count() or 1)),
            "spark.sql.warehouse.dir": os.path.join(directory, "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        with _logged_on_failure(log_path):
            with _jvm_messages_in(log_path), _signals_noted() as noted:
                try:
                    session = builder.getOrCreate()
                except Exception as error:  # the JVM fails in many ways, all foreign
                    raise SparkReportError(f"Spark did not start: {_last_log_lines(log_path) or error}") from error
            try:
                for number in noted[:1]:
                    signal.raise_signal(number)
                yield session
            finally:
                session.stop()


@contextmanager
def _temporary_directory() -> Iterator[str]:
    try:
        temporary = tempfile.TemporaryDirectory(prefix="bkctl-spark-")
    except OSError as error:
        raise ConfigurationError(
            f"Spark needs a directory for temporary files ({error.strerror}): set TMPDIR to a writable one"
        ) from error
    with temporary as directory:
        yield directory


def _check_spark_home() -> None:
    """PySpark runs whatever SPARK_HOME names; without the variable it uses its own Spark."""
    home = os.environ.get("SPARK_HOME")
    if home is not None and not os.access(os.path.join(home, "bin", "spark-submit"), os.X_OK):
        raise ConfigurationError(
            f"SPARK_HOME={home} is not a Spark installation: it has no bin/spark-submit; unset SPARK_HOME to use "
            "the Spark that bkctl was installed with"
        )


def _check_user() -> None:
    """Spark's libraries want the name of the user, which a container that runs with any other uid does not have."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigurationError(
            f"Spark needs a user with a name, and user id {os.getuid()} has none in /etc/passwd: add it, or run bkctl "
            "audit without --spark, which has the same result"
        ) from None


@contextmanager
def _signals_noted() -> Iterator[list[signal.Signals]]:
    """Note SIGINT and SIGTERM instead of acting upon them; for the caller to raise later.

    A JVM whose starter is interrupted while it waits for it never ends: it fails to tell its port and hangs.
    """
    noted: list[signal.Signals] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals come to the main thread alone
        return

    def note(number: int, _: object) -> None:
        noted.append(signal.Signals(number))

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is note:  # Spark sets a handler of its own, which also cancels its jobs
                signal.signal(number, handler)


@contextmanager
def _logged_on_failure(log_path: str) -> Iterator[None]:
    """Log what Spark wrote about a failure, before its log is deleted with the session's directory."""
    try:
        yield
    except Exception:
        _LOG.debug("output of Spark:\n%s", _read(log_path))
        raise


def _read(log_path: str) -> str:
    with open(log_path, encoding="utf-8", errors="replace") as log:
        return log.read()


def _last_log_lines(log_path: str) -> str:
    """The last line; of a Java stack trace, the last one that names an exception."""
    lines = [line.strip() for line in _read(log_path).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(("at ", "... "))), "")


@contextmanager
def _jvm_messages_in(log_path: str) -> Iterator[None]:
    """Let the JVM that is born meanwhile inherit a standard error that ends in the log.

    Before its logging is configured it prints warnings there that no setting turns off, and those are no result.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(log)
