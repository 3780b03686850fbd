"""The connections of one listening socket, up to a limit. At the limit a new one replaces the longest idle one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Replaceable(Protocol):
    """A connection of a client."""

    @property
    def is_busy(self) -> bool:
        """Whether one of its requests is in progress, so that it is not replaced."""

    def abort(self) -> None:
        """End it now."""


ConnectionT = TypeVar("ConnectionT", bound=Replaceable)


class ConnectionRoom(Generic[ConnectionT]):
    """Keeps the connections in the order of their last activity, so that a flood of new ones costs little each."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self._by_activity: OrderedDict[ConnectionT, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_activity)

    def __iter__(self) -> Iterator[ConnectionT]:
        return iter(self._by_activity)

    def enter(self, connection: ConnectionT) -> ConnectionT | None:
        """Accept a connection. At the limit returns the one that is aborted for it; itself if all others are busy."""
        replaced = None
        if len(self._by_activity) >= self.connections_max:
            replaced = self._longest_idle()
            if replaced is None:
                connection.abort()
                return connection
            del self._by_activity[replaced]
            replaced.abort()
        self._by_activity[connection] = None
        return replaced

    def note_activity(self, connection: ConnectionT) -> None:
        """It has sent something, or its request has been answered. Ignored if it has left."""
        if connection in self._by_activity:
            self._by_activity.move_to_end(connection)

    def leave(self, connection: ConnectionT) -> None:
        """A connection has ended; safe to repeat."""
        self._by_activity.pop(connection, None)

    def _longest_idle(self) -> ConnectionT | None:
        for _ in range(len(self._by_activity)):
            first = next(iter(self._by_activity))
            if not first.is_busy:
                return first
            self._by_activity.move_to_end(first)  # its idle time has not begun
        return None
