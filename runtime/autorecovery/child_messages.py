"""Messages between a bookie and the child process that runs its autorecovery daemon."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from bkctl.runtime.autorecovery.config import DaemonConfig


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
