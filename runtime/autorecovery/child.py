"""The autorecovery daemon of a bookie, as the bookie sees it: a child process that is kept running; its messages."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeAlias

import msgspec

from bkctl.runtime.autorecovery.config import DaemonConfig
from bkctl.runtime.log_level import following_log_level
from bkctl.runtime.net.message_pipe import ChildProcess, start_child
from bkctl.runtime.ports import Clock

logger = logging.getLogger(__name__)

MODULE: Final = "bkctl.runtime.autorecovery.child_process"
END_S_MAX: Final = 9.0
"""How long the process may take to give locks and vote back. It is killed then."""
_PAUSE_FIRST_S: Final = 1.0
_PAUSE_MAX_S: Final = 60.0
_STABLE_S: Final = 60.0
_STEP_S: Final = 1.0
WARN_STEPS: Final = 30
"""A process that sends nothing for so many steps is reported."""
KILL_STEPS: Final = 60
"""It is killed after so many."""


class DaemonSetup(msgspec.Struct, frozen=True, tag=True):
    """The first message to the child. ``level``: from which one on it logs, as a number of ``logging``.

    ``pid``: the child's own.
    """

    config: DaemonConfig
    pid: int
    level: int


class DaemonLogLevel(msgspec.Struct, frozen=True, tag=True):
    """The log level of the bookie was changed; ``level`` as in ``DaemonSetup``."""

    level: int


class DaemonLogLine(msgspec.Struct, frozen=True, tag=True):
    """A line for the log of the bookie, whose file and form it then has."""

    name: str
    level: int
    text: str


class DaemonMetrics(msgspec.Struct, frozen=True, tag=True):
    """The metrics of the daemon, again and again; so this is also its sign of life."""

    text: bytes


ToDaemon: TypeAlias = DaemonSetup | DaemonLogLevel
FromDaemon: TypeAlias = DaemonLogLine | DaemonMetrics


class AutorecoveryChild:
    """Implements ChildDaemon. ``config``: the settings; the cluster and the own bookie are those of the bookie."""

    def __init__(self, config: DaemonConfig, clock: Clock) -> None:
        self.restarts = 0
        self.metrics = b""
        self._config = config
        self._clock = clock

    async def serve(self, metadata_uri: str, bookie_id: str) -> None:
        """See ``ChildDaemon``. A process that ends is started again after a pause, which doubles up to a minute."""
        recovery = msgspec.structs.replace(self._config.autorecovery, own_bookie=bookie_id)
        config = msgspec.structs.replace(self._config, metadata_uri=metadata_uri, autorecovery=recovery)
        pause_s = _PAUSE_FIRST_S
        while True:
            started_ns = self._clock.monotonic_ns()
            try:
                how = await self._run_once(config)
            except Exception as error:  # the bookie must survive everything
                logger.debug("autorecovery daemon", exc_info=True)
                how = f"could not be started: {error}"
            if self._clock.monotonic_ns() - started_ns > _STABLE_S * 1e9:
                pause_s = _PAUSE_FIRST_S
            logger.error("the autorecovery daemon of this bookie %s; it is started again in %g s", how, pause_s)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self.restarts += 1

    async def _run_once(self, config: DaemonConfig) -> str:
        """Run one process until it ends; how it ended."""
        child: ChildProcess[FromDaemon] = await start_child(MODULE, FromDaemon)
        level = logging.getLogger().getEffectiveLevel()
        child.pipe.send(DaemonSetup(config, child.pid, level))
        heard = asyncio.Event()
        receiving = asyncio.ensure_future(self._receive(child, heard))
        watching = asyncio.ensure_future(self._watch(child, heard))
        try:
            with following_log_level(lambda: child.pipe.send(DaemonLogLevel(logging.getLogger().getEffectiveLevel()))):
                await asyncio.wait((receiving,))
        finally:
            watching.cancel()
            status = await child.end(END_S_MAX)
            await asyncio.wait((receiving,))  # its last log lines
            self.metrics = b""
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"

    async def _receive(self, child: ChildProcess[FromDaemon], heard: asyncio.Event) -> None:
        while (message := await child.pipe.receive()) is not None:
            heard.set()
            match message:
                case DaemonLogLine():
                    logging.getLogger(message.name).log(message.level, "autorecovery: %s", message.text)
                case DaemonMetrics():
                    self.metrics = message.text

    async def _watch(self, child: ChildProcess[FromDaemon], heard: asyncio.Event) -> None:
        """Report a process that sends nothing, then kill it.

        Time is counted in steps: if this process itself is halted for an hour, that is one step.
        """
        silent = 0
        while True:
            await self._clock.sleep(_STEP_S)
            before, silent = silent, 0 if heard.is_set() else silent + 1
            heard.clear()
            if silent == WARN_STEPS:
                self.metrics = b""
                logger.warning(
                    "the autorecovery daemon of this bookie (process %d) has sent nothing for %g s (halted?); "
                    "it is killed after %g s",
                    *(child.pid, WARN_STEPS * _STEP_S, KILL_STEPS * _STEP_S),
                )
            elif silent >= KILL_STEPS:
                child.kill()
            elif before >= WARN_STEPS and not silent:
                logger.info("the autorecovery daemon of this bookie works again")
