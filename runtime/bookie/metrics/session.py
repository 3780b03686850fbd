"""Metrics of the ZooKeeper session."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.bookie.metrics.scopes import REGISTRATION, SESSION

ZOOKEEPER: Final = (
    SESSION.gauge(
        "bkctl_zookeeper_session",
        "1 while the bookie has a ZooKeeper session, else 0; a session outlives a lost connection.",
        lambda store: int(store.session_id != 0),
    ),
    SESSION.gauge(
        "bkctl_zookeeper_connected",
        "1 while the bookie is connected to a ZooKeeper server, else 0.",
        lambda store: int(store.measures.is_connected),
    ),
    REGISTRATION.counter(
        "bkctl_zookeeper_sessions_lost",
        "ZooKeeper sessions that expired.",
        lambda registration: registration.sessions_lost_count,
    ),
    SESSION.counter(
        "bookie_bookie_watcher_state_SyncConnected",
        "How often a connection to a ZooKeeper server was established.",
        lambda store: store.measures.connections_count,
    ),
    SESSION.duration("bookie_bookie_zk_create_client", "Opening the session.", lambda store: store.measures.opened),
    SESSION.duration("bookie_bookie_zk_create", "Creating a node.", lambda store: store.measures.creates),
    SESSION.duration("bookie_bookie_zk_delete", "Deleting a node.", lambda store: store.measures.deletes),
    SESSION.duration("bookie_bookie_zk_exists", "Looking whether a node exists.", lambda store: store.measures.exists),
    SESSION.duration("bookie_bookie_zk_get_children", "Listing child nodes.", lambda store: store.measures.lists),
    SESSION.duration("bookie_bookie_zk_get_data", "Reading a node.", lambda store: store.measures.gets),
    SESSION.duration(
        "bookie_bookie_zk_multi", "Creating several nodes at once.", lambda store: store.measures.transactions
    ),
    SESSION.duration("bookie_bookie_zk_set_data", "Changing a node.", lambda store: store.measures.sets),
    SESSION.duration("bookie_bookie_zk_sync", "Catching up with other servers.", lambda store: store.measures.syncs),
)
