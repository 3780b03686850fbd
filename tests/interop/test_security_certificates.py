"""Certificates that are replaced, or that expire, while bkctl drains or recovers a bookie: Java's, and its own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import NEWEST, JavaClient
from tests.interop.secured_clusters import OURS, SecuredCluster, secured_cluster
from tests.interop.security_files import TestAuthority
from tests.interop.security_modes import OPERATOR_ROLE, Mode, sides_of
from tests.interop.traffic_relay import TrafficRelay
from tests.processes import BkctlResult, start_bkctl
from tests.recovery_daemons import RecoveryDaemon
from tests.until import wait_until

pytestmark = pytest.mark.battery  # of `make interop-full`

LEDGERS, ENTRIES = 40, 20
SLOW = "8KiB"
"""Per second: the drain takes half a minute, so that it is under way when the files change."""
UNITS = f"0:{OPERATOR_ROLE}"
_VALID_S = 5.0


class Drain:
    """A cluster with roles, every connection to which passes a relay, and the files that its clients use."""

    def __init__(
        self, cluster: SecuredCluster, relays: list[TrafficRelay], ledgers: WrittenLedgers, directory: Path
    ) -> None:
        self.relays = relays
        self.ledgers = ledgers
        self.leaving = cluster.running[0]
        self._cluster = cluster
        self._directory = directory

    @contextlib.contextmanager
    def started(self, *words: str) -> Iterator[Callable[[], tuple[int, str]]]:
        """Start the command, a drain by default; what is yielded waits for its end.

        In the block some ledgers have moved already.
        """
        words = words or ("bookie", "drain", self.leaving)
        before = len(self.ledgers.referencing(self.leaving))
        variables = {"BKCTL_METADATA_URI": self._cluster.metadata_uri, **self._cluster.sides.variables}
        errors = self._directory / "errors"
        with open(self._directory / "result", "wb") as result, open(errors, "wb") as file:
            process = start_bkctl(
                *(*words, "--yes", "--copy-rate", SLOW),
                stdout=result,
                stderr=file,
                variables=variables,
            )

        def end() -> tuple[int, str]:
            return process.wait(300), errors.read_text()

        try:
            wait_until(
                lambda: 0 < len(self.ledgers.referencing(self.leaving)) < before, process=process, tell=errors.read_text
            )
            yield end
        finally:
            process.kill()
            process.wait()

    @contextlib.contextmanager
    def autorecovery(self) -> Iterator[RecoveryDaemon]:
        """A daemon that acts at once."""
        assert self.run("autorecovery", "delay", "set", "0").exit_code == 0
        with tempfile.TemporaryDirectory(prefix="bkctl-") as directory:
            daemon = RecoveryDaemon(self._cluster.metadata_uri, Path(directory), **self._cluster.sides.variables)
            daemon.start()
            try:
                yield daemon
            finally:
                daemon.kill()

    def run(self, *words: str) -> BkctlResult:
        """A command with the files of the client as they are now."""
        return self._cluster.run(*words)

    def cut_connections(self) -> None:
        """All of them: new ones are needed."""
        for relay in self.relays:
            relay.cut()

    def let_expire(self, authority: TestAuthority) -> None:
        """New connections use a certificate that is valid for a few more seconds; later ones need it when it is not."""
        authority.issue("client", units=UNITS, valid_s=_VALID_S)
        expires = time.monotonic() + _VALID_S
        self.cut_connections()
        wait_until(lambda: time.monotonic() > expires + 1.0)
        self.cut_connections()

    def lose(self) -> None:
        """The bookie is killed, and its session ends."""
        self._cluster.kill(self.leaving)
        wait_until(
            lambda: self.leaving not in self._cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout
        )

    def finish(self, *words: str) -> None:
        """With new files the work goes to its end."""
        again = self._cluster.run(*words, "--yes")
        assert again.exit_code == 0, again.stderr

    def require_all_moved(self) -> None:
        """No ledger refers to the bookie, and none has lost a copy."""
        assert self.ledgers.referencing(self.leaving) == []
        self.ledgers.require_all_copies()


@pytest.fixture
def authority(tmp_path: Path) -> TestAuthority:
    """The CA of the cluster; made first, because its files are."""
    return TestAuthority(tmp_path / "files" / "tls")


@pytest.fixture(params=[NEWEST, OURS])
def drain(
    request: pytest.FixtureRequest,
    authority: TestAuthority,
    new_metadata_uri: Callable[[], str],
    znodes: KazooClient,
    tmp_path: Path,
) -> Iterator[Drain]:
    """Four bookies with roles, and ledgers of Java's client on them."""
    sides = sides_of(Mode.ROLE, tmp_path / "files", authority=authority)
    with contextlib.ExitStack() as ends:
        opened = secured_cluster(request.param, sides, tmp_path / "cluster", new_metadata_uri, count=4)
        cluster = ends.enter_context(opened)
        log = str(tmp_path / "client.log")
        client = JavaClient(cluster.metadata_uri, log, jvm_flags=sides.client_flags, **sides.java_client)
        ends.callback(client.stop)
        root = parse_metadata_uri(cluster.metadata_uri).root
        ledgers = WrittenLedgers(client, znodes, root, count=LEDGERS, entries=ENTRIES)
        relays = [ends.enter_context(TrafficRelay(bookie_id)) for bookie_id in cluster.running]
        for relay in relays:
            relay.take_over(znodes, root)
        yield Drain(cluster, relays, ledgers, tmp_path)


def test_certificates_are_replaced_in_the_middle_of_a_drain(drain: Drain, authority: TestAuthority) -> None:
    with drain.started() as end:
        authority.issue("bookie", units="0:bookie")
        authority.issue("client", units=UNITS)
        drain.cut_connections()
        exit_code, errors = end()
    assert exit_code == 0, errors
    drain.require_all_moved()


def test_a_daemon_that_is_refused_repairs_once_its_certificate_is_replaced(
    drain: Drain, authority: TestAuthority
) -> None:
    """Bookies keep the connections of clients that they refuse; no restart, and no cut connection helps here."""
    authority.issue("client", units="0:guest")
    with drain.autorecovery() as daemon:
        wait_until(lambda: "daemon_refused" in drain.run("status").stdout, tell=lambda: daemon.log)
        drain.lose()
        wait_until(lambda: "is not repaired" in daemon.log, tell=lambda: daemon.log)
        assert drain.ledgers.referencing(drain.leaving)
        authority.issue("client", units=UNITS)
        wait_until(lambda: not drain.ledgers.referencing(drain.leaving), tell=lambda: daemon.log)
        wait_until(lambda: "daemon_refused" not in drain.run("status").stdout, tell=lambda: daemon.log)
    drain.ledgers.require_all_copies()


def test_a_certificate_expires_in_the_middle_of_a_drain(drain: Drain, authority: TestAuthority) -> None:
    """New connections are refused; with a new certificate the same command, or the next one, ends the work."""
    with drain.started() as end:
        drain.let_expire(authority)
        exit_code, errors = end()
    assert exit_code == 11, errors
    assert "bookie_client.tls.certificate_file" in errors, errors
    assert "Traceback" not in errors
    assert drain.ledgers.referencing(drain.leaving)
    authority.issue("client", units=UNITS)
    drain.finish("bookie", "drain", drain.leaving)
    drain.require_all_moved()


def test_a_certificate_expires_in_the_middle_of_a_recovery(
    drain: Drain, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The job ends with the sentence; it is resumed with a new certificate."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    drain.lose()
    with drain.started("recover", drain.leaving) as end:
        drain.let_expire(authority)
        exit_code, errors = end()
    assert exit_code == 11, errors
    assert "bookie_client.tls.certificate_file" in errors, errors
    assert "Traceback" not in errors
    assert drain.ledgers.referencing(drain.leaving)
    (job,) = (tmp_path / "state" / "bkctl" / "jobs").glob("*.sqlite")
    authority.issue("client", units=UNITS)
    drain.finish("recover", drain.leaving, "--resume", str(job))
    drain.require_all_moved()
