"""MetadataStore on ZooKeeper; this package is the only one that uses kazoo. Source: metadata 2 and 14.

kazoo has its own threads; all here runs on the event loop, which gets answers by ``call_soon_threadsafe``. Paths are
without chroot (metadata 2.2). Java's Disconnected is kazoo's SUSPENDED (operations wait), its Expired kazoo's LOST.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import (
    MetadataAuthError,
    MetadataError,
    MetadataLoginError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    CLOSE_TIMEOUT_S,
    MetadataMeasures,
    Node,
    NodeStat,
    NodeWrite,
    Watch,
    check_data,
    check_path,
    check_writes,
)
from bkctl.runtime.metadata.zookeeper import access
from bkctl.runtime.metadata.zookeeper.connect_failures import ConnectFailures, WaitReports
from bkctl.runtime.metadata.zookeeper.errors import translate
from bkctl.runtime.metadata.zookeeper.threads import LoopHandler, server_addresses
from bkctl.runtime.metadata.zookeeper.transactions import MultiReader, Transaction, begin_request, node_stat, stats_of
from bkctl.runtime.metadata.zookeeper.watches import StandingWatch, Watcher, one_shot
from bkctl.storage.measures import Outcomes

logger = logging.getLogger(__name__)
logger.addHandler(logging.NullHandler())  # silent unless the program configures logging
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
"""For --debug: every attempt to connect, and more. ``_change_state`` logs the events that matter once."""
_kazoo_logger.addFilter(access.RedactingFilter())

T = TypeVar("T")

_RECONNECT_DELAY_S = 1.0
_TIDY_TIMEOUT_S = 0.5
_AUTH_FAILURES_MAX = 2
"""A server that dies during a SASL exchange looks like one that rejects the password, but not twice in a row."""


class ZooKeeperStore:
    """A ZooKeeper session that renews itself; see ``bkctl.runtime.metadata.store`` for the contract."""

    def __init__(
        self,
        servers: str,
        config: ZooKeeperConfig,
        environment: Mapping[str, str],
        on_wait: Callable[[str | None], None] | None = None,
    ) -> None:
        self._servers = servers
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._acl = CREATOR_ALL_ACL if config.has_secure_acl else OPEN_ACL_UNSAFE
        self._session_id = 0
        self.measures = MetadataMeasures()
        self._sessions_lost_count = 0
        self._auth_failures_count = 0
        self._is_closed = self._has_been_answered = False
        self._fatal_error: MetadataError | None = None
        self._state_changed = asyncio.Event()
        self._is_connected = False
        self._session_lost_callbacks: list[Callable[[], None]] = []
        self._watches: set[StandingWatch[Any]] = set()
        self._answers: set[asyncio.Future[Any]] = set()
        self._revival: asyncio.Task[None] | None = None
        self._opener = asyncio.current_task()
        self._failures = ConnectFailures(server_addresses(servers), is_secured=config.tls is not None)
        self._wait_reports = WaitReports(self._failures, on_wait)
        tls = None if config.tls is None else access.tls_contexts(config.tls, environment)
        self._handler = LoopHandler(self._loop, self._failures, tls, self._note_connect_failed, config)
        self._client = KazooClient(
            hosts=servers,
            timeout=config.session_timeout_ms / 1000,
            handler=self._handler,
            # kazoo's default retry delay grows up to an hour.
            connection_retry=KazooRetry(max_tries=-1, max_delay=_RECONNECT_DELAY_S),
            logger=_kazoo_logger,
            **access.session_credentials(config, environment, self._failures.note_login),
        )
        self.get_all = MultiReader(self._client, self, self._request, self.measures.gets).get_all

    @classmethod
    async def connect(
        cls,
        servers: str,
        config: ZooKeeperConfig | None = None,
        environment: Mapping[str, str] | None = None,
        on_wait: Callable[[str | None], None] | None = None,
    ) -> Self:
        """Open a session on ``host:port[,host:port...]``. ``environment`` None: that of the process, for secrets.

        ``on_wait`` is called with the reason whenever there is no connection for half a second, now or later, again if
        the reason changes, and with None when that is over.
        MetadataUnavailableError when no server opens one within the operation time-out, MetadataAuthError when they
        refuse this client, ConfigurationError when ``servers``, a secret or a certificate cannot be read.
        """
        store = cls(servers, config or ZooKeeperConfig(), os.environ if environment is None else environment, on_wait)
        store._client.add_listener(store._listen)
        store._wait_reports.begin()
        store._client.start_async()
        try:
            with store.measures.opened.timed(time.monotonic_ns):
                async with asyncio.timeout(store._config.operation_timeout_s):
                    await store._wait_connected(0, "/")
        except TimeoutError:
            reasons = await store._failures.explain()
            await store.close()
            raise MetadataUnavailableError(
                f"no ZooKeeper server responds at {servers} (waited {store._config.operation_timeout_s:g} s)"
                + (f": {reasons}" if reasons else "")
            ) from None
        except BaseException:
            await store.close()
            raise
        if store._config.digest is not None or store._config.sasl is not None:
            await store._prove_credentials()
        return store

    async def _prove_credentials(self) -> None:
        """Credentials are sent on the open session; the first answer shows whether the server accepted them."""
        try:
            await self.exists("/")
        except BaseException as error:
            await self.close()
            if isinstance(error, MetadataUnavailableError) and self._config.sasl is not None:
                raise MetadataLoginError(access.unfinished_login(self._servers, self._config.sasl)) from error
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 between two sessions."""
        return self._session_id

    @property
    def zxid(self) -> int:
        """Number of the last transaction that the server had carried out when it last answered."""
        return int(self._client.last_zxid)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, once per session that ended by expiry."""
        self._session_lost_callbacks.append(callback)

    # -- session ------------------------------------------------------------------------------------------------

    def _listen(self, state: str) -> None:
        """Called on kazoo's connection thread: read the state that may change later and pass it to the loop."""
        client_id = self._client.client_id
        keeper_state = self._client.client_state
        session_id = client_id[0] if client_id else 0
        self._handler.call_on_loop(functools.partial(self._change_state, state, keeper_state, session_id))

    def _change_state(self, state: str, keeper_state: str, session_id: int) -> None:
        if self._is_closed:
            return
        if (was_connected := self._is_connected) != (state == KazooState.CONNECTED):
            self._notify_connection(is_lost=was_connected)
        self._is_connected = self.measures.is_connected = state == KazooState.CONNECTED
        if state == KazooState.CONNECTED:
            self._session_id = session_id
            self.measures.connections_count += not was_connected
            self._failures.clear()
        elif state == KazooState.LOST:
            self._lose_session(keeper_state)
        self._wake_waiters()
        if state == KazooState.LOST:
            for callback in list(self._session_lost_callbacks):
                try:
                    callback()
                except Exception as error:  # the other callbacks must still be called
                    message = "callback for a lost session failed"
                    self._loop.call_exception_handler({"message": message, "exception": error})

    def _lose_session(self, keeper_state: str) -> None:
        self._session_id = 0
        self._sessions_lost_count += 1
        if keeper_state == KeeperState.AUTH_FAILED:
            failure = self._failures.login_failure
            # A ticket may be renewed, and a KDC may be back, while an operation waits.
            self._auth_failures_count += failure is None
            if not self._has_been_answered or self._auth_failures_count >= _AUTH_FAILURES_MAX:
                failure = failure or access.rejected_login(self._servers, self._config.sasl)
                self._fatal_error = MetadataAuthError(f"no session with ZooKeeper: {failure}")
        self._fail_answers(self._fatal_error or self._failures.login_error() or kazoo_errors.SessionExpiredError())
        if keeper_state != KeeperState.EXPIRED_SESSION and self._fatal_error is None:
            # After an expiry kazoo opens the next session by itself; in every other case its thread has ended.
            self._revival = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        await asyncio.sleep(_RECONNECT_DELAY_S)
        await asyncio.to_thread(self._start_again)

    def _start_again(self) -> None:
        self._client.start_async()
        if self._is_closed:
            self._client.stop()
            self._client.close()

    def _note_connect_failed(self) -> None:
        if self._has_been_answered or self._is_closed or self._failures.refusal is None:
            return  # a server that once accepted this client may do so again
        self._fatal_error = MetadataAuthError(f"no session with ZooKeeper: {self._failures.refusal}")
        self._wake_waiters()

    def _fail_answers(self, error: Exception) -> None:
        answers, self._answers = self._answers, set()
        for answer in answers:
            if not answer.done():
                answer.set_exception(error)

    def _notify_connection(self, *, is_lost: bool) -> None:
        if is_lost:
            self._wait_reports.begin()
            logger.warning("lost the connection to ZooKeeper at %s, reconnecting", self._servers)
            return
        self._wait_reports.end()
        if self._session_id or self._sessions_lost_count:
            logger.warning("connected to ZooKeeper at %s again", self._servers)

    def _wake_waiters(self) -> None:
        self._state_changed.set()
        self._state_changed = asyncio.Event()

    async def _wait_connected(self, sessions_lost_count: int, path: str) -> None:
        """Return once connected; raise if the store is closed or the session that the caller started in is gone."""
        while True:
            if self._is_closed:
                raise translate(kazoo_errors.ConnectionClosedError(), path)
            if self._fatal_error is not None:
                raise self._fatal_error
            if self._sessions_lost_count != sessions_lost_count:
                raise self._failures.login_error(path) or translate(kazoo_errors.SessionExpiredError(), path)
            # Kazoo's connection thread is ahead of the loop. It may have lost this connection and may already have
            # another session, but the operations of this session must fail first.
            identity = self._client.client_id if self._is_connected else None
            if identity is not None and identity[0] == self._session_id:
                return
            await self._state_changed.wait()

    # -- requests -----------------------------------------------------------------------------------------------

    async def _request(
        self, path: str, outcomes: Outcomes, submit: Callable[[], Any], *, is_read: bool, is_of_parent: bool = False
    ) -> Any:
        """Run one kazoo call within the operation time-out; repeat a read, never a write, after a lost connection.

        A request is passed to kazoo only while connected. Otherwise kazoo would send it after a reconnect, perhaps long
        after the caller's time-out. What a cancelled command still asks for only tidies up: it hardly waits for that.
        ``is_of_parent``: see ``translate``.
        """
        sessions_lost_count, limit_s = self._sessions_lost_count, self._config.operation_timeout_s
        check_path(path)
        if not self._is_connected and self._opener is not None and self._opener.cancelling():
            limit_s = min(_TIDY_TIMEOUT_S, limit_s)
        try:
            with outcomes.timed(time.monotonic_ns):
                async with asyncio.timeout(limit_s):
                    while True:
                        await self._wait_connected(sessions_lost_count, path)
                        try:
                            return await self._answer(submit())
                        except kazoo_errors.ConnectionLoss:
                            if not is_read:
                                raise
        except TimeoutError:
            reasons = f" ({self._failures.sentence})" if self._failures.sentence else ""
            waited = f"no response from ZooKeeper in {limit_s:g} s{reasons}"
            raise MetadataUnavailableError(f"{path}: {waited}", path) from None
        except kazoo_errors.KazooException as error:
            raise translate(error, path, is_of_parent=is_of_parent) from error

    def _answer(self, result: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._answers.add(answer)
        result.rawlink(lambda ready: self._handler.call_on_loop(functools.partial(self._settle, answer, ready)))
        return answer

    def _settle(self, answer: asyncio.Future[Any], ready: Any) -> None:
        self._answers.discard(answer)
        if ready.exception is None:
            self._has_been_answered, self._auth_failures_count = True, 0
        if answer.done():
            return  # timed out, cancelled, or the session ended meanwhile
        if ready.exception is None:
            answer.set_result(ready.value)
        else:
            answer.set_exception(ready.exception)

    async def get(self, path: str) -> Node:
        """Contents of a node; NoNodeError."""
        return await self._read_node(path, None)

    async def _read_node(self, path: str, watcher: Watcher | None) -> Node:
        gets, get = self.measures.gets, functools.partial(self._client.get_async, path, watch=watcher)
        data, stat = await self._request(path, gets, get, is_read=True)
        return Node(data=data, stat=node_stat(stat))

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat of a node, None when absent."""
        return await self._read_stat(path, one_shot(on_change))

    async def _read_stat(self, path: str, watcher: Watcher | None) -> NodeStat | None:
        exists = functools.partial(self._client.exists_async, path, watch=watcher)
        stat = await self._request(path, self.measures.exists, exists, is_read=True)
        return None if stat is None else node_stat(stat)

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError."""
        return await self._read_children(path, one_shot(on_change))

    async def _read_children(self, path: str, watcher: Watcher | None) -> list[str]:
        list_children = functools.partial(self._client.get_children_async, path, watch=watcher)
        names = await self._request(path, self.measures.lists, list_children, is_read=True)
        return sorted(names)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        is_ephemeral: bool = False,
        is_sequential: bool = False,
        make_parents: bool = False,
        is_open_acl: bool = False,
    ) -> str:
        """Create a node and return its path; NodeExistsError, NoNodeError without ``make_parents``."""
        acl = OPEN_ACL_UNSAFE if is_open_acl else self._acl
        check_data(path, data)
        create = functools.partial(
            self._client.create_async, path, data, acl=acl, ephemeral=is_ephemeral, sequence=is_sequential
        )
        creates = self.measures.creates
        while True:
            try:
                created: str = await self._request(path, creates, create, is_read=False, is_of_parent=True)
            except NoNodeError:
                parent = path.rpartition("/")[0]
                if not make_parents or not parent:
                    raise
                await self._create_parent(parent, is_open_acl=is_open_acl)
            else:
                return created

    async def _create_parent(self, path: str, *, is_open_acl: bool) -> None:
        # Another client may create it first, or one that deletes empty parents may delete it again: the caller loops.
        with contextlib.suppress(NodeExistsError):
            await self.create(path, make_parents=True, is_open_acl=is_open_acl)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """All of these writes in one transaction, or none; the error names the node at fault."""
        check_writes(writes)
        commit = functools.partial(begin_request, self._client, Transaction(writes, self._acl))
        results = await self._request(writes[0].path, self.measures.transactions, commit, is_read=False)
        return stats_of(writes, results)

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        """Replace contents at a version; BadVersionError, NoNodeError."""
        check_data(path, data)
        replace = functools.partial(self._client.set_async, path, data, expected_version)
        return node_stat(await self._request(path, self.measures.sets, replace, is_read=False))

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete a node at a version; BadVersionError, NoNodeError, NotEmptyError."""
        delete = functools.partial(self._client.delete_async, path, expected_version)
        await self._request(path, self.measures.deletes, delete, is_read=False, is_of_parent=True)

    async def sync(self, path: str) -> None:
        """Make later reads see everything that others finished before this call."""
        await self._request(path, self.measures.syncs, lambda: self._client.sync_async(path), is_read=True)

    # -- watches ------------------------------------------------------------------------------------------------

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        """Call back with the sorted children now, after every change and after every reconnect."""
        return self._watch(path, self._read_children, callback)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back with the node now, after every change and after every reconnect."""
        return self._watch(path, self._read_node, callback)

    def _watch(
        self, path: str, read: Callable[[str, Watcher], Awaitable[T]], callback: Callable[[T | None], None]
    ) -> Watch:
        async def arm_absent(watcher: Watcher) -> bool:
            return await self._read_stat(path, watcher) is None

        watch = StandingWatch(path, functools.partial(read, path), arm_absent, callback)
        self._watches = {each for each in self._watches if each.is_active} | {watch}
        return watch

    async def close(self) -> None:
        """End the session; its ephemeral nodes disappear immediately. Running operations fail; can be repeated."""
        if self._is_closed:
            return
        self._is_closed, was_connected = True, self._is_connected
        self._is_connected = self.measures.is_connected = False
        self._wait_reports.end()
        self._wake_waiters()
        self._fail_answers(kazoo_errors.ConnectionClosedError())
        for watch in list(self._watches):
            watch.cancel()
        if self._revival is not None:
            self._revival.cancel()
        stopped = asyncio.Event()
        # A separate daemon thread: kazoo may wait long for a server that does not respond.
        threading.Thread(target=self._stop_client, args=(stopped,), name="zookeeper-close", daemon=True).start()
        with contextlib.suppress(TimeoutError):  # without a connection no server hears that the session ends
            await asyncio.wait_for(stopped.wait(), CLOSE_TIMEOUT_S if was_connected else _TIDY_TIMEOUT_S)

    def _stop_client(self, stopped: asyncio.Event) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:  # the session time-out deletes the nodes
            logger.debug("the ZooKeeper client did not stop: %s", error)
        self._handler.call_on_loop(stopped.set)
