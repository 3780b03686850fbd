"""What the metadata doctor can find: how bad it is, what it does to a running cluster, and how to fix it.

The page ``docs/reference/metadata-doctor.md`` has the same sentences, and a test compares them. Ids are stable: users
filter by them. The order is that of a report. Sources: metadata sections 2 to 12, replication sections 1 and 7.
"""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.IntEnum):
    """How bad a finding is, the worst first."""

    CRITICAL = 1
    """Destroys or hides data, or stops clients, auditors or the creation of ledgers in the whole cluster."""
    WARNING = 2
    """One bookie, ledger or operation fails, or will; or something is not known."""
    INFORMATION = 3
    """No damage: worth knowing."""


class Rule(msgspec.Struct, frozen=True):
    """One thing that is not as it should be. ``cure`` names the node as {path}, its ledger or bookie as {subject}.

    A settled rule looks at one node that nobody changes back: it is reported without a second look.
    """

    id: str
    severity: Severity
    consequence: str
    cure: str
    is_settled: bool = False


class Finding(msgspec.Struct, frozen=True):
    """A rule that a node breaks. ``subject`` is the ledger or bookie at issue, the name of the node if it has none."""

    rule: Rule
    path: str
    problem: str
    subject: str

    @property
    def cure(self) -> str:
        """The way out for this node."""
        return self.rule.cure.format(path=self.path, subject=self.subject)


_STOPS_AUDITS = (
    "Java cannot read the ledger, and one such node ends every audit: lost bookies are noticed, but nothing is marked."
)
_RESTORE_LEDGER = (
    "bkctl ledger delete --unreadable {subject}, which keeps the bytes, then bkctl cluster restore with a backup or "
    "bkctl ledger import with an export: both bring back what is missing. Without either the ledger is lost."
)
_REPLACE_LEDGER = (
    "bkctl ledger show {subject}; if an older copy of the metadata is right, bkctl ledger delete {subject} and bkctl "
    "ledger import bring that back, as long as bookies have not collected the entries."
)
_CLIENTS_HANG = (
    "Every Java client that starts hangs until the node is gone, shell commands included; a running auditor stays "
    "blocked even after that, and misses all later losses of bookies."
)
_REMOVE = "zkCli: delete {path} (deleteall if it has children)."
_UNBOOTABLE = "The bookie refuses to start the next time."
_MEND_COOKIE = (
    "bkctl cookie verify on the machine of bookie {subject} names the cause and the one safe command; if the bookie is "
    "gone for good: bkctl decommission {subject}."
)


def _rules(severity: Severity, *rows: tuple[str, str, str]) -> list[Rule]:
    return [Rule(rule_id, severity, consequence, cure) for rule_id, consequence, cure in rows]


_CRITICAL = _rules(
    Severity.CRITICAL,
    (
        "forbidden-ledger-id",
        "The next garbage collection of every Java bookie deletes all its ledgers, whatever the metadata says, unless "
        "it runs with verifyMetadataOnGC=true.",
        "At once, zkCli: delete {path}; if anything keeps you from that, stop all Java bookies first.",
    ),
    (
        "invalid-bookie-name",
        _CLIENTS_HANG,
        "zkCli: deleteall {path}, then restart all Java auditors.",
    ),
    (
        "unreadable-registration",
        _CLIENTS_HANG,
        "Stop the process that registered {subject}, or zkCli: delete {path}; then restart all Java auditors.",
    ),
    ("unreadable-ledger", _STOPS_AUDITS, _RESTORE_LEDGER),
    ("ledger-without-segment", _STOPS_AUDITS, _RESTORE_LEDGER),
    ("ensemble-size-mismatch", _STOPS_AUDITS, _RESTORE_LEDGER),
    ("segments-out-of-order", _STOPS_AUDITS, _RESTORE_LEDGER),
    ("quorums-out-of-order", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "password-without-digest",
        "Java 4.18 fails on reading it, with what an unreadable ledger does; older releases take its digest for CRC32.",
        _RESTORE_LEDGER,
    ),
    ("invalid-bookie-in-ledger", _STOPS_AUDITS, _RESTORE_LEDGER),
    (
        "first-segment-not-at-zero",
        "Java reads the metadata, and fails on every entry before the first segment: nobody knows who holds them.",
        _RESTORE_LEDGER,
    ),
    (
        "closed-without-end",
        "Java takes entry 0 for the last one: readers see one entry, and no more are replicated.",
        _RESTORE_LEDGER,
    ),
    (
        "end-before-last-segment",
        "Entries that were acknowledged lie behind the end: readers do not see them, and nobody replicates them.",
        _REPLACE_LEDGER,
    ),
    (
        "ledger-outside-layout",
        "Nobody finds it by its id; a bookie's collector that does not list it deletes its entries.",
        "If all ledgers are reported, LAYOUT is wrong: stop all bookies and correct it (zkCli: set). Else copy the "
        "bytes to the path that the layout gives the id (zkCli: get {path}, create there), then zkCli: delete {path}.",
    ),
    (
        "layout-unreadable",
        "No Java process opens the cluster's ledgers any more: bookies and clients fail when they start.",
        "Put the right bytes there, zkCli: set {path}: two lines, '2' and the name of the factory class with ':1'. "
        "Which class: long ids below three-digit nodes alone are LongHierarchical, L nodes below the root Flat.",
    ),
    (
        "directory-missing",
        "Bookies cannot register, and clients fail when they list them.",
        "If a format or nuke was cut off, the rest of the ledgers is in the backup that it made: bkctl cluster restore "
        "with that, before any bookie starts. Else bkctl cluster init --if-not-exists adds missing directories and "
        "changes nothing else.",
    ),
    (
        "session-node-without-session",
        "It belongs to no session, so it never goes away by itself: a lock keeps all workers off its ledger, a vote "
        "keeps everybody else from being the auditor, a registration makes a dead bookie look alive and keeps it out.",
        "Make sure that nobody relies on it, then zkCli: delete {path}.",
    ),
    (
        "node-of-a-session",
        "The node vanishes with the session that made it, and what it says is lost.",
        "Save the bytes (zkCli: get {path}); when the session has ended, zkCli: create {path} with them.",
    ),
    (
        "foreign-vote",
        "Every Java elector that reads the list of votes ends: no auditor is left, and daemons do not start.",
        "zkCli: deleteall {path}, then restart all autorecovery daemons.",
    ),
    (
        "replication-layout-unreadable",
        "No autorecovery daemon starts: they refuse a tree of another kind.",
        "If nobody uses another kind on purpose, zkCli: delete {path}; the next Java process writes it anew.",
    ),
    (
        "ledger-ids-used-up",
        "No ledger can be created any more: ZooKeeper's counter sticks at 2147483647, and this layout knows no longer "
        "ids.",
        "There is none within this cluster: writers need another one, or another ledgers root, with the hierarchical "
        "layout (bkctl cluster init).",
    ),
    (
        "id-node-blocks-counter",
        "The counter has reached its end, where every new name is the one that this node holds: Java gets NodeExists "
        "instead of the overflow that makes it go on, and creates no ledger.",
        "zkCli: delete {path}.",
    ),
    (
        "high-order-out-of-range",
        "Ids made from it are negative or wrap around: ledgers get ids that others have, or that nobody can store.",
        "zkCli: deleteall {path}, then look for ledgers made meanwhile: bkctl ledger list.",
    ),
    (
        "votes-used-up",
        "ZooKeeper's counter sticks at 2147483647: one process at a time can vote, each other elector ends.",
        "Stop all autorecovery daemons, zkCli: deleteall {path} (the counter begins anew), and start them again.",
    ),
)

_WARNINGS = _rules(
    Severity.WARNING,
    (
        "node-without-permission",
        "This user may not read it, so nothing is known of it and of all below it; a Java process without rights sees "
        "as little.",
        "Look as the user that owns the tree, or give this one rights (zkCli: getAcl {path}, setAcl).",
    ),
    (
        "restore-unfinished",
        "What the restore has not brought back yet is missing, and bookies stay out.",
        "Run the same bkctl cluster restore again.",
    ),
    (
        "stray-at-root",
        "Java's nukeexistingcluster refuses, and a new release may take the name for its own.",
        "Move what it holds out of the ledgers root, then zkCli: deleteall {path}.",
    ),
    (
        "stray-among-ledgers",
        "Java does not filter names there: it makes a ledger id of whatever digits it finds, and meets a ledger that "
        "does not exist, or fails on the name.",
        "zkCli: delete {path}; if it has children, deleteall, once none below it is reported as a ledger.",
    ),
    (
        "ledger-with-children",
        "The ledger cannot be deleted, by nobody: ZooKeeper keeps a node that has children.",
        "Remove what lies below the node, which is reported by itself; the node is the ledger and stays.",
    ),
    (
        "layout-missing",
        "The next Java process that connects, be it a read-only command, writes one by its own settings; with another "
        "layout than the ledgers have, bookies delete those.",
        "bkctl cluster init --if-not-exists with the layout of the ledgers in the metadata URI.",
    ),
    (
        "layout-differs-from-uri",
        "Whoever uses this metadata URI refuses to start, Java and bkctl alike.",
        "Write zk+null:// in the metadata URI, or the layout that is recorded.",
    ),
    (
        "instance-id-missing",
        "Cookies made now name no instance: a cluster that is made anew at this root would not be told from this one.",
        "Legal, and only to be changed while all bookies are stopped, together with their cookies: leave it.",
    ),
    (
        "instance-id-malformed",
        "Bookies compare it byte by byte with their cookies: another spelling locks them out.",
        "If it was not always so, put the value back that the cookies have (zkCli: set {path}), without a newline.",
    ),
    (
        "cookies-missing",
        "A Java auditor since 4.16 exits within seconds of its start.",
        "zkCli: create {path}; an empty node is enough.",
    ),
    ("unreadable-cookie", _UNBOOTABLE, _MEND_COOKIE),
    (
        "cookie-of-another-instance",
        _UNBOOTABLE,
        "If INSTANCEID was changed, put the old value back; if the bookie comes from another cluster, its data does "
        "not belong here: bkctl decommission {subject}.",
    ),
    ("cookie-names-another-bookie", _UNBOOTABLE, _MEND_COOKIE),
    (
        "cookies-share-folders",
        "Two ids claim the same disk: one of the bookies is gone or will not start, and ledgers that name both have "
        "one copy where two are counted.",
        "bkctl cookie verify on that machine tells whose folders they are; bkctl decommission the other id.",
    ),
    (
        "registered-without-cookie",
        "The bookie serves, but it cannot start again, and a bkctl bookie stops when its session ends: the cluster "
        "lost its cookie, or it was decommissioned while it was silent.",
        "Stop bookie {subject}. If it was decommissioned, run bkctl decommission {subject} again; otherwise bkctl "
        "cookie create --from-config on its machine brings the cookie back.",
    ),
    (
        "bookie-down-with-ledgers",
        "These ledgers miss a copy; when more of their bookies are lost, entries are lost.",
        "Start the bookie. If it does not come back, bkctl recover failed-bookie {subject} copies its ledgers to other "
        "bookies; bkctl decommission {subject} does that and takes the bookie out of the cluster.",
    ),
    (
        "removed-bookie-with-ledgers",
        "These ledgers still reference a bookie that was removed, or whose cookie was lost. They miss a copy, and the "
        "bookie cannot start.",
        "bkctl recover failed-bookie {subject} moves what still has copies. bkctl ledger delete removes lost ledgers "
        "whose loss was accepted. If only the cookie was lost, bkctl cookie create --from-config on the bookie's "
        "machine brings it back.",
    ),
    (
        "registration-without-address",
        "Clients see the bookie and cannot reach it: every ledger that picks it begins with a failed write.",
        "Restart bookie {subject}; what it publishes lacks an endpoint bookie-rpc.",
    ),
    (
        "registered-by-two-sessions",
        "Two processes answer to one id, or one changed its mode and left the old node behind.",
        "Stop both processes that run as {subject}, then start one.",
    ),
    (
        "duplicate-bookie-in-ensemble",
        "One bookie counts for two copies: entries have fewer copies than the write quorum says.",
        "bkctl ledger verify {subject} reads what is there; copy entries that matter into a new ledger.",
    ),
    (
        "impossible-end",
        "Readers compute wrong lengths, or ask for entries that cannot be.",
        _REPLACE_LEDGER,
    ),
    (
        "unreadable-mark",
        "Releases before 4.18 fail on it; 4.18 takes it for an empty mark and clears it unrepaired. Marking the ledger "
        "again is an error.",
        "zkCli: delete {path}, then bkctl autorecovery trigger, which has the auditor mark what misses copies.",
    ),
    (
        "mark-without-ledger",
        "It counts as under-replicated in every figure until a worker picks it up and clears it.",
        "None while replication runs (bkctl autorecovery status); else zkCli: delete {path}.",
    ),
    (
        "stray-node",
        "Nobody reads it; where Java lists the directory it is skipped or logged, release by release.",
        _REMOVE,
    ),
    (
        "replication-disabled-long",
        "Lost bookies are not noticed and marked ledgers are not repaired, in the whole cluster.",
        "bkctl autorecovery enable.",
    ),
    (
        "delay-unreadable",
        "An auditor fails on it, when it starts or when it is written.",
        "bkctl autorecovery delay set 0, or another number; never delete it: running auditors would be deaf to it.",
    ),
    (
        "delay-missing",
        "It was deleted under a running auditor, which is deaf to later writes: triggers do nothing, and say nothing.",
        "bkctl autorecovery delay set 0, then restart the auditor (bkctl autorecovery auditor names it).",
    ),
    (
        "check-time-unreadable",
        "An auditor that starts fails to plan its checks.",
        "bkctl autorecovery reset-checks writes it anew.",
    ),
    (
        "check-time-in-future",
        "An auditor that starts takes the check for done just now: it waits a whole period, after each restart again.",
        "bkctl autorecovery reset-checks, then restart the auditor (bkctl autorecovery auditor names it).",
    ),
    (
        "unreadable-vote",
        "Nobody can tell who the auditor is; the elections go on.",
        "Restart the daemon whose session the vote belongs to (zkCli: get -s {path}, ephemeralOwner).",
    ),
    (
        "auditor-not-in-office",
        "The lowest vote is not that of the last one who took office: nobody audits, or two do, as after a vote was "
        "deleted by hand.",
        "Restart the autorecovery daemon that the hint names, then the one that the lowest vote names.",
    ),
    (
        "ledger-ids-nearly-used-up",
        "When the counter reaches 2147483647 no ledger can be created any more in this layout.",
        "Move writers to a cluster with the hierarchical layout in time.",
    ),
)

_INFORMATION = _rules(
    Severity.INFORMATION,
    (
        "bookie-down",
        "The bookie has a cookie and is not registered. No ledger that could be read names it.",
        "Start the bookie, or bkctl decommission {subject}.",
    ),
    (
        "ledger-ack-quorum-one",
        "An add is acknowledged when one bookie has it: its loss at that moment loses the entry.",
        "Create ledgers with an ack quorum of 2 or more; bkctl ledger show {subject}.",
    ),
    (
        "ledger-format-one",
        "It stores neither digest type nor password: Java workers open it with CRC32, so one that was written with "
        "another digest is never repaired and stays marked for ever.",
        "bkctl ledger verify {subject} tells whether its entries can be read.",
    ),
    (
        "empty-ledger-directory",
        "None but a request in every listing; Pulsar's driver and the older layouts leave them behind as a rule.",
        "zkCli: delete {path}, which fails if a ledger was created below it meanwhile.",
    ),
    (
        "empty-mark-directory",
        "None but a request in every search for work; Pulsar's driver leaves them behind as a rule.",
        "zkCli: delete {path}, which fails if a ledger was marked meanwhile.",
    ),
    (
        "id-node-left",
        "None: the number is used, nobody asks for it again.",
        _REMOVE,
    ),
    (
        "long-ids-begin",
        "The short ids are used up: the next ledger gets an id of 63 bits.",
        "Nothing is to be done.",
    ),
    (
        "unreadable-lock",
        "None but that nobody can tell who holds it; it keeps others off the ledger as every lock does.",
        "bkctl autorecovery running lists it; it goes with its session.",
    ),
    (
        "lock-without-ledger",
        "None: its ledger was deleted while a worker had it; it goes with the session.",
        "If it stays, restart the daemon that holds it: bkctl autorecovery running.",
    ),
    (
        "invalid-bookie-in-mark",
        "A worker finds no such bookie and looks at the ledger as a whole.",
        "Nothing is to be done: the mark goes when the ledger is repaired.",
    ),
    (
        "replication-disabled",
        "Lost bookies are not noticed and marked ledgers are not repaired, in the whole cluster.",
        "bkctl autorecovery enable, when the work it was switched off for is done.",
    ),
    (
        "delay-very-long",
        "One lost bookie stays unnoticed for longer than a day.",
        "bkctl autorecovery delay set.",
    ),
    (
        "health-check-disabled",
        "Clients keep no bookie in quarantine, and Java's nukeexistingcluster refuses.",
        "bkctl cluster health-check enable.",
    ),
    (
        "no-auditor",
        "Bookies are registered and nobody voted: losses of bookies are not noticed.",
        "Start an autorecovery daemon; bkctl autorecovery auditor.",
    ),
    (
        "two-kinds-of-auditor",
        "Pulsar's driver elects its own auditor beside Java's: both mark, which is tolerated.",
        "Nothing has to be done; stop the daemons of one kind.",
    ),
)

_SETTLED = {"ledger-ack-quorum-one", "ledger-format-one"}

RULES: dict[str, Rule] = {
    rule.id: msgspec.structs.replace(rule, is_settled=rule.id in _SETTLED)
    for rule in (*_CRITICAL, *_WARNINGS, *_INFORMATION)
}
"""By id, in the order of a report."""


def finding(rule_id: str, path: str, problem: str, subject: object = None) -> Finding:
    """A finding at the node ``path``; the ``problem`` is one sentence."""
    return Finding(RULES[rule_id], path, problem, path.rpartition("/")[2] if subject is None else str(subject))
