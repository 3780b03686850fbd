"""The critical rules of the metadata doctor, for ``catalogue``."""

from __future__ import annotations

_STOPS_AUDITS = (
    "Java cannot read the ledger, and one such node aborts every audit: lost bookies are detected, but no ledger is "
    "marked for repair."
)
_RESTORE_LEDGER = (
    "bkctl ledger delete --unreadable {subject}, which keeps the bytes, then bkctl cluster restore with a backup or "
    "bkctl ledger import with an export: both add only what is missing. Without either the ledger is lost."
)
REPLACE_LEDGER = (
    "bkctl ledger show {subject}. If an older copy of the metadata is right, restore it with bkctl ledger delete "
    "{subject} and bkctl ledger import, before the bookies collect the entries."
)
_CLIENTS_HANG = (
    "Every Java client that starts hangs until the node is deleted, shell commands included. A running auditor stays "
    "blocked even after that, and misses all later bookie failures."
)

CRITICAL = (
    (
        "forbidden-ledger-id",
        "A ledger has the largest possible id, 9223372036854775807.",
        "The next garbage collection of every Java bookie deletes all its ledgers, whatever the metadata says, unless "
        "it runs with verifyMetadataOnGC=true.",
        "Run zkCli: delete {path} immediately. If that is not possible, stop all Java bookies first.",
    ),
    (
        "invalid-bookie-name",
        "The name of a registration or cookie is not a valid bookie id.",
        _CLIENTS_HANG,
        "zkCli: deleteall {path}, then restart all Java auditors.",
    ),
    (
        "unreadable-registration",
        "The data of a bookie's registration cannot be parsed.",
        _CLIENTS_HANG,
        "Stop the process that registered {subject}, or zkCli: delete {path}; then restart all Java auditors.",
    ),
    ("unreadable-ledger", "The ledger metadata cannot be parsed.", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "newer-ledger-format",
        "A newer release wrote the ledger metadata.",
        "Releases that do not know the format cannot read the ledger, and one such node aborts every audit of theirs: "
        "lost bookies are detected, but no ledger is marked for repair. The ledger itself is not damaged.",
        "Keep the ledger; this release cannot delete it. Use a release that reads the format.",
    ),
    ("ledger-without-segment", "The ledger has no segment, hence no bookies.", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "ensemble-size-mismatch",
        "A segment has more or fewer bookies than the ensemble size.",
        _STOPS_AUDITS,
        _RESTORE_LEDGER,
    ),
    ("segments-out-of-order", "Segments are not in the order of their first entries.", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "quorums-out-of-order",
        "The ack quorum is 0, or larger than the write quorum, or the write quorum is larger than the ensemble.",
        _STOPS_AUDITS,
        _RESTORE_LEDGER,
    ),
    (
        "password-without-digest",
        "The metadata has a password but no digest type.",
        "Java 4.18 cannot read it, with the consequences of an unreadable ledger. Older releases assume CRC32.",
        _RESTORE_LEDGER,
    ),
    ("invalid-bookie-in-ledger", "A segment has an invalid bookie id.", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "first-segment-not-at-zero",
        "The first segment does not start at entry 0.",
        "Java reads the metadata but fails on every entry before the first segment, because no bookie is recorded for "
        "these entries.",
        _RESTORE_LEDGER,
    ),
    (
        "closed-without-end",
        "The ledger is closed and has no last entry id.",
        "Java assumes that entry 0 is the last one: readers see one entry, and no other entry is replicated.",
        _RESTORE_LEDGER,
    ),
    (
        "end-before-last-segment",
        "The last entry id is smaller than the start of the last segment allows.",
        "Acknowledged entries are after the recorded end: readers do not see them, and they are not replicated.",
        REPLACE_LEDGER,
    ),
    (
        "ledger-outside-layout",
        "A ledger is at a path that the cluster's layout does not use.",
        "The ledger cannot be found by its id. A bookie whose collector does not list it deletes its entries.",
        "If all ledgers are reported, LAYOUT is wrong: stop all bookies and correct it (zkCli: set). Otherwise copy "
        "the bytes to the path that the layout gives the id (zkCli: get {path}, create there), then zkCli: delete "
        "{path}.",
    ),
    (
        "layout-unreadable",
        "LAYOUT cannot be parsed.",
        "Java processes cannot open the cluster's ledgers: bookies and clients fail when they start.",
        "Restore the content with zkCli: set {path}: two lines, '2' and the name of the factory class with ':1'. "
        "Only long ids below three-digit nodes: LongHierarchical; L nodes directly below the root: Flat.",
    ),
    (
        "directory-missing",
        "The directory of registered bookies is missing.",
        "Bookies cannot register, and clients fail when they list them.",
        "If a format or nuke was interrupted, the other ledgers are in the backup that it made: run bkctl cluster "
        "restore with it before any bookie starts. Otherwise bkctl cluster init --if-not-exists adds missing "
        "directories and changes nothing else.",
    ),
    (
        "session-node-without-session",
        "A lock, vote or registration is persistent, but must be ephemeral.",
        "The node never expires. A lock blocks replication of its ledger; a vote blocks the election of an auditor; a "
        "registration makes a dead bookie look alive and prevents its start.",
        "Make sure that no process uses it, then zkCli: delete {path}.",
    ),
    (
        "node-of-a-session",
        "A node is ephemeral, but must be persistent.",
        "The node and its content disappear with the session that created it.",
        "Save the bytes (zkCli: get {path}); after the session has ended, zkCli: create {path} with them.",
    ),
    (
        "foreign-vote",
        "A node among the votes has a name that is no vote.",
        "Every Java elector that reads the list of votes ends: no auditor runs, and daemons do not start.",
        "zkCli: deleteall {path}, then restart all autorecovery daemons.",
    ),
    (
        "replication-layout-unreadable",
        "The layout of the replication tree cannot be parsed, or is unknown.",
        "No autorecovery daemon starts, because it rejects a tree of another kind.",
        "If no other kind is used on purpose, zkCli: delete {path}; the next Java process writes it again.",
    ),
    (
        "ledger-ids-used-up",
        "The counter of ledger ids is at its end, and the layout has no longer ids.",
        "No ledger can be created: ZooKeeper's counter stays at 2147483647.",
        "There is no fix within this cluster. Move writers to another cluster or another ledgers root with the "
        "hierarchical layout (bkctl cluster init).",
    ),
    (
        "id-node-blocks-counter",
        "A persistent node has the last number of the counter of ledger ids.",
        "The counter is at its end, and every new name is that of this node. Java gets NodeExists instead of the "
        "overflow after which it would continue, and creates no ledger.",
        "zkCli: delete {path}.",
    ),
    (
        "high-order-out-of-range",
        "The number of a directory does not fit into the high half of a ledger id.",
        "Ids made from it are negative or wrap around: ledgers get ids that are in use or cannot be stored.",
        "zkCli: deleteall {path}, then look for ledgers created in the meantime: bkctl ledger list.",
    ),
    (
        "votes-used-up",
        "The counter of votes is at its end.",
        "ZooKeeper's counter stays at 2147483647: one process at a time can vote, every other elector ends.",
        "Stop all autorecovery daemons, zkCli: deleteall {path} (this resets the counter), and start them again.",
    ),
    (
        "writers-stop",
        "Fewer bookies are writable than the ensembles of many ledgers need.",
        "New ledgers of that size cannot be created, and a writer that loses a bookie fails, because it cannot replace "
        "it.",
        "bkctl status names the bookie that helps the fastest: one to undrain, to set writable, to free or to start. "
        "Otherwise add one.",
    ),
)
"""Id, what it is, its effect on a running cluster, how to fix it."""
