"""Which connection gives way to a new one."""

from __future__ import annotations

from bkctl.runtime.net.connection_room import ConnectionRoom


class Connection:
    def __init__(self, address: str, *, is_busy: bool = False) -> None:
        self.address = address
        self.is_busy = is_busy
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def filled(*addresses: str) -> tuple[ConnectionRoom[Connection], list[Connection]]:
    room: ConnectionRoom[Connection] = ConnectionRoom(len(addresses))
    connections = [Connection(address) for address in addresses]
    for each in connections:
        assert room.enter(each) is None
    return room, connections


def test_one_address_takes_no_place_from_others() -> None:
    room, (served, *flood) = filled("10.0.0.1", *["10.0.0.9"] * 3)
    for victim in flood:
        assert room.enter(Connection("10.0.0.9")) is victim
    other = Connection("10.0.0.2")
    assert room.enter(other) is not served
    assert (served.is_aborted, other.is_aborted) == (False, False)


def test_among_equals_the_longest_idle_one_gives_way() -> None:
    room, (first, second, third) = filled("10.0.0.1", "10.0.0.2", "10.0.0.3")
    room.note_activity(first)
    assert room.enter(Connection("10.0.0.4")) is second
    room.leave(third)
    assert room.enter(Connection("10.0.0.5")) is None
    assert room.enter(Connection("10.0.0.6")) is first


def test_busy_connections_stay() -> None:
    room, (busy, idle) = filled("10.0.0.9", "10.0.0.9")
    busy.is_busy = True
    assert room.enter(Connection("10.0.0.1")) is idle
    for each in room:
        each.is_busy = True
    refused = Connection("10.0.0.2")
    assert room.enter(refused) is refused
    assert refused.is_aborted
    assert len(room) == 2
