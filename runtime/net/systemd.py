"""Adapter of the ServiceManager port: the notification socket of systemd, sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class Systemd:
    """Notifies systemd, if it started this process with a notification socket.

    A message never blocks. What cannot be sent is sent with the next message.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self.is_present = address.startswith(("/", "@"))
        self.watchdog_s = _watchdog_s(environment) if self.is_present else None
        self._address = os.fsencode("\0" + address[1:] if address.startswith("@") else address)
        self._unsent: dict[str, str] = {}
        self._has_failed = False

    def notify(self, **fields: str | int) -> None:
        """Send fields such as ``READY=1``; does nothing without a notification socket."""
        if not self.is_present:
            return
        self._unsent |= {key: str(value).replace("\n", " ") for key, value in fields.items()}
        message = "\n".join(f"{key}={value}" for key, value in self._unsent.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                logger.warning("cannot notify systemd (%s); trying again with the next message", error.strerror)
            self._has_failed = True
        else:
            self._unsent, self._has_failed = {}, False


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """The watchdog's interval, if it is meant for this process."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(microseconds) / 1e6
