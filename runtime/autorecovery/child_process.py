"""The autorecovery daemon of a bookie, in its own process.

Started as ``python -P -m bkctl.runtime.autorecovery.child_process``. It ends, and gives its locks and its vote back,
when its parent closes the pipe or ends, and at SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Final

import uvloop

from bkctl.runtime.admin.exposition import ViewCollector, metrics_text
from bkctl.runtime.autorecovery.child import DaemonLogLine, DaemonMetrics, DaemonSetup, ToDaemon
from bkctl.runtime.autorecovery.process import ProcessId, run_autorecovery
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.message_pipe import MessagePipe, end_at_signals, parent_pipe
from bkctl.runtime.net.systemd import Systemd
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

METRICS_INTERVAL_S: Final = 2.0


class PipeHandler(logging.Handler):
    """Sends all log lines of this process to the parent; its threads log too."""

    def __init__(self, pipe: MessagePipe[ToDaemon]) -> None:
        super().__init__()
        self._pipe = pipe
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Send one; a line that comes after the end of the loop is dropped."""
        line = DaemonLogLine(record.name, record.levelno, self.format(record))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pipe.send, line)


async def serve() -> int:
    """Run the daemon that the parent asks for; the exit code."""
    stop = asyncio.Event()
    end_at_signals(stop.set)
    pipe: MessagePipe[ToDaemon] = await parent_pipe(ToDaemon)
    setup = await pipe.receive()
    if not isinstance(setup, DaemonSetup):
        return 0
    root = logging.getLogger()
    root.handlers[:] = [PipeHandler(pipe)]
    root.setLevel(setup.level)
    collectors: list[ViewCollector] = []
    helpers = [asyncio.ensure_future(each) for each in (_follow(pipe, stop), _report(pipe, collectors))]
    try:
        process_id = ProcessId(canonical_host_name(), setup.pid)  # it may block, which here delays nothing else
        await run_autorecovery(setup.config, process_id, stop, lambda: None, Systemd({}), collectors.append)
    except BkctlError as error:
        logger.error("%s", error)
        return 1
    finally:
        for helper in helpers:
            helper.cancel()
        await LoopClock().sleep(0)  # log lines that are on their way to the pipe
        await pipe.flush()
    return 0


async def _follow(pipe: MessagePipe[ToDaemon], stop: asyncio.Event) -> None:
    """Change the log level as the parent says, which logs the change, until it closes the pipe or ends."""
    while (message := await pipe.receive()) is not None:
        logging.getLogger().setLevel(message.level)
    stop.set()


async def _report(pipe: MessagePipe[ToDaemon], collectors: list[ViewCollector]) -> None:
    """Send the metrics. A parent that is halted takes nothing, so this waits for it."""
    while True:
        pipe.send(DaemonMetrics(metrics_text(family for each in collectors for family in each.values())))
        await pipe.flush()
        await LoopClock().sleep(METRICS_INTERVAL_S)


def main() -> int:
    """Run the process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
