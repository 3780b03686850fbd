"""Deletes a cluster's metadata: format empties it and sets a new instance id, nuke removes it.

Source: metadata sections 3.4 and 3.5. bkctl is stricter than Java: both refuse while any process is connected to the
cluster, format keeps the recorded layout, nuke checks every child before it deletes the first one and recognizes
``disableHealthCheck``. Both delete autorecovery's notes and the nodes of logs of ledgers, which are not below the root.
Each can be run again after it was killed at any point.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from bkctl.runtime.errors import NodeExistsError, NoNodeError, NotEmptyError, RefusedError
from bkctl.runtime.metadata.backup.backup import HEALTH_CHECK_DISABLED, UNDER_REPLICATION, ChildKind, child_kind
from bkctl.runtime.metadata.cluster.operation_lock import operations_on_bookies
from bkctl.runtime.metadata.cluster.root import clear_restore_mark, new_instance_id
from bkctl.runtime.metadata.ledger_logs.nodes import logs_path
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.paths import COOKIES, INSTANCE_ID, LAYOUT, READ_ONLY, Paths
from bkctl.runtime.metadata.replication.maintenance import restore_delays
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes, notes_path
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, children_of
from bkctl.runtime.metadata.tree import delete_tree
from bkctl.storage.words import counted, listed

_LAST_TO_GO = (COOKIES, HEALTH_CHECK_DISABLED, UNDER_REPLICATION, LAYOUT, INSTANCE_ID)
"""Order of deletion: after a kill in between, the next run still finds the cluster's identity and can continue."""


async def require_no_connections(store: MetadataStore, root: str) -> None:
    """RefusedError while a bookie is registered, in either mode, or an autorecovery daemon or a recovery runs."""
    await store.sync(root)
    paths = Paths(root)
    bookies = [name for name in await children_of(store, paths.available) if name != READ_ONLY]
    bookies += await children_of(store, paths.read_only)
    if bookies:
        raise RefusedError(
            f"nothing was changed: {_counted(bookies, 'bookie')} registered at {root}: stop all bookies first (a "
            "killed bookie stays registered until its ZooKeeper session expires)"
        )
    holders = [f"{paths.auditor_election}/{name}" for name in await children_of(store, paths.auditor_election)]
    holders += [f"{paths.replication_locks}/{name}" for name in await children_of(store, paths.replication_locks)]
    holders += [path for path in (paths.pulsar_auditor,) if await store.exists(path) is not None]
    if holders:
        raise RefusedError(
            f"nothing was changed: an auditor or replication worker is still running and has {holders[0]}: stop "
            "autorecovery first"
        )
    if daemon := await _find_daemon(store, root):
        raise RefusedError(
            f"nothing was changed: an autorecovery daemon is running and has {daemon}: stop it first (a killed one "
            "counts until its ZooKeeper session expires)"
        )
    if running := await operations_on_bookies(store, root):
        raise RefusedError(
            f"nothing was changed: {running[0]} is running: wait until it ends, or stop it (a killed one counts "
            "until its ZooKeeper session expires)"
        )


async def _find_daemon(store: MetadataStore, root: str) -> str | None:
    """The note of a daemon that runs; a persistent node there belongs to none."""
    directory = RecoveryNotes(store, root).daemons.path
    for name in await children_of(store, directory):
        stat = await store.exists(f"{directory}/{name}")
        if stat is not None and stat.ephemeral_owner:
            return f"{directory}/{name}"
    return None


async def find_unknown_children(store: MetadataStore, root: str, tree: LedgerTree) -> list[str]:
    """Children of the root that BookKeeper does not create under this layout."""
    return [name for name in await store.children(root) if child_kind(name, tree) is ChildKind.UNKNOWN]


async def format_cluster(
    store: MetadataStore,
    root: str,
    tree: LedgerTree,
    random_source: random.Random,
    *,
    before_each: Callable[[], None],
) -> str:
    """Delete all ledgers, cookies and marks; return the new instance id.

    The identity changes first. Then no bookie with old data can start; one that started too early would find its
    ledgers gone and delete its copies. ``before_each`` is called before every change and may raise.
    """
    paths = Paths(root)
    instance_id = new_instance_id(random_source)
    await _replace(store, paths.instance_id, instance_id.encode(), before_each)
    await delete_tree(store, paths.cookies, before_each=before_each)
    for name in await store.children(root):
        if child_kind(name, tree) in {ChildKind.LEDGERS, ChildKind.LEDGER_IDS}:
            await delete_tree(store, f"{root}/{name}", before_each=before_each)
    await _replace(store, paths.layout, encode_layout(LedgerLayout(tree)), before_each)
    await delete_tree(store, paths.under_replicated_ledgers, before_each=before_each)
    await delete_tree(store, paths.replication_locks, before_each=before_each)
    before_each()
    await restore_delays(RecoveryNotes(store, root), ReplicationSwitches(store, root))
    await delete_tree(store, notes_path(root), before_each=before_each)
    await delete_tree(store, logs_path(root), before_each=before_each)
    await clear_restore_mark(store, root)
    for path in (paths.available, paths.read_only):
        with contextlib.suppress(NodeExistsError):
            await store.create(path)
    return instance_id


async def nuke_cluster(store: MetadataStore, root: str, tree: LedgerTree, *, before_each: Callable[[], None]) -> None:
    """Delete the root, all nodes below it, autorecovery's notes and logs of ledgers.

    RefusedError when a child is unknown or a bookie registers meanwhile.
    The directories of registrations go first, and only if they are empty: afterwards no bookie can join.
    """
    if unknown := await find_unknown_children(store, root, tree):
        raise unknown_children_error(root, unknown)
    paths = Paths(root)
    for path in (paths.read_only, paths.available):
        before_each()
        try:
            await store.delete(path)
        except NoNodeError:
            continue
        except NotEmptyError:
            with contextlib.suppress(NodeExistsError):
                await store.create(paths.read_only)
            raise RefusedError(f"nothing was changed: a bookie has just registered at {path}") from None
    await delete_tree(store, notes_path(root), before_each=before_each)
    await delete_tree(store, logs_path(root), before_each=before_each)
    for name in await store.children(root):
        if name not in _LAST_TO_GO and child_kind(name, tree) is not ChildKind.UNKNOWN:
            await delete_tree(store, f"{root}/{name}", before_each=before_each)
    for name in _LAST_TO_GO:
        await delete_tree(store, f"{root}/{name}", before_each=before_each)
    before_each()
    with contextlib.suppress(NoNodeError):
        await store.delete(root)


def unknown_children_error(root: str, names: list[str]) -> RefusedError:
    """The error that says why nuke deletes nothing."""
    shown = listed([f"{root}/{name}" for name in names])
    return RefusedError(
        f"nothing was changed: {shown} does not belong to BookKeeper: remove it first if it is not needed"
    )


async def _replace(store: MetadataStore, path: str, data: bytes, before_each: Callable[[], None]) -> None:
    """Delete and create, so that the version starts again at 0 as it does in Java."""
    before_each()
    with contextlib.suppress(NoNodeError):
        await store.delete(path)
    await store.create(path, data)


def _counted(names: list[str], noun: str) -> str:
    shown = listed(names)
    return f"{noun} {shown} is" if len(names) == 1 else f"{counted(len(names), noun)} ({shown}) are"
