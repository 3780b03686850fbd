"""Why ZooKeeper cannot be reached: said while a command waits, long before it gives up, and again in its error."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.connect_failures import ConnectFailures
from tests.processes import free_port, run_bkctl, start_bkctl
from tests.tmux import Terminal
from tests.until import wait_until

NO_SESSION = "accepts connections, but opens no session (is it a TLS port?)"
SILENT = "accepts connections, but does not answer (is the server halted, or is it a TLS port?)"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port whose connections are handled by ``answer``, each in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the end of the test closes the server
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def unreachable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A server that gives no session, and why."""
    if request.param == "unknown name":
        yield "zk9.invalid:2181", "cannot resolve zk9.invalid"
    elif request.param == "closed port":
        server = f"127.0.0.1:{free_port()}"
        yield server, f"{server} connection refused"
    elif request.param == "silent port":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = f"127.0.0.1:{listener.getsockname()[1]}"
            yield server, f"{server} {SILENT}"
    elif request.param == "closing port":
        with answering(socket.socket.close) as port:
            yield f"127.0.0.1:{port}", f"127.0.0.1:{port} {NO_SESSION}"
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*make, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context.load_cert_chain(certificate, key)

        def answer(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

        with answering(answer) as port:
            yield f"127.0.0.1:{port}", f"127.0.0.1:{port} {NO_SESSION}"


EACH = pytest.mark.parametrize(
    "unreachable", ["unknown name", "closed port", "silent port", "closing port", "TLS port"], indirect=True
)
COMMANDS = (
    ("bookie", "list"),
    ("recover", "127.0.0.1:3181", "--yes"),
    ("audit",),
    ("cluster", "init"),
    ("bookie", "drain", "127.0.0.1:3181", "--yes"),
    ("ledger", "show", "7"),
)


class Waiting:
    """A command that waits for ZooKeeper for minutes, and what it has said so far."""

    def __init__(self, path: Path, server: str, *arguments: str) -> None:
        self._path = path
        with open(path, "wb") as file:
            self.process = start_bkctl(*arguments, "-u", f"zk://{server}/ledgers", "--timeout", "10m", stderr=file)

    def wait_for(self, reason: str) -> None:
        """Return once it has given this reason."""
        sentence = f"waiting for ZooKeeper: {reason}\n"
        wait_until(lambda: sentence in self.said(), sentence, process=self.process, tell=self.said)

    def said(self) -> str:
        return self._path.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@EACH
def test_the_reason_appears_while_the_command_waits(unreachable: tuple[str, str], tmp_path: Path) -> None:
    server, reason = unreachable
    with contextlib.ExitStack() as at_end:
        running = [Waiting(tmp_path / str(number), server, *command) for number, command in enumerate(COMMANDS)]
        for waiting in running:
            at_end.callback(waiting.end)
        for waiting in running:
            waiting.wait_for(reason)


@EACH
def test_the_error_has_the_reason_too(unreachable: tuple[str, str]) -> None:
    server, reason = unreachable
    words = ("bookie", "list", "-u", f"zk://{server}/ledgers", "--timeout", "3s")
    with ThreadPoolExecutor() as both:
        result, quiet = both.map(lambda more: run_bkctl(*words, *more), ((), ("--quiet",)))
    assert result.exit_code == 6
    assert result.stdout == ""
    *_, waiting, error = result.stderr.splitlines()  # a name that resolves slowly is waited for first
    assert waiting == f"waiting for ZooKeeper: {reason}"
    assert error.startswith(f"error: no ZooKeeper server responds at {server} (waited 3 s): {reason}; check that ")
    assert quiet.stderr.splitlines() == [error]


def test_a_port_that_has_given_a_session_is_not_called_a_tls_port() -> None:
    failures = ConnectFailures([("zk1", 2181)])
    failures.note_accepted(("zk1", 2181))
    assert failures.sentence == f"zk1:2181 {NO_SESSION}"
    failures.note_error(("zk1", 2181), TimeoutError())
    assert failures.sentence == f"zk1:2181 {SILENT}"
    failures.clear()
    failures.note_accepted(("zk1", 2181))
    assert failures.sentence == "zk1:2181 accepts connections, but opens no session"
    failures.note_error(("zk1", 2181), TimeoutError())
    assert failures.sentence == "zk1:2181 accepts connections, but does not answer (is the server halted?)"
    failures.clear()
    failures.note_error(("zk1", 2181), TimeoutError())
    assert failures.sentence == "zk1:2181 does not respond", "nor to the connection"


@EACH
def test_servers_log_it(unreachable: tuple[str, str], tmp_path: Path) -> None:
    server, reason = unreachable
    directories = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"))
    bookie = ("bookie", "start", *directories, "--port", str(free_port()), "--set", "allowLoopback=true")
    for number, command in enumerate((bookie, ("autorecovery", "start"))):
        waiting = Waiting(tmp_path / str(number), server, *command)
        try:
            waiting.wait_for(reason)
        finally:
            waiting.end()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("columns", [40, 160])
@pytest.mark.parametrize("unreachable", ["closed port"], indirect=True)
def test_on_a_terminal_the_reason_is_shown_while_it_lasts(unreachable: tuple[str, str], columns: int) -> None:
    server, reason = unreachable
    with Terminal(columns) as terminal:
        terminal.bkctl("bookie", "list", "-u", f"zk://{server}/ledgers", "--timeout", "10m")
        terminal.wait(lambda seen: reason in " ".join(seen.split()))
        assert "waiting for ZooKeeper" in terminal.text()
        terminal.press("C-c")
        text = terminal.wait_for_prompt()
        assert "waiting for ZooKeeper" not in text
        assert "error: interrupted" in text
