"""Hosts of a network that exists only for a test: network namespaces of the kernel, joined by a bridge."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tests.orphans import OrphanKiller
from tests.processes import LOOPBACK
from tests.until import wait_until

_TOOLS: Final = ("ip", "nsenter", "unshare")
_CLONE_NEWNET: Final = 0x40000000
_OWN_NETWORK = "/proc/thread-self/ns/net"
_NETWORK = "10.99.0."
_libc = ctypes.CDLL(None, use_errno=True)


class Host(NamedTuple):
    """``enter`` precedes the command line of what shall run there; the process keeps its id."""

    address: str
    enter: Sequence[str]


class Network(NamedTuple):
    """``address``: of this thread, as the hosts see it."""

    address: str
    hosts: Sequence[Host]


def on_loopback(*addresses: str) -> Network:
    """No namespaces: all hosts are addresses of loopback."""
    return Network(LOOPBACK, [Host(address, ()) for address in addresses])


@contextlib.contextmanager
def network_of(count: int) -> Iterator[Network]:
    """Move this thread, and what it starts from now on, into a network with ``count`` hosts, until the block ends.

    Where that is not allowed, or a tool for it is missing, the hosts are addresses of loopback.
    """
    with open(_OWN_NETWORK, "rb") as former, contextlib.ExitStack() as stack:
        yield _namespaces(count, former.fileno(), stack) or on_loopback(
            *(f"127.0.0.{number + 2}" for number in range(count))
        )


def _namespaces(count: int, former: int, stack: contextlib.ExitStack) -> Network | None:
    if not all(map(shutil.which, _TOOLS)) or _libc.unshare(_CLONE_NEWNET):
        return None
    with contextlib.ExitStack() as until_complete:
        until_complete.callback(_return_to, former)
        address = _NETWORK + "1"
        try:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "bridge", "type", "bridge")
            _ip("address", "add", address + "/24", "dev", "bridge")
            _ip("link", "set", "bridge", "up")
            orphans = until_complete.enter_context(OrphanKiller())
            network = Network(address, [_add_host(number + 2, orphans, until_complete) for number in range(count)])
        except subprocess.CalledProcessError:
            return None  # the kernel has namespaces, and no bridges or pairs of interfaces
        stack.push(until_complete.pop_all())
    return network


def _return_to(network: int) -> None:
    if _libc.setns(network, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot return to the network of this machine")


def _add_host(number: int, orphans: OrphanKiller, stack: contextlib.ExitStack) -> Host:
    """A namespace lives as long as a process in it."""
    keeper = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    stack.callback(keeper.wait)
    stack.callback(keeper.kill)
    orphans.watch(keeper.pid)
    theirs = f"/proc/{keeper.pid}/ns/net"
    wait_until(lambda: os.readlink(theirs) != os.readlink(_OWN_NETWORK), "a host has its network")
    host = Host(_NETWORK + str(number), ("nsenter", f"--net={theirs}"))
    _ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
    _ip("link", "set", f"port{number}", "master", "bridge", "up")
    for change in (("address", "add", host.address + "/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
        _ip(*change, enter=host.enter)
    _ip("link", "set", "lo", "up", enter=host.enter)
    return host


def _ip(*arguments: str, enter: Sequence[str] = ()) -> None:
    subprocess.run([*enter, "ip", *arguments], check=True)
