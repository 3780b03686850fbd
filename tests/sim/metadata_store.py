"""The MetadataStore port on a model: a client of ``ModelZooKeeper`` over a link that can be cut, frozen and made deaf.

Time and randomness are the clock's. A request takes a moment there and a moment back; requests of one connection keep
their order, answers and watch events theirs.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeVar, cast

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import (
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
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
from bkctl.runtime.metadata.zookeeper.watches import StandingWatch, Watcher
from bkctl.runtime.ports import Clock
from tests.sim import zookeeper_model
from tests.sim.zookeeper_model import ModelZooKeeper

T = TypeVar("T")
Request = Callable[["ModelConnection"], object]

_DELAY_S = (0.000_05, 0.001)
_RECONNECT_DELAY_S = (0.05, 0.3)
_DROPPED_SHARE = 0.5
_LATE_S_MAX = 1.0
_tokens = itertools.count()


class _ConnectionLostError(Exception):
    """The answer will not come."""


class _Pipe:
    """One direction of a connection: in order, each message after a moment of its own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._messages: collections.deque[Callable[[], None]] = collections.deque()
        self._is_timer_set = False
        self.is_frozen = False
        self.is_closed = False

    def send(self, message: Callable[[], None]) -> None:
        self._messages.append(message)
        self.go_on()

    def thaw(self) -> None:
        self.is_frozen = False
        self.go_on()

    def go_on(self) -> None:
        if self._messages and not (self._is_timer_set or self.is_frozen or self.is_closed):
            self._is_timer_set = True
            self._clock.call_later(self._clock.random.uniform(*_DELAY_S), self._deliver)

    def _deliver(self) -> None:
        self._is_timer_set = False
        if not (self.is_frozen or self.is_closed):
            self._messages.popleft()()
            self.go_on()


class ModelLink:
    """The way from one client to the server, and what can happen to it."""

    def __init__(self) -> None:
        self._connections: list[ModelConnection] = []
        self.is_down = self.is_frozen = self.is_deaf = False

    def cut(self) -> None:
        """Connections break; new ones are refused until ``restore``."""
        self.is_down = True
        for connection in list(self._connections):
            connection.lose()

    def freeze(self) -> None:
        """Nothing passes either way, nothing is lost, until ``restore``."""
        self._set_frozen(is_frozen=True)

    def lose_answers(self) -> None:
        """Requests arrive, what comes back is lost. Cut the link before it is restored."""
        self.is_deaf = True

    def restore(self) -> None:
        """All is well again."""
        self.is_down = self.is_deaf = False
        self._set_frozen(is_frozen=False)

    def _set_frozen(self, *, is_frozen: bool) -> None:
        self.is_frozen = is_frozen
        for connection in self._connections:
            connection.set_frozen(is_frozen=is_frozen)

    def add(self, connection: ModelConnection) -> None:
        self._connections.append(connection)
        connection.set_frozen(is_frozen=self.is_frozen)

    def remove(self, connection: ModelConnection) -> None:
        with contextlib.suppress(ValueError):
            self._connections.remove(connection)


class ModelConnection:
    """Both ends of one connection."""

    def __init__(self, server: ModelZooKeeper, link: ModelLink, clock: Clock) -> None:
        self.server = server
        self.session_id = 0
        self.lost = asyncio.Event()
        self.heard_of_at_ns = clock.monotonic_ns()
        self._link = link
        self._clock = clock
        self._there, self._back = _Pipe(clock), _Pipe(clock)
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._one_shots: dict[int, Callable[[], None]] = {}
        link.add(self)

    # the client's end

    def ask(self, request: Request) -> asyncio.Future[Any]:
        """Send a request; the future fails with _ConnectionLostError when the answer cannot come any more."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.is_set():
            answer.set_exception(_ConnectionLostError())
            return answer
        self._waiting[answer] = None
        self._there.send(functools.partial(self._serve, request, answer))
        return answer

    def lose(self) -> None:
        """The connection is gone: answers will not come, one-shot watches are called, the server forgets its end.

        Requests under way are gone too, or arrive late.
        """
        if self.lost.is_set():
            return
        self.lost.set()
        self._link.remove(self)
        self._back.is_closed = True
        if self._clock.random.random() < _DROPPED_SHARE:
            self._there.is_closed = True
        else:
            self._there.is_frozen = True
            self._clock.call_later(self._clock.random.uniform(0, _LATE_S_MAX), self._there.thaw)
        self.server.forget_connection(self)
        waiting, self._waiting = self._waiting, {}
        for answer in waiting:
            if not answer.done():
                answer.set_exception(_ConnectionLostError())
        one_shots, self._one_shots = self._one_shots, {}
        for tell in one_shots.values():
            _call(tell)

    def set_frozen(self, *, is_frozen: bool) -> None:
        for pipe in (self._there, self._back):
            pipe.is_frozen = is_frozen
            pipe.go_on()

    # the server's end

    def watcher(self, watcher: Watcher | None) -> Callable[[], zookeeper_model.Watcher] | None:
        """Makes what a read leaves with the server, if it finds its node, so that ``watcher`` is called once."""
        if watcher is None:
            return None

        def make() -> zookeeper_model.Watcher:
            token = next(_tokens)
            self._one_shots[token] = functools.partial(watcher, None)
            tell = functools.partial(self._send_back, functools.partial(self._fire, token))
            return zookeeper_model.Watcher(self, tell)

        return make

    def close_by_server(self) -> None:
        """After what was already sent."""
        self._back.send(self.lose)

    def _serve(self, request: Request, answer: asyncio.Future[Any]) -> None:
        if self.session_id and not self.server.is_attached(self.session_id, self):
            return
        self.server.touch(self.session_id)
        try:
            settle = functools.partial(answer.set_result, request(self))
        except MetadataError as error:
            settle = functools.partial(answer.set_exception, error)
        self._send_back(functools.partial(self._settle, answer, settle))

    def _settle(self, answer: asyncio.Future[Any], settle: Callable[[], None]) -> None:
        self._waiting.pop(answer, None)
        self.heard_of_at_ns = self._clock.monotonic_ns()
        if not answer.done():
            settle()

    def _fire(self, token: int) -> None:
        tell = self._one_shots.pop(token, None)
        if tell is not None:
            _call(tell)

    def _send_back(self, message: Callable[[], None]) -> None:
        if not self._link.is_deaf:
            self._back.send(message)


def _node_or_error(server: ModelZooKeeper, path: str) -> Node | MetadataError:
    try:
        return server.get(path, None)
    except MetadataError as error:
        return error


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler({"message": "callback failed", "exception": error})


class ModelMetadataStore:
    """A session that renews itself; see ``bkctl.runtime.metadata.store`` for the contract."""

    def __init__(self, server: ModelZooKeeper, link: ModelLink, clock: Clock, config: ZooKeeperConfig) -> None:
        self._server = server
        self._link = link
        self._clock = clock
        self._config = config
        self._measures = MetadataMeasures()
        self._session_id = 0
        self._sessions_lost_count = 0
        self._connection: ModelConnection | None = None
        self._is_closed = False
        self._state_changed = asyncio.Event()
        self._session_lost_callbacks: list[Callable[[], None]] = []
        self._watches: list[StandingWatch[Any]] = []
        self._keeper = asyncio.get_running_loop().create_task(self._stay_connected())

    @classmethod
    async def connect(
        cls, server: ModelZooKeeper, link: ModelLink, clock: Clock, config: ZooKeeperConfig | None = None
    ) -> Self:
        store = cls(server, link, clock, config or ZooKeeperConfig())
        try:
            async with asyncio.timeout(store._config.operation_timeout_s):
                await store._wait_connected(0, "/")
        except TimeoutError:
            await store.close()
            raise MetadataUnavailableError("no ZooKeeper server responds") from None
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def zxid(self) -> int:
        return self._server.zxid

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def measures(self) -> MetadataMeasures:
        return self._measures

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._session_lost_callbacks.append(callback)

    # -- session --------------------------------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        while not self._is_closed:
            connection = ModelConnection(self._server, self._link, self._clock)
            try:
                session_id = await self._open_session(connection)
            except (_ConnectionLostError, TimeoutError):
                connection.lose()
                await self._clock.sleep(self._clock.random.uniform(*_RECONNECT_DELAY_S))
                continue
            if session_id == 0:
                connection.lose()
                self._lose_session()
                continue
            self._session_id, self._connection = session_id, connection
            self._measures.is_connected = True
            self._measures.connections_count += 1
            self._wake_waiters()
            await self._ping_until_lost(connection)
            self._connection, self._measures.is_connected = None, False

    async def _open_session(self, connection: ModelConnection) -> int:
        """The session goes on, or a first one begins; 0 when the last one has ended."""
        if self._link.is_down:
            raise _ConnectionLostError
        timeout_s = self._config.session_timeout_ms / 1000
        last_id = self._session_id

        def attach(connection: ModelConnection) -> object:
            session_id = last_id or connection.server.open_session(timeout_s)
            if not connection.server.attach(session_id, connection):
                return 0
            connection.session_id = session_id
            return session_id

        async with asyncio.timeout(timeout_s):
            return cast("int", await connection.ask(attach))

    async def _ping_until_lost(self, connection: ModelConnection) -> None:
        """A connection on which nothing was heard for two thirds of the session time-out counts as lost."""
        session_ns = self._config.session_timeout_ms * 1_000_000
        while not connection.lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(session_ns / 3e9):
                    await connection.lost.wait()
            if self._clock.monotonic_ns() - connection.heard_of_at_ns > session_ns * 2 / 3:
                connection.lose()
            ping = connection.ask(lambda _: None)
            ping.add_done_callback(lambda answered: answered.cancelled() or answered.exception())

    def _lose_session(self) -> None:
        self._session_id = 0
        self._sessions_lost_count += 1
        self._wake_waiters()
        for callback in list(self._session_lost_callbacks):
            _call(callback)

    def _wake_waiters(self) -> None:
        self._state_changed.set()
        self._state_changed = asyncio.Event()

    async def _wait_connected(self, sessions_lost_count: int, path: str) -> ModelConnection:
        while True:
            if self._is_closed:
                raise MetadataClosedError(f"{path}: the connection to ZooKeeper is closed", path)
            if self._sessions_lost_count != sessions_lost_count:
                raise SessionExpiredError(f"{path}: the ZooKeeper session expired", path)
            if self._connection is not None and not self._connection.lost.is_set():
                return self._connection
            await self._state_changed.wait()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._wake_waiters()
        for watch in self._watches:
            watch.cancel()
        self._keeper.cancel()
        if self._connection is not None:
            session_id = self._session_id
            goodbye = self._connection.ask(lambda connection: connection.server.end_session(session_id))
            with contextlib.suppress(TimeoutError, _ConnectionLostError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await goodbye
            self._connection.lose()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _request(self, path: str, request: Request, *, is_read: bool) -> Any:
        sessions_lost_count = self._sessions_lost_count
        check_path(path)
        try:
            async with asyncio.timeout(self._config.operation_timeout_s):
                while True:
                    connection = await self._wait_connected(sessions_lost_count, path)
                    try:
                        return await connection.ask(request)
                    except _ConnectionLostError:
                        if self._is_closed or not is_read:
                            raise
        except TimeoutError:
            waited = f"{self._config.operation_timeout_s:g} s"
            raise MetadataUnavailableError(f"{path}: no response from ZooKeeper in {waited}", path) from None
        except _ConnectionLostError:
            raise MetadataUnavailableError(f"{path}: the connection was lost before the answer", path) from None

    async def get(self, path: str) -> Node:
        return await self._get(path, None)

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        for path in paths:
            check_path(path)

        def request(on: ModelConnection) -> object:
            return [_node_or_error(on.server, path) for path in paths]

        return cast("list[Node | MetadataError]", await self._request(paths[0], request, is_read=True))

    async def _get(self, path: str, watcher: Watcher | None) -> Node:
        return cast(
            "Node", await self._request(path, lambda on: on.server.get(path, on.watcher(watcher)), is_read=True)
        )

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        return await self._exists(path, _one_shot(on_change))

    async def _exists(self, path: str, watcher: Watcher | None) -> NodeStat | None:
        found = await self._request(path, lambda on: on.server.exists(path, on.watcher(watcher)), is_read=True)
        return cast("NodeStat | None", found)

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        return await self._children(path, _one_shot(on_change))

    async def _children(self, path: str, watcher: Watcher | None) -> list[str]:
        names = await self._request(path, lambda on: on.server.children(path, on.watcher(watcher)), is_read=True)
        return cast("list[str]", names)

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
        check_data(path, data)

        def request(on: ModelConnection) -> object:
            owner = on.session_id if is_ephemeral else 0
            return on.server.create(path, data, owner=owner, is_sequential=is_sequential)

        while True:
            try:
                return cast("str", await self._request(path, request, is_read=False))
            except NoNodeError:
                parent = path.rpartition("/")[0]
                if not make_parents or not parent:
                    raise
                with contextlib.suppress(NodeExistsError):
                    await self.create(parent, make_parents=True, is_open_acl=is_open_acl)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        check_writes(writes)

        def request(on: ModelConnection) -> object:
            return on.server.write_all(writes, owner=on.session_id)

        return cast("list[NodeStat | None]", await self._request(writes[0].path, request, is_read=False))

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        check_data(path, data)
        stat = await self._request(path, lambda on: on.server.set(path, data, expected_version), is_read=False)
        return cast("NodeStat", stat)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        await self._request(path, lambda on: on.server.delete(path, expected_version), is_read=False)

    async def sync(self, path: str) -> None:
        await self._request(path, lambda _: None, is_read=True)

    # -- watches --------------------------------------------------------------------------------------------------

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        return self._watch(path, self._children, callback)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        return self._watch(path, self._get, callback)

    def _watch(
        self, path: str, read: Callable[[str, Watcher], Awaitable[T]], callback: Callable[[T | None], None]
    ) -> Watch:
        async def arm_absent(watcher: Watcher) -> bool:
            return await self._exists(path, watcher) is None

        watch = StandingWatch(path, functools.partial(read, path), arm_absent, callback)
        self._watches.append(watch)
        return watch


def _one_shot(on_change: Callable[[], None] | None) -> Watcher | None:
    return None if on_change is None else lambda _event: on_change()
