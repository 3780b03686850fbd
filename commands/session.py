"""A session with a cluster's metadata store, and the parts that commands use on it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from bkctl.commands.console import Console
from bkctl.commands.context import CommandContext
from bkctl.runtime.errors import BookieNotFoundError, ClusterNotFoundError, ConfigurationError

if TYPE_CHECKING:
    from bkctl.commands.safety.plan import Plan, PlanFinding
    from bkctl.runtime.client import LedgerClient
    from bkctl.runtime.metadata.bookies.cookies import CookieStore
    from bkctl.runtime.metadata.bookies.registration import RegistrationClient
    from bkctl.runtime.metadata.budgeted_store import BudgetedStore
    from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
    from bkctl.runtime.metadata.outage import MetadataOutage
    from bkctl.runtime.metadata.replication.directories import ForeignNames
    from bkctl.runtime.metadata.replication.lock import ReplicationLocks
    from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
    from bkctl.runtime.metadata.store import MetadataStore
    from bkctl.runtime.metadata.uri import MetadataUri
    from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
    from bkctl.runtime.net.pool import BookiePool


GC_THRESHOLDS = (20_000, 20, 100)
"""Commands make few reference cycles. With the usual thresholds, the search for them takes 6 % of a recovery's time."""


ANSWER_TIMEOUT_S = 1.5
"""Longest wait for the answer of a bookie that may not run."""
_EXPLAINED_WAIT_S = 1.2
"""While a wait is shorter, its reason is only in the error at its end."""
_SILENCE_S = 0.4
"""A server that does not answer for so long is shown; so long is also the pause between two requests."""


class ZooKeeperWait:
    """Shows why ZooKeeper cannot be reached: on a terminal while it lasts, otherwise each reason once as a line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = ExitStack()
        self._said: set[str] = set()

    def note(self, reason: str | None) -> None:
        """Why there is no connection now; None: there is one again."""
        self._shown.close()
        if reason is None:
            return
        progress = self._shown.enter_context(self._console.progress("waiting for ZooKeeper"))
        if progress.is_shown:
            progress.update(0, None, reason, "")
        elif reason not in self._said:
            self._said.add(reason)
            self._console.say(f"waiting for ZooKeeper: {reason}")

    async def watch(self, store: MetadataStore) -> None:
        """Show that a connected server does not respond: only seconds later the connection counts as lost.

        Sends requests, because all others may wait for something else, like the copy rate. Never returns.
        """
        import asyncio

        while True:
            await asyncio.sleep(_SILENCE_S)
            if not store.measures.is_connected:
                continue
            asking = asyncio.gather(store.exists("/"), return_exceptions=True)
            done, _ = await asyncio.wait({asking}, timeout=_SILENCE_S)
            if not done and store.measures.is_connected:
                self.note("the server does not respond")
                await asking
                if store.measures.is_connected:
                    self.note(None)


class Session:
    """An open session with one cluster. Its parts are created on first use and closed with it."""

    def __init__(self, context: CommandContext, store: MetadataStore, uri: MetadataUri, at_end: AsyncExitStack) -> None:
        self.store = store
        self.uri = uri
        self.root = uri.root
        self._context = context
        self._at_end = at_end
        self.instance_id: str | None = None
        """The cluster's identity; None when it has none, or need not exist."""

    @cached_property
    def registrations(self) -> RegistrationClient:
        """The bookies that are registered."""
        from bkctl.runtime.metadata.bookies.registration import RegistrationClient

        return RegistrationClient(self.store, self.root)

    @cached_property
    def cookies(self) -> CookieStore:
        """The stored cookies."""
        from bkctl.runtime.metadata.bookies.cookies import CookieStore

        return CookieStore(self.store, self.root)

    @cached_property
    def switches(self) -> ReplicationSwitches:
        """The switches of automatic replication."""
        from bkctl.runtime.metadata.replication.switches import ReplicationSwitches

        return ReplicationSwitches(self.store, self.root)

    async def locks(self) -> ReplicationLocks:
        """Replication locks, held in the name that Java would give this host."""
        import asyncio

        from bkctl.runtime.metadata.replication.lock import ReplicationLocks
        from bkctl.runtime.net.host import canonical_host_name

        return ReplicationLocks(self.store, self.root, await asyncio.to_thread(canonical_host_name))

    @cached_property
    def foreign(self) -> ForeignNames:
        """Warns once about each node whose name is not BookKeeper's."""
        from bkctl.runtime.metadata.replication.directories import ForeignNames

        return ForeignNames(self._context.console.warn)

    @cached_property
    def now_ms(self) -> int:
        """Time of the command's view of the cluster, to compute ages."""
        from bkctl.runtime.net.loop import LoopClock

        return LoopClock().now_ms()

    def age_s(self, since_ms: int) -> int:
        """Whole seconds from the given time to ``now_ms``; 0 when the clocks disagree."""
        return max(0, self.now_ms - since_ms) // 1000

    async def identify(self) -> None:
        """ClusterNotFoundError unless the cluster exists; then ``instance_id`` is known."""
        from bkctl.runtime.metadata.cluster.root import read_instance_id, require_cluster

        await require_cluster(self.store, self.root)
        self.instance_id = await read_instance_id(self.store, self.root)

    async def ledgers(self) -> LedgerStore:
        """The ledgers' metadata; ClusterNotFoundError."""
        from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store

        layout_config = self._context.settings.zookeeper.layout
        return await open_ledger_store(self.store, self.root, self.uri.tree, layout_config=layout_config)

    async def client(self) -> LedgerClient:
        """A ledger client on this session; ClusterNotFoundError."""
        from bkctl.runtime.client import LedgerClient

        client = LedgerClient.on_session(self.store, await self.ledgers(), self._context.settings.client)
        self._at_end.push_async_callback(client.close)
        return client

    def bookies(self, *, timeout_max_s: float) -> BookiePool:
        """Connections to the bookies, also to those that serve without a registration, for a command that only asks
        for their state.

        Connecting, and the answer to a read, take at most ``timeout_max_s`` each, or less if the settings say so.
        """
        import msgspec

        from bkctl.runtime.net.loop import LoopClock
        from bkctl.runtime.net.pool import BookiePool
        from bkctl.runtime.replication.survey.unregistered import likely_address

        config = self._context.settings.client
        config = msgspec.structs.replace(
            config,
            connect_timeout_s=min(config.connect_timeout_s, timeout_max_s),
            read_timeout_s=min(config.read_timeout_s, timeout_max_s),
        )
        bookies = BookiePool(partial(likely_address, self.registrations), config, LoopClock())
        self._at_end.push_async_callback(bookies.close)
        return bookies

    async def find_serving(self, bookie_ids: Collection[str]) -> frozenset[str]:
        """Those of these bookies, which are not registered, that answer all the same."""
        from bkctl.runtime.replication.survey.unregistered import find_serving

        if not bookie_ids:
            return frozenset()
        return await find_serving(self.bookies(timeout_max_s=ANSWER_TIMEOUT_S), bookie_ids, ANSWER_TIMEOUT_S)

    def plan(
        self,
        *,
        subject: str = "",
        summary: Sequence[str] = (),
        findings: Sequence[PlanFinding] = (),
        items: Sequence[dict[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
        tier: int = 0,
        refusal: str | None = None,
    ) -> Plan:
        """A plan of the command for this cluster; the fields are those of ``Plan``."""
        from bkctl.commands.safety.plan import Plan

        return Plan(
            root=self.root,
            instance_id=self.instance_id,
            subject=subject,
            summary=tuple(summary),
            findings=tuple(findings),
            items=items,
            arguments=dict(arguments or {}),
            tier=tier,
            refusal=refusal,
        )


def require_metadata_uri(context: CommandContext) -> str:
    """Metadata URI of the settings; ConfigurationError explains how to specify a cluster."""
    if context.settings.metadata_uri is None:
        raise ConfigurationError(
            "no cluster specified: use --metadata-uri zk+hierarchical://HOST:2181/ledgers, set BKCTL_METADATA_URI, "
            "or point --conf at a bk_server.conf"
        )
    return context.settings.metadata_uri


@asynccontextmanager
async def open_session(
    context: CommandContext,
    *,
    metadata_uri: str = "",
    must_exist: bool = True,
    warns_of_restore: bool = True,
    on_outage: Callable[[MetadataOutage], None] | None = None,
) -> AsyncIterator[Session]:
    """A session with the cluster of the settings, or of ``metadata_uri``, within their request budget (``--zk-rate``).

    ``must_exist`` False: there may be no cluster, and ``instance_id`` is not read. ``warns_of_restore``: print a
    warning when a restore of the cluster is unfinished. ``on_outage``: reads are repeated during an outage of
    ZooKeeper, and it is called when one begins and ends; only for commands that change nothing. ConfigurationError,
    MetadataUnavailableError, MetadataAuthError, ClusterNotFoundError.
    """
    import asyncio

    from bkctl.runtime.metadata.uri import parse_metadata_uri
    from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

    gc.set_threshold(*GC_THRESHOLDS)
    uri = parse_metadata_uri(metadata_uri or require_metadata_uri(context))
    config = context.settings.zookeeper
    wait = None if config.operation_timeout_s < _EXPLAINED_WAIT_S else ZooKeeperWait(context.console)
    connected = await ZooKeeperStore.connect(uri.servers, config, on_wait=None if wait is None else wait.note)
    async with _budgeted(context, connected, on_outage) as store, AsyncExitStack() as at_end:
        if wait is not None and context.settings.has_progress and not context.console.prints_progress_lines:
            at_end.callback(asyncio.create_task(wait.watch(connected)).cancel)
        session = Session(context, store, uri, at_end)
        if warns_of_restore:
            await _warn_of_unfinished_restore(context, session)
        try:
            if must_exist:
                await session.identify()
            yield session
        except (BookieNotFoundError, ClusterNotFoundError) as error:
            from bkctl.commands.likely_names import with_likely_names

            raise await with_likely_names(store, session.registrations, error) from error


def _budgeted(
    context: CommandContext, store: ZooKeeperStore, on_outage: Callable[[MetadataOutage], None] | None
) -> BudgetedStore:
    from bkctl.runtime.metadata.budgeted_store import BudgetedStore
    from bkctl.runtime.metadata.request_budget import share_of_budget
    from bkctl.runtime.net.loop import LoopClock

    clock = LoopClock()
    budget = share_of_budget(clock, context.settings.zookeeper)
    if on_outage is None:
        return BudgetedStore(store, budget)
    from bkctl.runtime.metadata.outage import OutageWait

    wait_max_s = context.settings.replication.metadata_outage_max_s
    return BudgetedStore(store, budget, OutageWait(lambda: store.exists("/"), clock, wait_max_s, on_outage))


async def _warn_of_unfinished_restore(context: CommandContext, session: Session) -> None:
    from bkctl.runtime.errors import MetadataAuthError
    from bkctl.runtime.metadata.cluster.root import is_restore_unfinished, unfinished_restore_text

    # Only the command knows whether it needs to read the root itself.
    with contextlib.suppress(MetadataAuthError):
        if await is_restore_unfinished(session.store, session.root):
            context.console.warn(unfinished_restore_text(session.root))
