"""Reads the registrations of all bookies and manages a bookie's own. Source: metadata sections 8 and 9.

A registration is an ephemeral node, ``available/<id>`` or ``available/readonly/<id>``. While its mode changes, a bookie
is in both directories for a moment, never in none.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from bkctl.runtime.errors import (
    BookieNotFoundError,
    BookieUnavailableError,
    ClusterNotFoundError,
    MetadataAuthError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    RegistrationError,
    SessionExpiredError,
)
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.bookies.expiry import wait_for_expiry
from bkctl.runtime.metadata.bookies.service_info import (
    TROUBLE_PROPERTY,
    BookieServiceInfo,
    decode_service_info,
    encode_service_info,
)
from bkctl.runtime.metadata.paths import READ_ONLY, Paths
from bkctl.runtime.metadata.store import ANY_VERSION, CheckNode, MetadataStore, Node
from bkctl.runtime.ports import Clock
from bkctl.storage.errors import BkctlError

__all__ = ["BookieMode", "BookieRegistration", "RegistrationClient", "Registrations"]

logger = logging.getLogger(__name__)

_RETRY_DELAY_S = 1.0
_WARNED_MAX = 100
_UNREGISTER_TIMEOUT_S = 1.0
"""How long a stopping bookie waits for ZooKeeper: the end of the session removes its registration anyway."""
_SILENT = "ZooKeeper does not respond"
_EXPIRY_ROUNDING_S = 3.0
"""A server ends a session at its next tick (2 s by default); a restarting bkctl bookie may be faster than that."""


class BookieMode(enum.Enum):
    """Whether a bookie accepts writes."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"


class Registrations(msgspec.Struct, frozen=True):
    """Registered bookies at one moment, sorted; a bookie that changes its mode may be in both."""

    writable: tuple[str, ...]
    read_only: tuple[str, ...]

    @property
    def live(self) -> frozenset[str]:
        """All registered bookies, in either mode."""
        return frozenset(self.writable + self.read_only)


class RegistrationClient:
    """Current registrations and cookies of one cluster; nothing is cached. Names of nodes that no bookie can have are
    reported once."""

    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._paths = Paths(root)
        self._warned: set[str] = set()

    @property
    def connections_count(self) -> int:
        """How often the store has connected. If that grows, the store was out of reach, and so perhaps for bookies."""
        return self._store.measures.connections_count

    async def writable(self, on_change: Callable[[], None] | None = None) -> list[str]:
        """Ids of the writable bookies, sorted; ClusterNotFoundError."""
        return await self._ids(self._paths.available, on_change)

    async def read_only(self, on_change: Callable[[], None] | None = None) -> list[str]:
        """Ids of the read-only bookies, sorted; ClusterNotFoundError."""
        return await self._ids(self._paths.read_only, on_change)

    async def with_cookie(self) -> list[str]:
        """Ids of all bookies that belong to the cluster, live or not, sorted; ClusterNotFoundError."""
        return await self._ids(self._paths.cookies)

    async def snapshot(self, on_change: Callable[[], None] | None = None) -> Registrations:
        """Both sets. Reads writable before and after read-only, so that no bookie that changes its mode is missed.

        The reads are sent at once, and the server answers them in this order: a bookie that changes its mode twice
        meanwhile could be in none of them. ``on_change`` as in ``MetadataStore.children``: when either set changes.
        """
        writable, read_only, again = await asyncio.gather(
            self.writable(on_change), self.read_only(on_change), self.writable()
        )
        return Registrations(writable=tuple(sorted({*writable, *again})), read_only=tuple(read_only))

    async def member_since(self, bookie_id: str, on_change: Callable[[], None] | None = None) -> int | None:
        """When the cookie of a bookie was created, in ms since 1970; None without one.

        A bookie that was removed and came back empty has a newer cookie. ``on_change`` as in ``MetadataStore.exists``.
        """
        stat = await self._store.exists(self._paths.cookie(bookie_id), on_change)
        return None if stat is None else stat.ctime_ms

    def checks(self, bookie_id: str) -> tuple[CheckNode, CheckNode]:
        """For a transaction that must fail unless the bookie is writable and has a cookie when it is carried out."""
        return (
            CheckNode(self._paths.writable_bookie(bookie_id), ANY_VERSION),
            CheckNode(self._paths.cookie(bookie_id), ANY_VERSION),
        )

    async def service_info(self, bookie_id: str) -> BookieServiceInfo:
        """The info that a registered bookie publishes.

        BookieUnavailableError when it is not registered or its info is invalid, BookieNotFoundError when the cluster
        does not know the bookie.
        """
        for path in (self._paths.writable_bookie(bookie_id), self._paths.read_only_bookie(bookie_id)):
            try:
                node = await self._store.get(path)
                return decode_service_info(bookie_id, node.data)
            except NoNodeError:
                continue
            except MetadataFormatError as error:
                logger.warning("%s makes Java clients hang: %s", path, error)
                raise BookieUnavailableError(bookie_id, str(error)) from error
        if is_valid_bookie_id(bookie_id) and await self._store.exists(self._paths.cookie(bookie_id)) is not None:
            raise BookieUnavailableError(bookie_id, "not registered")
        raise BookieNotFoundError(f"no bookie {bookie_id} in this cluster", bookie_id)

    async def address(self, bookie_id: str) -> tuple[str, int]:
        """Host and port where a registered bookie accepts ledger requests; errors as ``service_info``."""
        info = await self.service_info(bookie_id)
        if info.rpc_address is None:
            raise BookieUnavailableError(bookie_id, "its registration has no port for ledger requests")
        return info.rpc_address.host, info.rpc_address.port

    async def troubles(self, registered: Registrations) -> dict[str, str]:
        """What registered bookies publish that is wrong with them, by bookie; without those where nothing is."""
        paths = {self._paths.read_only_bookie(each): each for each in registered.read_only}
        paths |= {self._paths.writable_bookie(each): each for each in registered.writable}
        nodes = await self._store.get_all(tuple(paths)) if paths else ()
        found: dict[str, str] = {}
        for bookie_id, node in zip(paths.values(), nodes, strict=True):
            with contextlib.suppress(MetadataFormatError):
                if isinstance(node, Node) and (trouble := decode_service_info(bookie_id, node.data).trouble):
                    found[bookie_id] = trouble
        return found

    async def running_bkctl(self, bookie_ids: Iterable[str]) -> frozenset[str]:
        """Those of these bookies whose registrations say that they run bkctl; MetadataError.

        Only they certainly serve the newest copy of an entry that they have got twice: Java's read-ahead may return an
        older one (H18). A bookie that is not registered, or publishes no software, does not count.
        """
        found = set()
        for bookie_id in bookie_ids:
            with contextlib.suppress(BookieNotFoundError, BookieUnavailableError):
                if (await self.service_info(bookie_id)).is_bkctl:
                    found.add(bookie_id)
        return frozenset(found)

    async def _ids(self, directory: str, on_change: Callable[[], None] | None = None) -> list[str]:
        try:
            names = await self._store.children(directory, on_change)
        except NoNodeError:
            if on_change is not None:
                on_change()  # nothing watches an absent directory
            if await self._store.exists(self._paths.root) is None:
                raise ClusterNotFoundError(self._paths.root) from None
            return []
        return [name for name in names if name != READ_ONLY and self._is_usable(f"{directory}/{name}", name)]

    def _is_usable(self, path: str, name: str) -> bool:
        """One stray node must not break a listing, as it does in Java (metadata section 9.4)."""
        if is_valid_bookie_id(name):
            return True
        if path not in self._warned and len(self._warned) < _WARNED_MAX:
            self._warned.add(path)
            logger.warning("%s is not a bookie id; ignored, but it makes Java clients hang: remove it", path)
        return False


class BookieRegistration:
    """One bookie's own registration, renewed after the loss of a session.

    ``on_failed`` is called when it cannot be renewed because another session holds the same bookie id, or because
    ``require_cookie`` raises: the bookie must stop then. ``require_cookie`` is called before and after each new
    registration. A decommission deletes the cookie first and then checks the registrations, so at least one of the two
    sees the other.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str,
        service_info: BookieServiceInfo,
        *,
        clock: Clock,
        session_timeout_ms: int,
        on_failed: Callable[[BkctlError], None],
        require_cookie: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if not is_valid_bookie_id(bookie_id):
            raise RegistrationError(f"{bookie_id!r} cannot be a bookie id")
        if service_info.rpc_address is None:
            # Without any endpoint the payload would be empty. Under an id that is no host:port, this makes every
            # starting Java client hang (metadata section 8.2).
            raise RegistrationError(f"bookie {bookie_id} would publish no port for ledger requests")
        self._store = store
        self._clock = clock
        self._paths = Paths(root)
        self._bookie_id = bookie_id
        self._service_info = service_info
        self._payload = encode_service_info(service_info)
        self._wait_for_expiry_s = session_timeout_ms / 1000 + _EXPIRY_ROUNDING_S
        self._on_failed = on_failed
        self._require_cookie = require_cookie or _no_check
        self._mode: BookieMode | None = None
        self._is_registered = False
        self._refusal = ""
        self._trouble = ""
        self._sessions_lost_count = 0
        self._one_change_at_a_time = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        store.on_session_lost(self._note_session_lost)

    @property
    def mode(self) -> BookieMode | None:
        """Mode of the registration, which a renewal restores; None before the first one and after ``unregister``."""
        return self._mode

    @property
    def is_registered(self) -> bool:
        """Whether the current session holds the registration."""
        return self._is_registered

    @property
    def refusal(self) -> str:
        """Why this user may not register again; empty if it may."""
        return self._refusal

    @property
    def sessions_lost_count(self) -> int:
        """Sessions that expired."""
        return self._sessions_lost_count

    async def register(self, mode: BookieMode) -> None:
        """Register, or change the mode.

        Waits until the registration of an earlier process of this bookie expires. RegistrationError when another
        process keeps it, the cluster does not exist, or ``require_cookie`` raises it; MetadataUnavailableError.
        MetadataAuthError: this user may not; a bookie that was registered still is in its old mode.
        """
        async with self._one_change_at_a_time:
            await self._register(mode)
            self._mode = mode

    async def publish(self, trouble: str) -> None:
        """Publish what is wrong with the bookie, "" if nothing is; later registrations have it, too.

        Writes only what is new. Does nothing without a registration. Errors as ``register``.
        """
        async with self._one_change_at_a_time:
            if trouble == self._trouble or self._mode is None or not self._is_registered:
                return
            properties = self._service_info.properties | ({TROUBLE_PROPERTY: trouble} if trouble else {})
            info = msgspec.structs.replace(self._service_info, properties=properties)
            self._payload = encode_service_info(info)
            await self._register(self._mode)
            self._trouble = trouble

    async def unregister(self) -> None:
        """Delete the registration, within a second; it is no longer renewed.

        If a deletion fails, the node disappears with the session.
        """
        if self._renewal is not None:
            self._renewal.cancel()
        try:
            async with asyncio.timeout(_UNREGISTER_TIMEOUT_S), self._one_change_at_a_time:
                was_registered, self._is_registered, self._mode = self._is_registered, False, None
                failures = await asyncio.gather(*map(self._take_back, self._both_paths() if was_registered else ()))
                failure = next(filter(None, failures), None)
        except TimeoutError:
            self._is_registered, self._mode = False, None
            failure = _SILENT
        if failure is not None:
            logger.warning(
                "bookie %s: %s, so the registration stays until the session expires", self._bookie_id, failure
            )

    async def _take_back(self, path: str) -> str | None:
        """Delete a node of this registration; return why that failed, None when the node is gone."""
        try:
            await self._store.delete(path)
        except (NoNodeError, SessionExpiredError):
            return None
        except MetadataUnavailableError:
            return _SILENT  # no answer: treated like a server that was down before the request
        except MetadataError as error:
            return str(error)
        return None

    async def _register(self, mode: BookieMode) -> None:
        sessions_lost_count = self._sessions_lost_count
        writable_path, read_only_path = self._both_paths()
        is_new = not self._is_registered
        if is_new:
            await self._require_cookie()
        if mode is BookieMode.WRITABLE:
            await self._exchange(read_only_path, writable_path)
        else:
            if await self._store.exists(self._paths.read_only) is None:
                with contextlib.suppress(NodeExistsError, NoNodeError):
                    await self._store.create(self._paths.read_only)
            await self._exchange(writable_path, read_only_path)
        if is_new:
            await self._require_cookie_or_withdraw(sessions_lost_count)
        if self._sessions_lost_count != sessions_lost_count:
            raise MetadataUnavailableError("the ZooKeeper session expired during the registration")
        self._is_registered = True

    async def _require_cookie_or_withdraw(self, sessions_lost_count: int) -> None:
        try:
            await self._require_cookie()
        except MetadataUnavailableError:
            raise  # no answer: the node disappears with the session, or the next attempt checks again
        except BkctlError:
            if self._sessions_lost_count == sessions_lost_count:  # otherwise the node may belong to another process
                await asyncio.gather(*map(self._take_back, self._both_paths()))
            raise

    def _both_paths(self) -> tuple[str, str]:
        return self._paths.writable_bookie(self._bookie_id), self._paths.read_only_bookie(self._bookie_id)

    async def _exchange(self, old_path: str, new_path: str) -> None:
        """Own the new node, then delete the old one. If that is not permitted, this session's new one is taken back."""
        is_created = await self._hold(new_path)
        try:
            await self._drop(old_path)
        except MetadataAuthError:
            if is_created:
                await self._take_back(new_path)
            raise

    async def _drop(self, path: str) -> None:
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass
        except MetadataError as error:
            if isinstance(error, MetadataAuthError) and self._is_registered:
                raise  # it is of this session, so it would stay
            logger.warning(
                "bookie %s: its old registration stays until its session expires: %s", self._bookie_id, error
            )

    async def _hold(self, path: str) -> bool:
        """Own an ephemeral node with the payload at ``path`` (metadata section 8.3), perhaps one of this session.

        Returns whether it is new.
        """
        stat = await self._store.exists(path)
        if stat is not None:
            if stat.ephemeral_owner == self._store.session_id:
                if (await self._store.get(path)).data != self._payload:
                    await self._store.set(path, self._payload, ANY_VERSION)
                return False
            if not stat.ephemeral_owner:
                raise RegistrationError(
                    f"{path} is not a registration but a persistent node that was created by hand; delete it "
                    "(bkctl metadata doctor lists such nodes)"
                )
            await wait_for_expiry(self._store, path, self._bookie_id, self._wait_for_expiry_s)
        try:
            await self._store.create(path, self._payload, is_ephemeral=True)
        except NodeExistsError:
            # An earlier create whose answer was lost may have created it.
            stat = await self._store.exists(path)
            if stat is None or stat.ephemeral_owner != self._store.session_id:
                raise RegistrationError(
                    f"another process registered as {self._bookie_id} at the same time: stop it, or choose another id"
                ) from None
        except NoNodeError:
            raise RegistrationError(await self._why_there_is_no_directory()) from None
        return True

    async def _why_there_is_no_directory(self) -> str:
        """A nuke deletes it first and a restore creates it last: creating it in between would enable collection."""
        root = self._paths.root
        if await self._store.exists(root) is None:
            return str(ClusterNotFoundError(root))
        return (
            f"{self._paths.available} is missing, so no bookie can register in {root}: a restore or nuke may be "
            "unfinished; run bkctl metadata doctor"
        )

    def _note_session_lost(self) -> None:
        self._sessions_lost_count += 1
        self._is_registered = False
        if self._mode is None or (self._renewal is not None and not self._renewal.done()):
            return
        logger.warning("bookie %s: the ZooKeeper session expired, registering again", self._bookie_id)
        self._renewal = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        async with self._one_change_at_a_time:
            while self._mode is not None and not self._is_registered:
                try:
                    await self._register(self._mode)
                except MetadataUnavailableError as error:
                    logger.warning("bookie %s is not registered: %s", self._bookie_id, error)
                    await self._clock.sleep(_RETRY_DELAY_S)
                except MetadataAuthError as error:
                    if str(error) != self._refusal:
                        logger.error("bookie %s may not register again: %s", self._bookie_id, error)
                    self._refusal = str(error)
                    await self._clock.sleep(_RETRY_DELAY_S)
                except BkctlError as error:
                    logger.error("bookie %s cannot register again: %s", self._bookie_id, error)
                    self._on_failed(error)
                    return
            self._refusal = ""
        logger.warning("bookie %s is registered again", self._bookie_id)


async def _no_check() -> None:
    """For registrations without a cookie."""
