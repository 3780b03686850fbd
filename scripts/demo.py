"""``make demo``: a cluster loses a bookie in the middle of a write, is repaired, and proves that it lost nothing.

Every step prints the bkctl command that it runs, and runs exactly that. All processes are ended when the script ends,
however it ends; the report folder stays.
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
"""Of bkctl's settings, those of the terminal alone reach the commands: the others could name another cluster."""
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
    """A command ended otherwise than it should."""


class DemoInterruptedError(Exception):
    """Whoever started the demo wants its end."""


class DemoRunningError(Exception):
    """Another demo works in the same folder."""


@contextlib.contextmanager
def sole_demo_in(directory: str) -> Iterator[None]:
    """Hold the folder's lock; DemoRunningError when another demo does, which then goes on undisturbed.

    The file is left where it is: were it removed, two others could each hold the lock of a file of this name.
    """
    os.makedirs(directory, exist_ok=True)
    # Python closes it in every command that is started, so the lock ends with this process even by kill -9.
    with open(os.path.join(directory, LOCK), "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoRunningError(
                f"a demo is running in {directory}: wait for its end, or give another folder with --directory"
            ) from error
        yield


class Demo:
    """The steps share a terminal, the environment of the commands, and what must be ended at the end.

    An interrupt is only noted when it comes, and acted upon where nothing is half done: before a command is started,
    and while one is waited for. So at any moment it is known what runs.
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
        """End the demo as soon as nothing is half done; a second time is no different."""
        self._is_interrupted = True

    def step(self, title: str) -> None:
        """Head of the next step."""
        self._step += 1
        self._print("")
        self._print(Rule(f"[bold]{self._step}. {title}", align="left", style="dim"))

    def say(self, text: str) -> None:
        """One line of explanation."""
        self._print(text, style="dim")

    def run(self, command: str, *, exit_code: int = 0) -> None:
        """Run a command on this terminal; DemoFailedError when it ends otherwise than expected."""
        self._show(command)
        self._finish(command, self._start(command, None), exit_code)

    def ask(self, command: str) -> Any:
        """Run a command whose JSON the demo itself goes on with."""
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
        """Clear away what an earlier demo left, running or not."""
        if self._is_cluster_there():
            self.run(f"bkctl dev cluster down --dir {self.cluster_directory} --delete")
        shutil.rmtree(self.report_directory, ignore_errors=True)
        os.makedirs(self.report_directory)

    def cluster_up(self) -> Any:
        """Start the cluster; returns what it consists of."""
        self.run(f"bkctl dev cluster up --bookies {BOOKIE_COUNT} --dir {self.cluster_directory}")
        return self.ask(f"bkctl dev cluster status --dir {self.cluster_directory} -o json")

    def end(self, *, is_deleting: bool) -> None:
        """End every process; called however the demo ends, and not to be interrupted."""
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
        except (OSError, SystemExit):  # rich leaves the program where a pipe is closed
            # A terminal that was closed, `| head`: the story is over, and its end must not fail for want of a reader.
            self._is_heard = False
            self.interrupt()

    def _start(self, command: str, stdout: int | None) -> subprocess.Popen[bytes]:
        if self._is_interrupted and not self._is_ending:
            raise DemoInterruptedError
        if not self._is_heard:
            stdout = subprocess.DEVNULL
        stderr = None if self._is_heard else subprocess.DEVNULL
        # A process group of its own: Ctrl-C comes to this script alone, which then ends one thing after another.
        shell = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.Popen(shell, env=self._environment, stdout=stdout, stderr=stderr, process_group=0)

    def _finish(self, command: str, process: subprocess.Popen[bytes], exit_code: int) -> bytes:
        """Output of a command (empty if it went to the terminal), once it has ended as expected."""
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
    """Let a command end in order: `dev cluster up` alone knows what it has started, and stops that again."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=INTERRUPT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
    kill_group(process)  # what a pipeline may have left
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 a command and all that it started, whatever is left of them."""
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
    """Kill a bookie that holds the end of a ledger under way; returns its id."""
    _, ensemble, write_quorum, ack_quorum, entries, size = LAST_BATCH
    demo.begin_writing(
        f"bkctl ledger write-test -E {ensemble} -W {write_quorum} -A {ack_quorum} --entries {entries}"
        f" --entry-size {size} --rate 2500 --no-progress"
    )
    ledger_id, victim = open_ledger(demo)
    demo.say(f"Ledger {ledger_id} is being written, and bookie {victim} holds part of it.")
    demo.run(f"bkctl dev cluster kill {victim} --dir {demo.cluster_directory}")
    demo.end_writing()
    demo.say("The writer put another bookie in its place and lost nothing.")
    demo.run(f"bkctl ledger show {ledger_id}")
    return victim


def open_ledger(demo: Demo) -> tuple[str, str]:
    """Id of the ledger under way, and a bookie that it is written to."""
    deadline = time.monotonic() + FIRST_ENTRIES_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(1)
        for ledger in demo.ask("bkctl ledger list --state open -o json")["items"]:
            shown = demo.ask(f"bkctl ledger show {ledger['ledger_id']} -o json")
            return shown["ledger_id"], shown["ensembles"][-1]["ensemble"][0]
    raise DemoFailedError("no ledger is being written")


def tell(demo: Demo) -> None:
    """The whole story."""
    demo.step("A cluster: ZooKeeper and five bookies, each a process of its own")
    status = demo.cluster_up()
    bookie_ids = [bookie["id"] for bookie in status["bookies"]]
    demo.export("BKCTL_METADATA_URI", status["metadata_uri"])
    demo.run("bkctl bookie list")

    demo.step("Ledgers of mixed sizes and ensembles")
    write_ledgers(demo)

    demo.step("Audit: how many live copies every entry has")
    demo.run(f"bkctl audit --out {demo.report_directory}/before")

    demo.step("kill -9, while a ledger is being written")
    victim = kill_while_writing(demo)

    demo.step(f"Recovery: what {victim} held goes to other bookies")
    demo.run(f"bkctl recover failed-bookie {victim} --dry-run")
    demo.run(f"bkctl recover failed-bookie {victim} --yes")

    demo.step("Every entry, from every bookie that should have it")
    demo.run("bkctl ledger verify --all")

    demo.step("A second bookie dies: one copy less, and everything is still readable")
    second = next(bookie_id for bookie_id in bookie_ids if bookie_id != victim)
    demo.run(f"bkctl dev cluster kill {second} --dir {demo.cluster_directory}")
    read_bytes = demo.ask("bkctl ledger list -o name | xargs -P 2 -I ID bkctl ledger read ID --format raw | wc --bytes")
    if read_bytes != PAYLOAD_BYTES:
        raise DemoFailedError(f"{read_bytes} payload bytes read, but {PAYLOAD_BYTES} written")
    demo.say(f"{read_bytes:,} payload bytes read: all that was written.")

    demo.step("Audit again, by Spark: the executors read ZooKeeper themselves")
    demo.say("A dead bookie counts as live until ZooKeeper ends its session.")
    demo.run(f"until bkctl bookie list --state down -o name | grep --quiet --line-regexp {second}; do sleep 1; done")
    demo.run(f"bkctl audit --spark --out {demo.report_directory}/after", exit_code=FINDINGS_EXIT_CODE)


def main() -> int:
    """Exit code: 0 when every step did what it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="demo", help="folder for the cluster and the report")
    directory = parser.parse_args().directory
    try:
        with sole_demo_in(directory):
            return run_to_end(Demo(directory))
    except DemoRunningError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1


def run_to_end(demo: Demo) -> int:
    """The story, and the end of all its processes; exit code."""
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
