"""The autorecovery daemon of a bookie, as the bookie sees it: a child process that is kept running; its messages."""

from __future__ import annotations

import asyncio
import enum
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


class SilenceEvent(enum.Enum):
    """What the silence of a process calls for; IS_OVER: it was reported."""

    NONE = enum.auto()
    WARN = enum.auto()
    KILL = enum.auto()
    IS_OVER = enum.auto()


class ProcessSilence:
    """For how long one process has sent nothing.

    Time is counted in steps: if this process itself is halted for an hour, that is one step.
    """

    def __init__(self) -> None:
        self.is_heard = False
        """Whether the process has sent something since the last step."""
        self._silent_steps = 0

    def step(self) -> SilenceEvent:
        """Another step has passed."""
        if self.is_heard:
            was_reported = self._silent_steps >= WARN_STEPS
            self.is_heard, self._silent_steps = False, 0
            return SilenceEvent.IS_OVER if was_reported else SilenceEvent.NONE
        self._silent_steps += 1
        if self._silent_steps >= KILL_STEPS:
            return SilenceEvent.KILL
        return SilenceEvent.WARN if self._silent_steps == WARN_STEPS else SilenceEvent.NONE


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
        silence = ProcessSilence()
        receiving = asyncio.ensure_future(self._receive(child, silence))
        watching = asyncio.ensure_future(self._watch(child, silence))
        try:
            with following_log_level(lambda: child.pipe.send(DaemonLogLevel(logging.getLogger().getEffectiveLevel()))):
                await asyncio.wait((receiving,))
        finally:
            watching.cancel()
            status = await child.end(END_S_MAX)
            await asyncio.wait((receiving,))  # its last log lines
            self.metrics = b""
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"

    async def _receive(self, child: ChildProcess[FromDaemon], silence: ProcessSilence) -> None:
        while (message := await child.pipe.receive()) is not None:
            silence.is_heard = True
            match message:
                case DaemonLogLine():
                    logging.getLogger(message.name).log(message.level, "autorecovery: %s", message.text)
                case DaemonMetrics():
                    self.metrics = message.text

    async def _watch(self, child: ChildProcess[FromDaemon], silence: ProcessSilence) -> None:
        """Report a process that sends nothing, then kill it."""
        while True:
            await self._clock.sleep(_STEP_S)
            match silence.step():
                case SilenceEvent.WARN:
                    self.metrics = b""
                    logger.warning(
                        "the autorecovery daemon of this bookie (process %d) has sent nothing for %g s (halted?); "
                        "it is killed after %g s",
                        *(child.pid, WARN_STEPS * _STEP_S, KILL_STEPS * _STEP_S),
                    )
                case SilenceEvent.KILL:
                    child.kill()
                case SilenceEvent.IS_OVER:
                    logger.info("the autorecovery daemon of this bookie works again")
