"""Apache BookKeeper as separate processes: its client, its bookie, its shell. ``make interop`` builds the jars."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from bkctl.runtime.metadata.zookeeper.embedded import find_java

HERE = os.path.dirname(os.path.abspath(__file__))
NEWEST = "4.18"
RELEASES = ("4.14", "4.17", NEWEST)
"""Releases of Apache BookKeeper that ``make interop`` gets."""
ANSWER_TIMEOUT_S = 120.0
"""Far above any honest answer: it only keeps a hung JVM from hanging the test run."""

_JVM_FLAGS = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:MaxDirectMemorySize=256m",
)

FENCED_CODE = -101
UNAUTHORIZED_CODE = -102


class JavaError(Exception):
    """Java answered with an exception of class ``kind``; ``code`` is that of BKException, 0 for any other."""

    def __init__(self, code: int, kind: str, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code
        self.kind = kind


def is_built(*releases: str) -> bool:
    """Whether there are the jars of these releases, by default those of ``make interop``, and its Java program."""
    return all(os.path.exists(class_path_file(release)) for release in releases or RELEASES)


def class_path_file(release: str) -> str:
    """The file with the class path of a release."""
    return os.path.join(HERE, "target", f"classpath-{release}.txt")


def class_archive(release: str) -> str:
    """Classes of a release as ``tests/interop/class_archives.py`` has stored them."""
    return os.path.join(HERE, "target", f"classes-{release}.jsa")


def _archive_flags(release: str, jvm_flags: Sequence[str]) -> Sequence[str]:
    """None for benches, which choose a compiler: they start a JVM as users do."""
    path = class_archive(release)
    is_chosen = any("TieredStopAtLevel" in each or "ArchiveClassesAtExit" in each for each in jvm_flags)
    if is_chosen or not os.path.exists(path):
        return ()
    # Its warnings would be on stdout.
    return "-Xshare:auto", f"-XX:SharedArchiveFile={path}", "-Xlog:disable"


def _command(main_class: str, *arguments: str, jvm_flags: Sequence[str] = (), release: str = NEWEST) -> list[str]:
    with open(class_path_file(release), encoding="utf-8") as file:
        class_path = file.read().strip()
    flags = (*_JVM_FLAGS, *_archive_flags(release, jvm_flags), *jvm_flags)
    return [find_java(), *flags, "-cp", class_path, main_class, *arguments]


class JavaProgram:
    """A JVM that answers commands, one at a time: JSON lines on its stdin and stdout."""

    def __init__(
        self, log_path: str, main_class: str, *arguments: str, jvm_flags: Sequence[str] = (), release: str = NEWEST
    ) -> None:
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                _command(main_class, *arguments, jvm_flags=jvm_flags, release=release),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        self._log_path = log_path
        self._is_ready = False
        self._one_at_a_time = threading.Lock()

    async def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Run one command; JavaError if Java threw."""
        return await asyncio.to_thread(self.call_and_wait, command, **arguments)

    def call_and_wait(self, command: str, **arguments: Any) -> dict[str, Any]:
        """As ``call``, for tests without an event loop."""
        assert self._process.stdin is not None
        with self._one_at_a_time:
            if not self._is_ready:
                self._answer()
                self._is_ready = True
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def stop(self) -> None:
        """End the JVM as a crash would."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
            watchdog.join()
        if not line:
            raise RuntimeError(f"the Java program ended without an answer: see {self._log_path}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            error = answer["error"]
            raise JavaError(error["code"], error["type"], error["message"])
        result: dict[str, Any] = answer["result"]
        return result


class JavaClient(JavaProgram):
    """One JVM with one BookKeeper client, many ledgers. When it is stopped, open ledgers stay open."""

    def __init__(
        self,
        metadata_uri: str,
        log_path: str,
        *,
        jvm_flags: Sequence[str] = (),
        release: str = NEWEST,
        **settings: str,
    ) -> None:
        arguments = (metadata_uri, *(f"{key}={value}" for key, value in settings.items()))
        super().__init__(log_path, "bkctl.interop.InteropClient", *arguments, jvm_flags=jvm_flags, release=release)

    async def create(
        self,
        *,
        ensemble: tuple[int, int, int] = (3, 3, 2),
        digest_type: str = "CRC32C",
        password: str = "",
        deferred_sync: bool = False,
        adv_ledger_id: int | None = None,
    ) -> int:
        """Create a ledger and keep its writer open; returns the ledger id. ``adv_ledger_id``: one with this id, whose
        entry ids the caller chooses."""
        sizes = dict(zip(("ensemble_size", "write_quorum_size", "ack_quorum_size"), ensemble, strict=True))
        answer = await self.call(
            "create",
            digest_type=digest_type,
            password=password,
            deferred_sync=deferred_sync,
            adv_ledger_id=adv_ledger_id,
            **sizes,
        )
        return int(answer["ledger_id"])

    async def append(
        self, ledger_id: int, payloads: Sequence[bytes], entry_ids: Sequence[int] | None = None
    ) -> list[int]:
        """Append through the open writer, pipelined; returns the entry ids. ``entry_ids``: those of the caller."""
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        chosen = {} if entry_ids is None else {"entry_ids": list(entry_ids)}
        return list((await self.call("append", ledger_id=ledger_id, payloads=encoded, **chosen))["entry_ids"])

    async def close_ledger(self, ledger_id: int) -> int:
        """Close the open writer; returns the last entry id."""
        return int((await self.call("close", ledger_id=ledger_id))["last_add_confirmed"])

    async def follow(self, ledger_id: int, count: int, *, timeout_ms: int = 2000, password: str = "") -> list[bytes]:
        """Payloads of the first entries of an open ledger, by long polls; fewer if as many polls found nothing."""
        answer = await self.call(
            "follow", ledger_id=ledger_id, count=count, timeout_ms=timeout_ms, digest_type="CRC32C", password=password
        )
        return [base64.b64decode(payload) for payload in answer["payloads"]]

    async def read(
        self, ledger_id: int, *, recover: bool = False, digest_type: str = "CRC32C", password: str = ""
    ) -> list[bytes]:
        """Payloads of entries 0..last confirmed, as Java verified them."""
        answer = await self.call(
            "read", ledger_id=ledger_id, recover=recover, digest_type=digest_type, password=password
        )
        return [base64.b64decode(payload) for payload in answer["payloads"]]


def write_server_conf(path: str, metadata_uri: str, directory: str, port: int = 3181, **settings: str) -> None:
    """Write a bk_server.conf for a Java bookie, or for the Java shell, whose directories are below ``directory``."""
    values = {
        "metadataServiceUri": metadata_uri,
        "bookiePort": str(port),
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": "true",
        "journalDirectories": os.path.join(directory, "journal"),
        "ledgerDirectories": os.path.join(directory, "ledgers"),
        "indexDirectories": os.path.join(directory, "ledgers"),
        "httpServerEnabled": "false",
    } | settings
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in values.items())


def shell_command(conf_path: str, *arguments: str, jvm_flags: Sequence[str] = ()) -> list[str]:
    """Command line of the Java bookie shell."""
    return _command("org.apache.bookkeeper.bookie.BookieShell", "-conf", conf_path, *arguments, jvm_flags=jvm_flags)


def run_shell(conf_path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Java bookie shell; its findings are on stderr, where our logging configuration sends them."""
    return subprocess.run(
        shell_command(conf_path, *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )


class JavaProcess:
    """A Java program that runs until it is stopped."""

    def __init__(
        self, main_class: str, *arguments: str, log_path: str, jvm_flags: Sequence[str] = (), release: str = NEWEST
    ) -> None:
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                _command(main_class, *arguments, jvm_flags=jvm_flags, release=release),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()


class JavaBookie(JavaProcess):
    """A Java bookie started from a configuration file."""

    def __init__(self, conf_path: str, log_path: str, *, jvm_flags: Sequence[str] = (), release: str = NEWEST) -> None:
        super().__init__(
            "org.apache.bookkeeper.server.Main",
            *("--conf", conf_path),
            log_path=log_path,
            jvm_flags=jvm_flags,
            release=release,
        )
