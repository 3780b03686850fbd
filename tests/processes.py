"""Real processes for tests: a bkctl command, a whole cluster. Everything started here is ended by its process id."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import pty
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from tests.orphans import OrphanKiller
from tests.until import wait_until

LOOPBACK = "127.0.0.1"
COMMAND_TIMEOUT_S = 300.0
"""Far above any honest answer: it only keeps a hung process from hanging the test run."""

HALTED_SESSION_MS = 60_000
"""A ZooKeeper session that outlives all that a test does while it halts the process that has it."""

_END_TIMEOUT_S = 120.0
_TEST_VARIABLES = {"NO_COLOR": "1", "COLUMNS": "160", "BKCTL_CONFIG": os.devnull, "BKCTL_OUTPUT": "json"}
_COMMAND_SERVER = str(Path(__file__).with_name("command_server.py"))
_PORTS = range(8_100, 15_000)
"""Above the ports that bkctl and Java take unasked, below those that bkctl chooses for a development cluster."""
_PORT_ATTEMPTS_MAX = 1000


class BkctlResult(NamedTuple):
    """What a finished bkctl command left behind."""

    exit_code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The result on stdout."""
        return json.loads(self.stdout)


class BookieProcess(NamedTuple):
    """One bookie of a cluster."""

    id: str
    pid: int
    port: int
    directory: str
    log_path: str


def free_port() -> int:
    """A TCP port without a listener. No other call gets it while this process runs, in no worker and no test run of
    this user: its server may still start, or be down for a while."""
    for _ in range(_PORT_ATTEMPTS_MAX):
        if (port := secrets.choice(_PORTS)) not in _ports:
            with contextlib.suppress(OSError), socket.socket() as probe:
                fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                _ports.add(port)
                probe.bind((LOOPBACK, port))
                return port
    raise AssertionError("no port is left for a test")


_ports: set[int] = set()
"""Those that this process has locked: its own locks do not keep it out."""


@functools.cache
def _port_locks() -> int:
    """A file of which a process locks byte N while port N is its own; it must not be opened a second time."""
    path = os.path.join(tempfile.gettempdir(), f"bkctl-test-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not reaped does not."""
    return _state_of(pid) not in {"Z", ""}


def is_waiting(pid: int) -> bool:
    """Whether the main thread of the process is in a system call that waits for something."""
    return _state_of(pid) == "S"


def _state_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def kill_and_wait(pid: int) -> None:
    """SIGKILL, and wait until the process is gone; fine if it was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not is_alive(pid), f"process {pid} ends by SIGKILL")


def processes_below(directory: Path) -> list[int]:
    """Ids of living processes whose command line or working directory names the directory."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    traces = file.read() + os.readlink(f"/proc/{name}/cwd").encode()
            except OSError:
                continue
            if str(directory).encode() in traces and is_alive(int(name)):
                found.append(int(name))
    return found


@contextlib.contextmanager
def striking_children(module: str, number: signal.Signals) -> Iterator[None]:
    """Send a signal to every child process that serves ``module``, as soon as it is there."""
    is_over = threading.Event()

    def strike() -> None:
        while not is_over.wait(0.002):
            for pid in children_running(module, os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    sender = threading.Thread(target=strike)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def children_running(module: str, parent: int) -> list[int]:
    """Children of the process ``parent`` whose command line has ``module``; none once it has ended."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for task in Path(f"/proc/{parent}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return [pid for pid in found if module.encode() in _command_of(pid)]


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def bkctl_command(*arguments: str) -> list[str]:
    """Command line of bkctl as every child process of the project starts it."""
    return [sys.executable, "-P", "-m", "bkctl", *arguments]


def bkctl_environment(**variables: str) -> dict[str, str]:
    """This process's environment without bkctl settings of the user, plus ``variables``.

    Results are JSON, which most tests read; on a terminal, and with BKCTL_OUTPUT="", they have the default form.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("BKCTL_", "BOOKIE_CONF"))}
    return inherited | _TEST_VARIABLES | variables


class BkctlProcess:
    """A bkctl process that ``start_bkctl`` started; its methods are those of ``subprocess.Popen``."""

    def __init__(self, pid: int, answers: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once it has ended; subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = _read_number(self._answers)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"bkctl (pid {self.pid})", timeout or 0) from None
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        """A test that failed has left it: end it, or a later test fails by the warning about its socket."""
        self.kill()
        self._answers.close()


class _CommandServer:
    """Runs commands in forks of a process that has imported bkctl: see ``tests/command_server.py``."""

    def __init__(self) -> None:
        self._requests, requests = socket.socketpair()
        with requests:
            number = requests.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", _COMMAND_SERVER, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=bkctl_environment(),
                pass_fds=[number],
            )
        atexit.register(self._stop)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int, cwd: Path | str
    ) -> BkctlProcess:
        """Any thread may call this."""
        answers, theirs = socket.socketpair()
        answers.sendall(json.dumps({"arguments": arguments, "environment": environment}).encode() + b"\n")
        directory = os.open(cwd, os.O_PATH)
        with theirs:
            socket.send_fds(self._requests, [b"!"], [stdout, stderr, directory, theirs.fileno()])
        os.close(directory)
        return BkctlProcess(_read_number(answers), answers)

    def _stop(self) -> None:
        self._requests.close()
        self._process.wait()


def _read_number(answers: socket.socket) -> int:
    text = b""
    while not text.endswith(b"\n"):
        part = answers.recv(1)
        assert part, "the process that runs commands has ended"
        text += part
    return int(text)


@functools.cache
def _command_server() -> _CommandServer:
    return _CommandServer()


def start_bkctl(
    *arguments: str,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    cwd: Path | str = ".",
    variables: Mapping[str, str] | None = None,
) -> BkctlProcess:
    """Start a bkctl command without a terminal; ``variables`` are added to its environment.

    What it writes is dropped where no file is given for it.
    """
    with open(os.devnull, "wb") as null:
        out, err = ((file or null).fileno() for file in (stdout, stderr))
        return _command_server().start(arguments, bkctl_environment(**variables or {}), out, err, cwd)


def run_bkctl(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, **variables: str) -> BkctlResult:
    """Run a bkctl command to its end without a terminal; ``variables`` are added to its environment.

    What Python reads before it runs bkctl (``-X`` options, ``PYTHON*`` variables, limits) needs ``spawn_bkctl``.
    """
    with open(os.memfd_create("stdout"), "w+b") as stdout, open(os.memfd_create("stderr"), "w+b") as stderr:
        process = start_bkctl(*arguments, stdout=stdout, stderr=stderr, variables=variables)
        try:
            exit_code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return BkctlResult(exit_code, stdout.read().decode(), stderr.read().decode())


def spawn_bkctl(
    *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, stdin: str = "", **variables: str
) -> BkctlResult:
    """As ``run_bkctl``, in a process that starts as an operator's does: new interpreter, imports, real exit.

    ``stdin``: what it gets on a pipe.
    """
    finished = subprocess.run(
        bkctl_command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        env=bkctl_environment(**variables),
        timeout=timeout_s,
        check=False,
    )
    return BkctlResult(finished.returncode, finished.stdout, finished.stderr)


def run_bkctl_on_terminal(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run a bkctl command whose stdout and stderr are one terminal; its exit code, and all it wrote there.

    ``COLUMNS`` is the width, 160 unless it is among the variables.
    """
    return _run_on_terminal(arguments, variables, is_stderr_there=True)


def stdout_on_terminal(*arguments: str, **variables: str) -> str:
    """The same with stderr elsewhere; what it wrote to the terminal."""
    return _run_on_terminal(arguments, variables, is_stderr_there=False)[1]


def _run_on_terminal(
    arguments: Sequence[str], variables: Mapping[str, str], *, is_stderr_there: bool
) -> tuple[int, str]:
    master, slave = pty.openpty()
    with open(slave, "wb", buffering=0) as terminal:
        stderr = terminal if is_stderr_there else None
        on_terminal = {"TERM": "xterm-256color", "BKCTL_OUTPUT": ""} | dict(variables)
        process = start_bkctl(*arguments, stdout=terminal, stderr=stderr, variables=on_terminal)
    output = bytearray()
    with contextlib.suppress(OSError):  # how Linux tells that nobody holds the other end any more
        while part := os.read(master, 65536):
            output += part
    os.close(master)
    return process.wait(COMMAND_TIMEOUT_S), output.decode().replace("\r\n", "\n")


class TerminalSession:
    """A bkctl command that has a terminal to itself, as in a shell: Ctrl-C typed on it reaches the command.

    ``program`` is another command to run there. Use as a context manager; at the end the command is killed if it still
    runs.
    """

    def __init__(self, *arguments: str, program: Sequence[str] = (), **variables: str) -> None:
        self._master, slave = pty.openpty()
        # Without --ctty the terminal would be nobody's own, and Ctrl-C on it a mere character.
        command = ["setsid", "--ctty", *(program or bkctl_command(*arguments))]
        environment = bkctl_environment(TERM="xterm-256color", BKCTL_OUTPUT="") | variables
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self._is_closed = False
        self.screen = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def wait_for(self, text: str) -> None:
        """Return once the text is on the screen."""
        while text not in self.screen:
            assert self._read_more(), f"the command ended without saying {text!r}:\n{self.screen}"

    def type(self, keys: str) -> None:
        """Press keys: "\\x03" is Ctrl-C, "\\x04" the end of input."""
        os.write(self._master, keys.encode())

    def hang_up(self) -> None:
        """Close the terminal, as an operator closes its window."""
        if not self._is_closed:
            os.close(self._master)
            self._is_closed = True

    def exit_code(self) -> int:
        """Exit code, once the command has ended."""
        while self._read_more():
            pass
        return self.process.wait(COMMAND_TIMEOUT_S)

    def _read_more(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], COMMAND_TIMEOUT_S)
        assert ready, f"the command hangs:\n{self.screen}"
        try:
            part = os.read(self._master, 65536)
        except OSError:  # how Linux tells that nobody holds the other end any more
            return False
        self.screen += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)


class Cluster:
    """Bookies below one directory, on a ledgers root of their own in a ZooKeeper that runs already.

    The session of a killed bookie ends after ``session_ms``. ``variables`` are settings of bookies and commands.
    """

    def __init__(
        self,
        directory: str,
        metadata_uri: str = "",
        session_ms: int = 5000,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._variables = dict(variables or {})
        self.metadata_uri = metadata_uri
        self._session_ms = session_ms
        self.bookie_settings = {"allowLoopback": "true", "diskUsageThreshold": "0.99"}
        """Of the bookies that are started from now on."""
        self.bookies: list[BookieProcess] = []
        self._processes: dict[str, BkctlProcess] = {}

    def up(self, bookie_count: int) -> None:
        """Start what does not run; also brings a cluster back after ``down``."""
        made = self.run("cluster", "init", "--if-not-exists")
        assert made.exit_code == 0, made.stderr
        while len(self.bookies) < bookie_count:
            self._new_bookie()
        self._start([bookie for bookie in self.bookies if not self._is_running(bookie.id)])

    def add_bookie(self) -> str:
        """Start one more bookie; its id."""
        bookie = self._new_bookie()
        self._start([bookie])
        return bookie.id

    def _new_bookie(self) -> BookieProcess:
        port, directory = free_port(), f"{self.directory}/bookie-{len(self.bookies) + 1}"
        os.makedirs(directory, exist_ok=True)
        self.bookies.append(BookieProcess(f"{LOOPBACK}:{port}", 0, port, directory, f"{directory}/bookie.log"))
        return self.bookies[-1]

    def down(self) -> None:
        """Stop all bookies cleanly; the data stays."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(_END_TIMEOUT_S)

    def start_bookie(self, bookie_id: str) -> None:
        """Bring one bookie back."""
        self._start([self.bookie(bookie_id)])

    def erase_bookie(self, bookie_id: str) -> None:
        """Empty the disks of a bookie that does not run."""
        assert not self._is_running(bookie_id)
        for name in ("journal", "ledgers"):
            shutil.rmtree(f"{self.bookie(bookie_id).directory}/{name}")

    def kill_bookie(self, bookie_id: str) -> None:
        """kill -9; returns when the process is gone."""
        kill_and_wait(self.bookie(bookie_id).pid)

    def stop_bookie(self, bookie_id: str) -> None:
        """Stop one bookie cleanly: its registration ends at once."""
        self._processes[bookie_id].terminate()
        self._processes[bookie_id].wait(_END_TIMEOUT_S)

    def bookie(self, bookie_id: str) -> BookieProcess:
        """The bookie of this id."""
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def run(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> BkctlResult:
        """Run a bkctl command against this cluster."""
        variables = {"BKCTL_METADATA_URI": self.metadata_uri, **self._variables}
        return run_bkctl(*arguments, timeout_s=timeout_s, **variables)

    def stop(self) -> None:
        """End every process."""
        for process in self._processes.values():
            process.kill()
            process.wait(_END_TIMEOUT_S)

    def _is_running(self, bookie_id: str) -> bool:
        return bookie_id in self._processes and self._processes[bookie_id].poll() is None

    def _start(self, bookies: Sequence[BookieProcess]) -> None:
        with contextlib.ExitStack() as logs:
            starting = {}
            for bookie in bookies:
                log = logs.enter_context(open(bookie.log_path, "ab"))
                said = logs.enter_context(open(bookie.log_path, "rb"))
                said.seek(0, os.SEEK_END)
                if (ended := self._processes.get(bookie.id)) is not None:
                    ended.wait(_END_TIMEOUT_S)
                process = self._processes[bookie.id] = self._start_process(bookie, log)
                self.bookies[self.bookies.index(bookie)] = bookie._replace(pid=process.pid)
                starting[bookie.id] = said
            for bookie_id, said in starting.items():
                text = b""
                while b" listening on port " not in text:
                    assert self._is_running(bookie_id), f"bookie {bookie_id} did not start:\n{text.decode()}"
                    time.sleep(0.02)
                    text += said.read()

    def _start_process(self, bookie: BookieProcess, log: IO[bytes]) -> BkctlProcess:
        return start_bkctl(
            *("bookie", "start", "--metadata-uri", self.metadata_uri, "--port", str(bookie.port)),
            *("--bookie-id", bookie.id, "--advertised-address", LOOPBACK),
            *("--journal-dir", f"{bookie.directory}/journal", "--ledger-dir", f"{bookie.directory}/ledgers"),
            *(each for name, value in self.bookie_settings.items() for each in ("--set", f"{name}={value}")),
            *("--set", f"zkTimeout={self._session_ms}"),
            stderr=log,
            variables=self._variables,
        )


class DevCluster(Cluster):
    """ZooKeeper and bookies below one directory, run by ``bkctl dev cluster``."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self.zookeeper_pid = 0
        self._pids: set[int] = set()
        self._orphans = OrphanKiller()

    def up(self, bookie_count: int) -> None:
        """Start what does not run; also brings a cluster back after ``down``."""
        words = ("up", "--no-autorecovery", "--bookies", str(bookie_count))
        result = self._try(*words)
        if not self.bookies and " is in use" in result.stderr:
            # A cluster of another test got one of the ports that this one had chosen: choose again, once.
            shutil.rmtree(self.directory, ignore_errors=True)
            result = self._try(*words)
        assert result.exit_code == 0, result.stderr
        self._take(result.json())

    def down(self) -> None:
        """Stop all processes cleanly; the data stays."""
        self._dev_cluster("down")

    def start_bookie(self, bookie_id: str) -> None:
        """Bring one bookie back."""
        self._dev_cluster("start", bookie_id)
        self._take(self._dev_cluster("status").json())

    def stop(self) -> None:
        """End every process that was ever seen, whatever state the cluster is in."""
        try:
            run_bkctl("dev", "cluster", "down", "--dir", self.directory)
        finally:
            for pid in self._pids:
                kill_and_wait(pid)
            self._orphans.close()

    def _dev_cluster(self, verb: str, *arguments: str) -> BkctlResult:
        result = self._try(verb, *arguments)
        assert result.exit_code == 0, f"dev cluster {verb}: exit code {result.exit_code}\n{result.stderr}"
        return result

    def _try(self, verb: str, *arguments: str) -> BkctlResult:
        return run_bkctl("dev", "cluster", verb, *arguments, "--dir", self.directory, "-o", "json")

    def _take(self, state: dict[str, Any]) -> None:
        self.metadata_uri = state["metadata_uri"]
        self.bookies = [
            BookieProcess(bookie["id"], bookie["pid"] or 0, bookie["port"], bookie["dir"], bookie["log"])
            for bookie in state["bookies"]
        ]
        self.zookeeper_pid = state["zookeeper"].get("pid") or self.zookeeper_pid
        daemon_pid = state["autorecovery"].get("pid") or 0
        pids = {pid for pid in (self.zookeeper_pid, daemon_pid, *(bookie.pid for bookie in self.bookies)) if pid}
        for pid in pids - self._pids:
            self._orphans.watch(pid)
        self._pids |= pids
