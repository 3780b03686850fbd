"""How a command reaches a running bookie: over its admin socket on this machine, else over its registered HTTP port.

In this order: the directory of ``--ledger-dir``; the id that is given; the ledger directory of the settings; the only
bookie that runs on this machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from bkctl.commands.bookie.admin_state import read_state, read_state_of
from bkctl.commands.bookie.local_sockets import LocalBookie, address_in, identified, list_local
from bkctl.commands.context import BookieFlags, CommandContext
from bkctl.commands.errors import InvalidArgumentError, NoDirectoryError
from bkctl.commands.parse import parse_bookie_id
from bkctl.runtime.admin.calls import ALL_ADDRESSES, AdminAddress, AdminCredentials
from bkctl.runtime.errors import AdminAccessError, BookieNotFoundError, BookieUnavailableError
from bkctl.storage.adapters.given_files import read_given_file
from bkctl.storage.errors import BkctlError
from bkctl.storage.filenames import ADMIN_SOCKET

if TYPE_CHECKING:
    from bkctl.commands.session import Session
    from bkctl.runtime.admin.client import AdminClient
    from bkctl.runtime.metadata.bookies.service_info import BookieServiceInfo

IdArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="Bookie ID (default: that of the settings, or the only one here)")
]
IdArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID]...", help="Bookie IDs (default: that of the settings, or the only one here)"),
]
DirectoryOption = Annotated[
    str | None, typer.Option("--ledger-dir", metavar="DIR", help="The bookie here with this first ledger directory")
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="Token for changes over TCP (default: $BKCTL_ADMIN_TOKEN_FILE)"),
]

_TOKEN_VARIABLE: Final = "BKCTL_ADMIN_TOKEN_FILE"  # noqa: S105  the name of a variable
_TOKEN_BYTES_MAX: Final = 4096
_OPEN_HTTP: Final = "set httpServerEnabled=true and httpServerHost in its settings and restart it"


class BookieTarget(msgspec.Struct, frozen=True):
    """The bookie that the command line means, and how to reach it; ``name`` is for messages.

    ``address`` None: its registration has the address. ``other_user``: another user's socket on this machine that may
    be that of the bookie. ``other_root``: of the cluster to which a bookie of this id on this machine belongs instead.
    """

    name: str
    address: AdminAddress | None
    other_user: LocalBookie | None = None
    other_root: str = ""


def find_target(bookie_id: str | None, directory: str | None, context: CommandContext) -> BookieTarget:
    """Find the bookie without a session with the cluster.

    InvalidArgumentError, ConfigurationError, AdminAccessError, BookieNotFoundError, BookieUnavailableError.
    """
    target = _find(bookie_id, directory, context)
    if target.address is not None:
        _require_owner(target.name, target.address.socket_path)
    return target


async def resolve(context: CommandContext, target: BookieTarget) -> AdminAddress:
    """Address of the target, if necessary from its registration; also MetadataError."""
    if target.address is not None:
        return target.address
    try:
        return await _registered(context, target)
    except BkctlError as error:
        here = f"the bookie of this ID on this machine belongs to the cluster {target.other_root}"
        if target.other_root and isinstance(error, BookieNotFoundError):
            raise BookieNotFoundError(f"{error}; {here}", target.name) from error
        if target.other_root and isinstance(error, BookieUnavailableError):
            raise BookieUnavailableError(target.name, f"{str(error).partition(': ')[2]}; {here}") from error
        if target.other_user is None:
            raise
        raise AdminAccessError(f"{_other_users([target.other_user])}; without it: {error}") from error


@contextlib.asynccontextmanager
async def admin_of(
    context: CommandContext, session: Session, bookie_id: str, credentials: AdminCredentials
) -> AsyncIterator[AdminClient]:
    """A client of one bookie of the cluster of this session: over its socket here, else its registered HTTP port.

    BookieUnavailableError, BookieNotFoundError, AdminAccessError.
    """
    from bkctl.runtime.admin.client import AdminClient

    target = await _in_cluster(_with_id(bookie_id), session.root, credentials, context.settings.timeout_s)
    address = target.address
    if address is None:
        address = registered_address(bookie_id, await session.registrations.service_info(bookie_id))
    async with AdminClient(bookie_id, address, credentials=credentials, timeout_s=context.settings.timeout_s) as client:
        yield client


async def _in_cluster(target: BookieTarget, root: str, credentials: AdminCredentials, timeout_s: float) -> BookieTarget:
    """Without the address on this machine if the bookie there says that it belongs to a cluster with another root."""
    if target.address is None:
        return target
    from bkctl.runtime.admin.client import AdminClient

    async with AdminClient(target.name, target.address, credentials=credentials, timeout_s=timeout_s) as client:
        with contextlib.suppress(BkctlError):  # the error comes when it is used
            state = await read_state(client)
            if state.metadata_root not in {"", root}:
                return msgspec.structs.replace(target, address=None, other_root=state.metadata_root)
    return target


async def _registered(context: CommandContext, target: BookieTarget) -> AdminAddress:
    from bkctl.commands.session import open_session

    async with open_session(context, must_exist=False) as session:
        info = await session.registrations.service_info(target.name)
    return registered_address(target.name, info)


def registered_address(bookie_id: str, info: BookieServiceInfo) -> AdminAddress:
    """Address of the admin port in a registration; BookieUnavailableError if there is none."""
    found = info.http_address
    if found is None:
        raise BookieUnavailableError(
            bookie_id,
            f"it has no admin port in its registration: {_OPEN_HTTP}, or run bkctl on its machine (only bkctl bookies)",
        )
    if found.host not in ALL_ADDRESSES:
        return AdminAddress(host=found.host, port=found.port, is_https=info.is_https)
    # A Java bookie registers the address that it listens on.
    if info.rpc_address is None:
        raise BookieUnavailableError(bookie_id, "its registration has no address: set httpServerHost")
    return AdminAddress(host=info.rpc_address.host, port=found.port, is_https=info.is_https)


@contextlib.asynccontextmanager
async def open_admin(
    context: CommandContext, bookie_id: str | None, directory: str | None, token_file: str | None = None
) -> AsyncIterator[AdminClient]:
    """A client of the bookie that the command line means; each of its requests may take ``--timeout``.

    Errors as ``find_target`` and ``resolve``.
    """
    credentials = read_credentials(context, token_file)
    target = find_target(bookie_id, directory, context)
    if bookie_id is not None and (uri := context.settings.metadata_uri) is not None:
        from bkctl.runtime.metadata.uri import parse_metadata_uri

        root = parse_metadata_uri(uri).root
        target = await _in_cluster(target, root, credentials, context.settings.timeout_s)
    address = await resolve(context, target)
    from bkctl.runtime.admin.client import AdminClient

    async with AdminClient(
        target.name, address, credentials=credentials, timeout_s=context.settings.timeout_s
    ) as client:
        yield client


@contextlib.asynccontextmanager
async def open_for_change(
    context: CommandContext, bookie_id: str | None, directory: str | None, token_file: str | None
) -> AsyncIterator[AdminClient]:
    """The same for a command that changes the bookie: BookieUnavailableError if a bookie with another ID answers."""
    async with open_admin(context, bookie_id, directory, token_file) as client:
        if bookie_id is not None:
            await read_state_of(client, client.name)
        yield client


@contextlib.asynccontextmanager
async def open_admins(
    context: CommandContext, bookie_ids: list[str] | None, directory: str | None, token_file: str | None = None
) -> AsyncIterator[list[AdminClient]]:
    """Clients of the bookies that the command line means, each once, to change them; errors as ``open_for_change``."""
    async with contextlib.AsyncExitStack() as at_end:
        ids = dict.fromkeys(bookie_ids or (None,))
        yield [await at_end.enter_async_context(open_for_change(context, each, directory, token_file)) for each in ids]


def read_credentials(context: CommandContext, token_file: str | None) -> AdminCredentials:
    """The token for changes over TCP, who may get it, and the TLS files; InvalidArgumentError, ConfigurationError."""
    settings = context.settings
    tls_config, tls_context = settings.client.security.tls, None
    if tls_config is not None and tls_config.ca_file is not None:
        from bkctl.runtime.security.tls_contexts import client_contexts

        # A token that goes to another host is lost, whatever the bookies' port accepts.
        checked = msgspec.structs.replace(tls_config, is_hostname_checked=True)
        tls_context = client_contexts(checked, os.environ).current
    return AdminCredentials(_read_token(token_file), settings.admin_token_hosts, tls_context, tls_config)


def _read_token(token_file: str | None) -> str | None:
    path = token_file or os.environ.get(_TOKEN_VARIABLE)
    if not path:
        return None
    try:
        token = read_given_file(path).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgumentError(f"cannot read the token file {path}: {reason}") from error
    if not token.isprintable() or not 0 < len(token) <= _TOKEN_BYTES_MAX:
        raise InvalidArgumentError(f"the token file {path} must contain one line with the token")
    return token


def _find(bookie_id: str | None, directory: str | None, context: CommandContext) -> BookieTarget:
    if directory is not None:
        if bookie_id is not None:
            raise InvalidArgumentError("use either an ID or --ledger-dir")
        return _in_directory(os.path.abspath(directory))
    if bookie_id is not None:
        return _with_id(parse_bookie_id(bookie_id))
    configured = _configured_directory(context)
    return _only_one() if configured is None else _in_directory(configured)


def _require_owner(name: str, path: str) -> None:
    """AdminAccessError for another user: the socket has mode 0600."""
    with contextlib.suppress(OSError):  # the error comes when it is used
        owner = os.stat(path).st_uid
        if os.geteuid() not in {0, owner}:
            raise AdminAccessError(f"bookie {name}: {path} is for user {_user_name(owner)}: run bkctl as that user")


def _user_name(user_id: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def _in_directory(directory: str) -> BookieTarget:
    path = os.path.join(directory, ADMIN_SOCKET)
    name = f"in {directory}"
    try:
        address = address_in(directory)
        os.stat(address.socket_path)
    except PermissionError as error:
        raise AdminAccessError(f"bookie {name}: no permission to use {path}: run bkctl as its user") from error
    except FileNotFoundError as error:
        if not os.path.isdir(directory):
            raise InvalidArgumentError(f"{directory} is not a directory") from error
        raise BookieUnavailableError(
            name,
            f"it does not run: there is no {path} (it is in the first ledger directory of a running bkctl bookie; for "
            "a Java bookie give the ID)",
        ) from error
    return BookieTarget(name, address)


def _with_id(bookie_id: str) -> BookieTarget:
    other_user = None
    for each in list_local():
        found = identified(each)
        if found is not None and found.bookie_id == bookie_id:
            if found.is_trusted:
                return BookieTarget(bookie_id, found.address)
            other_user = found
    return BookieTarget(bookie_id, None, other_user)


def _only_one() -> BookieTarget:
    local = list_local()
    found = [each for each in local if each.is_trusted]
    if len(found) == 1:
        return BookieTarget(found[0].directory or found[0].address.socket_path, found[0].address)
    known = [each for each in map(identified, found) if each is not None]
    if len(known) == 1:
        return BookieTarget(known[0].bookie_id or known[0].address.socket_path, known[0].address)
    if known:
        listed = ", ".join(map(str, known))
        raise InvalidArgumentError(f"several bookies run on this machine: give an ID or --ledger-dir: {listed}")
    if local:
        raise AdminAccessError(_other_users([each for each in map(identified, local) if each is not None]))
    raise BookieNotFoundError(
        "no bkctl bookie runs on this machine: give --ledger-dir DIR, or an ID for a bookie of the cluster"
    )


def _other_users(bookies: list[LocalBookie]) -> str:
    """A sentence about sockets of other users, which are used only if the operator names the directory."""
    listed = ", ".join(map(str, bookies))
    advice = "give --ledger-dir if you trust its user" if os.geteuid() == 0 else "run bkctl as its user"
    return f"a socket of another user is not used: {listed}: {advice}"


def _configured_directory(context: CommandContext) -> str | None:
    """The first ledger directory of the settings; None if they have none, and no bookie of its own runs here."""
    try:
        settings = context.load_bookie_settings(BookieFlags())
    except NoDirectoryError:
        return None
    directory = os.path.abspath(settings.config.storage.ledger_directories[0])
    if settings.data_directory is not None and not os.path.lexists(os.path.join(directory, ADMIN_SOCKET)):
        return None  # nothing is configured
    return directory
