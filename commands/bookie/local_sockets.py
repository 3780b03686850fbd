"""The running bookies of this machine, by their admin sockets."""

from __future__ import annotations

import contextlib
import os
import re

import msgspec

from bkctl.commands.bookie.probe import probe
from bkctl.runtime.admin.api import StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API, AdminAddress, decode_answer
from bkctl.storage.errors import BkctlError
from bkctl.storage.filenames import ADMIN_SOCKET

_SOCKETS = "/proc/net/unix"
_LISTENING = 1 << 16
_SHORT_NAME = re.compile(r"/bkctl(-[0-9]+)?/[0-9a-f]{16}\.admin\.sock")
_ASK_TIMEOUT_S = 2.0


class LocalBookie(msgspec.Struct, frozen=True):
    """A bookie with an admin socket. ``bookie_id`` and ``directory`` are None if not known.

    ``is_trusted``: the socket and its directory are of this user or of root. Another user's may pretend to be any
    bookie.
    """

    address: AdminAddress
    bookie_id: str | None = None
    directory: str | None = None
    is_trusted: bool = False

    def __str__(self) -> str:
        where = f"--ledger-dir {self.directory}" if self.directory else self.address.socket_path
        return f"{self.bookie_id or 'unknown'} ({where})"


def address_in(ledger_directory: str) -> AdminAddress:
    """Address of the bookie whose first ledger directory this is; OSError.

    A path that is too long for a socket is a link to one with a short name.
    """
    path = os.path.join(ledger_directory, ADMIN_SOCKET)
    return AdminAddress(os.readlink(path) if os.path.islink(path) else path)


def list_local() -> list[LocalBookie]:
    """All that listen, without asking them: the id is not known."""
    paths = []
    with contextlib.suppress(OSError), open(_SOCKETS, encoding="utf-8", errors="surrogateescape") as file:
        next(file)  # the headings
        for line in file:
            fields = line.rstrip("\n").split(None, 7)
            path = fields[7] if len(fields) == 8 and int(fields[3], 16) & _LISTENING else ""
            if (path.endswith(f"/{ADMIN_SOCKET}") or _SHORT_NAME.search(path)) and _is_here(path):
                paths.append(path)
    return [_local_bookie(path) for path in sorted(paths)]


def identified(bookie: LocalBookie) -> LocalBookie | None:
    """The bookie with its id and directory, as far as they are known; None if nothing accepts a connection there.

    The cookie in its directory has the id; otherwise the bookie is asked, if it is trusted.
    """
    if bookie.directory is not None and (bookie_id := _id_in(bookie.directory)) is not None:
        return msgspec.structs.replace(bookie, bookie_id=bookie_id)
    if not bookie.is_trusted:
        return bookie
    from bkctl.runtime.errors import AdminAccessError, BookieTimeoutError, BookieUnavailableError

    try:
        name, path = "on this machine", f"{BKCTL_API}/state"
        state = decode_answer(name, probe(name, bookie.address, path, _ASK_TIMEOUT_S), StateAnswer)
    except (AdminAccessError, BookieTimeoutError):
        return bookie
    except BookieUnavailableError:
        return None
    except BkctlError:
        return bookie
    return LocalBookie(
        bookie.address, state.bookie_id or None, next(iter(state.ledger_directories or ()), None), is_trusted=True
    )


def _local_bookie(path: str) -> LocalBookie:
    directory = os.path.dirname(path) if path.endswith(f"/{ADMIN_SOCKET}") else None
    try:
        owner, directory_owner = os.lstat(path).st_uid, os.stat(os.path.dirname(path)).st_uid
    except OSError:
        return LocalBookie(AdminAddress(path), directory=directory)
    # The file may be replaced later: the user of the process that listens is checked again.
    address = AdminAddress(path, user_id=owner)
    return LocalBookie(address, directory=directory, is_trusted={owner, directory_owner} <= {0, os.geteuid()})


def _is_here(path: str) -> bool:
    """Whether the path leads to a socket: that of a process in a container may not."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:  # another user's: the error comes when it is used
        pass
    return True


def _id_in(directory: str) -> str | None:
    """The bookie id in the cookie of a ledger directory; None if it cannot be read."""
    from bkctl.runtime.metadata.bookies.cookies import decode_cookie
    from bkctl.storage.filenames import VERSION, current_directory

    with contextlib.suppress(OSError, BkctlError), open(os.path.join(current_directory(directory), VERSION), "rb") as f:
        return decode_cookie(f.read()).bookie_id
    return None
