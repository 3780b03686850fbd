"""``make demo``: a cluster loses a bookie during a write, is repaired, and shows that no entry is lost.

Every step prints the bkctl command that it runs. All processes end with the script, even after an error; the report
directory stays.
"""

# ruff: noqa: S603  the commands are those of the demo itself

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.rule import Rule

BOOKIE_COUNT = 5
FINDINGS_EXIT_CODE = 10
FIRST_ENTRIES_TIMEOUT_S = 30.0
INTERRUPT_TIMEOUT_S = 30.0
KEPT = {"BKCTL_NO_PROGRESS"}
"""Commands get only these bkctl variables, because the others could select another cluster."""
LOCK = "demo.lock"
POLL_INTERVAL_S = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

BATCHES = (
    # (ledgers, ensemble size, write quorum, ack quorum, entries, bytes of an entry)
    (17, 3, 3, 2, 200, 1024),
    (16, 3, 2, 2, 20, 65536),
    (16, 4, 3, 2, 1000, 100),
)
"""49 ledgers; the 50th is written while a bookie is killed."""
LAST_BATCH = (1, 3, 3, 2, 15000, 1024)
PAYLOAD_BYTES = sum(ledgers * entries * size for ledgers, *_, entries, size in (*BATCHES, LAST_BATCH))


class DemoFailedError(Exception):
    """A command ended with an unexpected exit code."""


class DemoInterruptedError(Exception):
    """The user interrupted the demo."""


class DemoRunningError(Exception):
    """Another demo uses the same directory."""


@contextlib.contextmanager
def sole_demo_in(directory: str) -> Iterator[None]:
    """Hold the lock of the directory; DemoRunningError if another demo holds it.

    The file stays: if it were removed, two other demos could each lock a file of this name.
    """
    os.makedirs(directory, exist_ok=True)
    # Child processes do not inherit the file, so the lock ends with this process even after kill -9.
    with open(os.path.join(directory, LOCK), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoRunningError(
                f"a demo is running in {directory}: wait until it ends, or use another directory (--directory)"
            ) from error
        yield


class Demo:
    """State of the steps: terminal, environment of the commands, processes to end.

    A signal handler only records an interrupt. It takes effect before a command starts and while one is running, so
    the running processes are always known.
    """

    def __init__(self, directory: str) -> None:
        self.cluster_directory = os.path.join(directory, "cluster")
        self.report_directory = os.path.join(directory, "report")
        self._console = Console(highlight=False)
        bin_directory = os.path.dirname(sys.executable)
        self._environment = {
            **{name: value for name, value in os.environ.items() if name in KEPT or not name.startswith("BKCTL_")},
            "PATH": os.pathsep.join((bin_directory, os.environ.get("PATH", os.defpath))),
            "BKCTL_CONFIG": os.devnull,
            "BKCTL_OUTPUT": "table",  # also when this output goes to a file
        }
        self._writer: subprocess.Popen[bytes] | None = None
        self._step = 0
        self._is_interrupted = False
        self._is_ending = False
        self._is_heard = True

    def interrupt(self, *_: object) -> None:
        """Request the end of the demo; a second call changes nothing."""
        self._is_interrupted = True

    def step(self, title: str) -> None:
        """Print the heading of the next step."""
        self._step += 1
        self._print("")
        self._print(Rule(f"[bold]{self._step}. {title}", align="left", style="dim"))

    def say(self, text: str) -> None:
        """Print a line of explanation."""
        self._print(text, style="dim")

    def run(self, command: str, *, exit_code: int = 0) -> None:
        """Run a command on this terminal; DemoFailedError if the exit code is another one."""
        self._show(command)
        self._finish(command, self._start(command, None), exit_code)

    def ask(self, command: str) -> Any:
        """Run a command and return its JSON."""
        self._show(command)
        return json.loads(self._finish(command, self._start(command, subprocess.PIPE), 0))

    def export(self, name: str, value: str) -> None:
        """Set a variable for all commands that follow."""
        self._print(f"[bold green]$[/] [bold]export {name}='{value}'", soft_wrap=True)
        self._environment[name] = value

    def begin_writing(self, command: str) -> None:
        """Start a command in the background."""
        self._show(command + " &")
        self._writer = self._start(command, None)

    def end_writing(self) -> None:
        """Wait for the command in the background; it must succeed."""
        assert self._writer is not None
        self._show("wait")
        self._finish("the writer", self._writer, 0)

    def remove_remains(self) -> None:
        """Remove the cluster, running or not, and the report of an earlier demo."""
        if self._is_cluster_there():
            self.run(f"bkctl dev cluster down --dir {self.cluster_directory} --delete")
        shutil.rmtree(self.report_directory, ignore_errors=True)
        os.makedirs(self.report_directory)

    def cluster_up(self) -> Any:
        """Start the cluster; return its status."""
        self.run(f"bkctl dev cluster up --bookies {BOOKIE_COUNT} --no-autorecovery --dir {self.cluster_directory}")
        return self.ask(f"bkctl dev cluster status --dir {self.cluster_directory} -o json")

    def end(self, *, is_deleting: bool) -> None:
        """End every process, also after an error. Cannot be interrupted."""
        self._is_ending = True
        if self._writer is not None and self._writer.poll() is None:
            kill_group(self._writer)
            self._writer.wait()
        if self._is_cluster_there():
            self.run(f"bkctl dev cluster down --dir {self.cluster_directory}" + (" --delete" if is_deleting else ""))

    def _is_cluster_there(self) -> bool:
        return os.path.exists(os.path.join(self.cluster_directory, "cluster.json"))

    def _show(self, command: str) -> None:
        self._print(f"[bold green]$[/] [bold]{command}", soft_wrap=True)

    def _print(self, text: str | Rule, *, style: str | None = None, soft_wrap: bool = False) -> None:
        if not self._is_heard:
            return
        try:
            self._console.print(text, style=style, soft_wrap=soft_wrap)
        except (OSError, SystemExit):  # rich exits when a pipe is closed
            # The terminal or pipe (`| head`) is closed: end the demo, and print nothing more.
            self._is_heard = False
            self.interrupt()

    def _start(self, command: str, stdout: int | None) -> subprocess.Popen[bytes]:
        if self._is_interrupted and not self._is_ending:
            raise DemoInterruptedError
        if not self._is_heard:
            stdout = subprocess.DEVNULL
        stderr = None if self._is_heard else subprocess.DEVNULL
        # Its own process group: only this script gets Ctrl-C, and ends the processes in order.
        shell = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.Popen(shell, env=self._environment, stdout=stdout, stderr=stderr, process_group=0)

    def _finish(self, command: str, process: subprocess.Popen[bytes], exit_code: int) -> bytes:
        """Wait for a command; return its output (empty if it went to the terminal)."""
        output = None
        while output is None:
            try:
                output = process.communicate(timeout=POLL_INTERVAL_S)[0] or b""
            except subprocess.TimeoutExpired:
                if self._is_interrupted and not self._is_ending:
                    end_group(process)
                    raise DemoInterruptedError from None
        if process.returncode != exit_code:
            raise DemoFailedError(f"exit code {process.returncode} instead of {exit_code}: {command}")
        return output


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command by SIGTERM first: only `dev cluster up` knows which processes it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=INTERRUPT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    kill_group(process)  # other processes of a pipeline
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def write_ledgers(demo: Demo) -> None:
    """Fill 49 ledgers."""
    for ledgers, ensemble, write_quorum, ack_quorum, entries, size in BATCHES:
        written = f"{demo.report_directory}/written-{ensemble}-{write_quorum}-{ack_quorum}.csv"
        demo.run(
            f"bkctl ledger write-test --ledgers {ledgers} -E {ensemble} -W {write_quorum} -A {ack_quorum}"
            f" --entries {entries} --entry-size {size} -o csv > {written}"
        )
    demo.run("bkctl ledger list --limit 6")


def kill_while_writing(demo: Demo) -> str:
    """Kill a bookie in the last ensemble of an open ledger; return its id."""
    _, ensemble, write_quorum, ack_quorum, entries, size = LAST_BATCH
    demo.begin_writing(
        f"bkctl ledger write-test -E {ensemble} -W {write_quorum} -A {ack_quorum} --entries {entries}"
        f" --entry-size {size} --max-per-second 2500 --no-progress"
    )
    ledger_id, victim = open_ledger(demo)
    demo.say(f"Ledger {ledger_id} is being written; bookie {victim} has some of its entries.")
    demo.run(f"bkctl dev cluster kill {victim} --dir {demo.cluster_directory}")
    demo.end_writing()
    demo.say("The writer replaced the bookie and lost no entry.")
    demo.run(f"bkctl ledger show {ledger_id}")
    return victim


def open_ledger(demo: Demo) -> tuple[str, str]:
    """Id of the open ledger, and a bookie of its last ensemble."""
    deadline = time.monotonic() + FIRST_ENTRIES_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(1)
        for ledger in demo.ask("bkctl ledger list --state open -o json")["items"]:
            shown = demo.ask(f"bkctl ledger show {ledger['ledger_id']} -o json")
            return shown["ledger_id"], shown["ensembles"][-1]["ensemble"][0]
    raise DemoFailedError("no ledger is being written")


def tell(demo: Demo) -> None:
    """All steps."""
    demo.step("A cluster: ZooKeeper and five bookies, each in its own process")
    status = demo.cluster_up()
    bookie_ids = [bookie["id"] for bookie in status["bookies"]]
    demo.export("BKCTL_METADATA_URI", status["metadata_uri"])
    demo.run("bkctl bookie list")

    demo.step("Ledgers of different sizes and ensembles")
    write_ledgers(demo)

    demo.step("Audit: the number of live copies of every entry")
    demo.say(
        "No autorecovery runs here, so that the recovery is yours: the audit warns, but fails for missing copies only."
    )
    demo.run(f"bkctl audit --fail-on under_replicated --out {demo.report_directory}/before")

    demo.step("kill -9, while a ledger is being written")
    victim = kill_while_writing(demo)

    demo.step(f"Recovery: copy the entries of {victim} to other bookies")
    demo.run(f"bkctl recover failed-bookie {victim} --dry-run")
    demo.run(f"bkctl recover failed-bookie {victim} --yes")

    demo.step("Verify: read every entry from every bookie that should have it")
    demo.run("bkctl ledger verify --all")

    demo.step("A second bookie dies: one copy less, but every entry is readable")
    second = next(bookie_id for bookie_id in bookie_ids if bookie_id != victim)
    demo.run(f"bkctl dev cluster kill {second} --dir {demo.cluster_directory}")
    read_bytes = demo.ask("bkctl ledger list -o name | xargs -P 2 -I ID bkctl ledger read ID --format raw | wc --bytes")
    if read_bytes != PAYLOAD_BYTES:
        raise DemoFailedError(f"{read_bytes} payload bytes read, but {PAYLOAD_BYTES} written")
    demo.say(f"{read_bytes:,} payload bytes read, as many as were written.")

    demo.step("Audit again with Spark: the executors read ZooKeeper")
    demo.say("A dead bookie counts as live until ZooKeeper ends its session.")
    demo.run(f"until bkctl bookie list --state down -o name | grep --quiet --line-regexp {second}; do sleep 1; done")
    demo.run(f"bkctl audit --spark --out {demo.report_directory}/after", exit_code=FINDINGS_EXIT_CODE)


def main() -> int:
    """Exit code: 0 if every step succeeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="demo", help="directory for the cluster and the report")
    directory = parser.parse_args().directory
    try:
        with sole_demo_in(directory):
            return run_to_end(Demo(directory))
    except DemoRunningError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


def run_to_end(demo: Demo) -> int:
    """Run all steps, end all processes, return the exit code."""
    for number in SIGNALS:
        signal.signal(number, demo.interrupt)
    begin = time.monotonic()
    is_complete = False
    try:
        demo.remove_remains()
        tell(demo)
        is_complete = True
    except DemoInterruptedError:
        demo.say("interrupted")
    except DemoFailedError as error:
        demo.say(f"The demo failed, {error}. The logs stay below {demo.cluster_directory}.")
    finally:
        demo.end(is_deleting=is_complete)
    if not is_complete:
        return 1
    demo.say(f"{time.monotonic() - begin:.0f} seconds. The audits, as Parquet: {demo.report_directory}/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
