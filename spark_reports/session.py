"""Spark for one report: on this machine alone, without a web page or noise, or on a cluster.

A report needs no SQL, so there is a context and no session: a session takes longer to start than all of the rest.
"""

from __future__ import annotations

import logging
import os
import pwd
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pyspark
from py4j.clientserver import ClientServer
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.zookeeper.embedded import find_java, java_version
from bkctl.runtime.new_file import write_whole
from bkctl.spark_reports.class_archive import ClassArchive, class_archive
from bkctl.spark_reports.deployment import LOOPBACK, SparkDeployment, is_growing, start_settings
from bkctl.spark_reports.errors import SparkReportError
from bkctl.spark_reports.executor_code import code_archive
from bkctl.spark_reports.private_directory import private_directory
from bkctl.storage.adapters.filesystem import open_to_append

_LOG = logging.getLogger(__name__)
_APP_NAME = "bkctl audit"
_MASTER_TIMEOUT_S = 5.0
_EXECUTORS_POLL_S = 0.1
_EXECUTORS_SETTLED_S = 1.0
_EXECUTORS_EXPECTED_S = 10.0
_EXECUTORS_TIMEOUT_S = 300.0
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
def spark_context(
    deployment: SparkDeployment,
    *,
    log_path: str | None = None,
    on_starting: Callable[[], None] = lambda: None,
    on_waiting: Callable[[], None] = lambda: None,
) -> Iterator[SparkContext]:
    """Spark for one report, stopped at the end. It starts a JVM, which takes some seconds.

    ``log_path``: where Spark and its JVM write what they have to say; None: nowhere that stays, but when the report
    fails it is logged for debugging. ``on_starting`` is called just before Spark starts, ``on_waiting`` when a cluster
    gives no executor for a while. Raises ConfigurationError when SPARK_HOME is wrong, SparkReportError when Spark
    cannot start or gets no executor.
    """
    if deployment.is_submitted:
        on_starting()
        with _temporary_directory() as directory:
            context = SparkContext.getOrCreate()  # its settings and its log are those of spark-submit
            try:
                context.addPyFile(code_archive(directory))
                yield context
            finally:
                context.stop()
        return
    _check_spark_home()
    _check_user()
    _check_master(deployment)
    on_starting()
    _set_variables(deployment)
    with _temporary_directory() as directory:
        log_path = os.path.abspath(log_path or os.path.join(directory, "spark.log"))
        configuration_path = os.path.join(directory, "log4j2.properties")
        write_whole(configuration_path, _LOG_CONFIGURATION.format(log_path=log_path).encode())
        java = find_java("Spark")
        spark_home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
        archive = class_archive(java, java_version(java), spark_home, os.environ)
        archive_options = () if archive is None else archive.options
        settings = start_settings(deployment, directory, configuration_path, archive_options)
        chosen = SparkConf().setMaster(deployment.master_url).setAppName(_APP_NAME).setAll(list(settings.items()))
        with _logged_on_failure(log_path):
            with _signals_noted() as noted:
                try:
                    gateway = SparkContext._gateway or _start_jvm(chosen, log_path, archive)  # noqa: SLF001  one per process
                    context = SparkContext(conf=chosen, gateway=gateway)
                except Exception as error:  # the JVM fails in many ways, all foreign
                    raise SparkReportError(f"Spark did not start: {_last_log_lines(log_path) or error}") from error
            try:
                for number in noted[:1]:
                    signal.raise_signal(number)
                if not deployment.is_local:
                    wait_for_executors(context, deployment.master_url, on_waiting)
                    if deployment.standalone_addresses:
                        _take_no_more_executors(context)
                    context.addPyFile(code_archive(directory))
                yield context
            finally:
                context.stop()


def _start_jvm(settings: SparkConf, log_path: str, archive: ClassArchive | None) -> ClientServer:
    """The JVM, whose standard output and error end in the log.

    Before its logging is configured it prints warnings there that no setting turns off, and those are no result. It may
    live for some seconds longer than this process, whose output must not stay open so long.
    """
    log = open_to_append(log_path)
    try:
        begun = os.fstat(log).st_size
        gateway = launch_gateway(settings, {"stdout": log, "stderr": log})
    finally:
        os.close(log)
    if archive is not None:
        with open(log_path, "rb") as file:
            file.seek(begun)
            archive.delete_if_refused(file.read().decode("utf-8", "replace"))
    return gateway


def _set_variables(deployment: SparkDeployment) -> None:
    if deployment.is_local:
        # A path of this virtual environment: the executors must import the same code.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_master(deployment: SparkDeployment) -> None:
    """Spark itself tries for a minute, and then has no clear answer."""
    addresses = deployment.standalone_addresses
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _MASTER_TIMEOUT_S):
                return
        except (OSError, ValueError):
            continue
    if addresses:
        raise SparkReportError(f"no Spark master answers at {deployment.master}: check the address and the port")


def wait_for_executors(context: SparkContext, master: str, on_waiting: Callable[[], None]) -> None:
    """Wait for the executors that a cluster gives at once. SparkReportError when there is none after some minutes.

    The number of their cores decides how the request budget is divided, so it must not grow a moment later.
    """
    if is_growing(context.getConf()):
        return
    begin_s, cores, since_s, is_said = time.monotonic(), 0, time.monotonic(), False
    while True:
        now_s = time.monotonic()
        has_executors = context._jsc.sc().getExecutorMemoryStatus().size() > 1  # noqa: SLF001  one is the driver
        if context.defaultParallelism != cores or not has_executors:
            cores, since_s = context.defaultParallelism, now_s
        if has_executors and now_s - since_s >= _EXECUTORS_SETTLED_S:
            return
        if not has_executors and now_s - begin_s > _EXECUTORS_TIMEOUT_S:
            raise SparkReportError(
                f"{master} gave no executor within {_EXECUTORS_TIMEOUT_S:g} s: its workers may have no free cores or "
                "too little memory, or cannot connect to this machine (spark.driver.host)"
            )
        if not has_executors and not is_said and now_s - begin_s > _EXECUTORS_EXPECTED_S:
            on_waiting()
            is_said = True
        time.sleep(_EXECUTORS_POLL_S)


def _take_no_more_executors(context: SparkContext) -> None:
    """A standalone master would also give those of workers that come later: more than the budgets are divided among."""
    if is_growing(context.getConf()):
        return
    spark = context._jsc.sc()  # noqa: SLF001
    jvm = context._jvm  # noqa: SLF001
    no_preferences = jvm.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    spark.requestTotalExecutors(spark.getExecutorMemoryStatus().size() - 1, 0, no_preferences)  # one is the driver


@contextmanager
def _temporary_directory() -> Iterator[str]:
    with ExitStack() as at_end:
        try:
            directory = at_end.enter_context(private_directory())
        except OSError as error:
            raise ConfigurationError(
                f"Spark needs a directory for temporary files ({error.strerror}): set TMPDIR to a writable one"
            ) from error
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
