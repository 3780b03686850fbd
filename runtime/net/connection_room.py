"""The connections of one listening socket, up to a limit.

At the limit a new one replaces the longest idle one of the address that has the most: one client that opens connections
without end takes no place from the others.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Replaceable(Protocol):
    """A connection of a client."""

    address: str
    """The peer's IP address; empty: of a process on this machine, over a socket file."""

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
        self._of_address = Counter[str]()

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
            self.leave(replaced)
            replaced.abort()
        self._by_activity[connection] = None
        self._of_address[connection.address] += 1
        return replaced

    def note_activity(self, connection: ConnectionT) -> None:
        """It has sent something, or its request has been answered. Ignored if it has left."""
        if connection in self._by_activity:
            self._by_activity.move_to_end(connection)

    def leave(self, connection: ConnectionT) -> None:
        """A connection has ended; safe to repeat."""
        if connection in self._by_activity:
            del self._by_activity[connection]
            self._of_address[connection.address] -= 1
            if not self._of_address[connection.address]:
                del self._of_address[connection.address]

    def _longest_idle(self) -> ConnectionT | None:
        most = max(self._of_address.values(), default=0)
        found: ConnectionT | None = None
        found_of, busy = 0, []
        for connection in self._by_activity:
            count = self._of_address[connection.address]
            if connection.is_busy:
                busy.append(connection)
            elif count > found_of:
                found, found_of = connection, count
            if found_of == most:
                break
        for connection in busy:
            self._by_activity.move_to_end(connection)  # its idle time has not begun
        return found
