"""Metrics of the ZooKeeper session."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.metric import counter, duration, gauge
from bkctl.runtime.bookie.metrics.scopes import REGISTRATION, SESSION

ZOOKEEPER: Final = (
    gauge(
        "bkctl_zookeeper_session",
        SESSION,
        "1 while the bookie has a ZooKeeper session, else 0; a session outlives a lost connection.",
        lambda store: int(store.session_id != 0),
    ),
    gauge(
        "bkctl_zookeeper_connected",
        SESSION,
        "1 while the bookie is connected to a ZooKeeper server, else 0.",
        lambda store: int(store.measures.is_connected),
    ),
    counter(
        "bkctl_zookeeper_sessions_lost",
        REGISTRATION,
        "ZooKeeper sessions that expired.",
        lambda registration: registration.sessions_lost_count,
    ),
    counter(
        "bookie_bookie_watcher_state_SyncConnected",
        SESSION,
        "How often a connection to a ZooKeeper server was established.",
        lambda store: store.measures.connections_count,
    ),
    duration("bookie_bookie_zk_create_client", SESSION, "Opening the session.", lambda store: store.measures.opened),
    duration("bookie_bookie_zk_create", SESSION, "Creating a node.", lambda store: store.measures.creates),
    duration("bookie_bookie_zk_delete", SESSION, "Deleting a node.", lambda store: store.measures.deletes),
    duration("bookie_bookie_zk_exists", SESSION, "Looking whether a node exists.", lambda store: store.measures.exists),
    duration("bookie_bookie_zk_get_children", SESSION, "Listing child nodes.", lambda store: store.measures.lists),
    duration("bookie_bookie_zk_get_data", SESSION, "Reading a node.", lambda store: store.measures.gets),
    duration(
        "bookie_bookie_zk_multi", SESSION, "Creating several nodes at once.", lambda store: store.measures.transactions
    ),
    duration("bookie_bookie_zk_set_data", SESSION, "Changing a node.", lambda store: store.measures.sets),
    duration("bookie_bookie_zk_sync", SESSION, "Catching up with other servers.", lambda store: store.measures.syncs),
)
