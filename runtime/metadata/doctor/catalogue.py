"""Everything the metadata doctor can find: what it is, its severity, its effect on a running cluster, how to fix it.

``make doctor-page`` writes ``docs/reference/metadata-doctor.md`` from it. Ids are stable, because users filter by them.
The order is that of a report. Sources: metadata sections 2 to 12, replication sections 1 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bkctl.runtime.metadata.doctor.critical import CRITICAL, REPLACE_LEDGER
from bkctl.storage.severity import Severity


class Rule(msgspec.Struct, frozen=True):
    """A kind of problem. In ``cure``, {path} is the node and {subject} its ledger or bookie.

    A critical rule destroys or hides data, or stops clients, auditors or the creation of ledgers in the whole cluster.
    ``depends``: on what the severity of a finding depends, if it may be another one.
    A settled rule concerns one node in a state that cannot be temporary: it is reported without a second read.
    """

    id: str
    severity: Severity
    meaning: str
    consequence: str
    cure: str
    is_settled: bool = False
    depends: str = ""


class MetadataFinding(msgspec.Struct, frozen=True):
    """A rule that a node violates. ``subject`` is the ledger or bookie concerned, otherwise the name of the node.

    ``own_severity`` and ``own_cure``: None: those of the rule.
    """

    rule: Rule
    path: str
    problem: str
    subject: str
    own_severity: Severity | None = None
    own_cure: str | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.rule.severity if self.own_severity is None else self.own_severity

    @property
    def cure(self) -> str:
        """How to fix this node."""
        return self.own_cure or self.rule.cure.format(path=self.path, subject=self.subject)


_UNBOOTABLE = "The bookie will refuse to start."
_REPAIR_COOKIE = (
    "bkctl cookie verify on the machine of bookie {subject} shows the cause and the one safe command. If the bookie "
    "has failed permanently: bkctl decommission {subject}."
)
_OFF = "In the whole cluster, lost bookies are not detected and marked ledgers are not repaired."


def _rules(severity: Severity, rows: Iterable[tuple[str, str, str, str]]) -> list[Rule]:
    return [Rule(rule_id, severity, meaning, consequence, cure) for rule_id, meaning, consequence, cure in rows]


_WARNINGS = (
    (
        "node-without-permission",
        "This user has no permission to read a node.",
        "The node and everything below it were not checked. A Java process with the same rights cannot read them "
        "either.",
        "Run the doctor as the owner of the tree, or give this user permission (zkCli: getAcl {path}, setAcl).",
    ),
    (
        "restore-unfinished",
        "A restore into this root was started and did not finish.",
        "The ledgers that are not restored yet are missing, and bookies do not start.",
        "Run the same bkctl cluster restore again.",
    ),
    (
        "stray-at-root",
        "BookKeeper does not use a node of this name below the ledgers root.",
        "Java's nukeexistingcluster refuses to run, and a future release may use the name.",
        "Move its content out of the ledgers root, then zkCli: deleteall {path}.",
    ),
    (
        "stray-among-ledgers",
        "A node among the ledgers is neither a ledger nor a directory of ledgers.",
        "Java does not filter names there: it makes a ledger id of the digits that it finds and reads a ledger that "
        "does not exist, or fails on the name.",
        "zkCli: delete {path}; if it has children, deleteall, once none below it is reported as a ledger.",
    ),
    (
        "ledger-with-children",
        "The node of a ledger has children.",
        "The ledger cannot be deleted: ZooKeeper keeps a node that has children.",
        "Remove the nodes below it, which are reported on their own. Keep the node itself: it is the ledger.",
    ),
    (
        "layout-missing",
        "The cluster has no LAYOUT.",
        "The next Java process that connects, even a read-only command, writes one from its own settings. If that "
        "is not the layout of the ledgers, bookies delete their data.",
        "bkctl cluster init --if-not-exists with the layout of the ledgers in the metadata URI.",
    ),
    (
        "layout-differs-from-uri",
        "LAYOUT and the metadata URI give different layouts.",
        "A process with this metadata URI refuses to start, Java and bkctl alike.",
        "Write zk+null:// in the metadata URI, or the layout that is recorded.",
    ),
    (
        "instance-id-missing",
        "The cluster has no instance id.",
        "Cookies created now have no instance id either, so a new cluster at this root could not be distinguished "
        "from this one.",
        "None needed: this is legal. It can be changed only while all bookies are stopped, together with their "
        "cookies.",
    ),
    (
        "instance-id-malformed",
        "INSTANCEID is not a UUID in lower case.",
        "Bookies compare it byte by byte with their cookies: another spelling prevents their start.",
        "If it was changed, write the value that the cookies have (zkCli: set {path}), without a newline.",
    ),
    (
        "cookies-missing",
        "The directory of cookies is missing.",
        "A Java auditor since 4.16 exits within seconds of its start.",
        "zkCli: create {path}; an empty node is enough.",
    ),
    ("unreadable-cookie", "A cookie cannot be parsed.", _UNBOOTABLE, _REPAIR_COOKIE),
    (
        "cookie-of-another-instance",
        "The instance id in a cookie is not that of the cluster.",
        _UNBOOTABLE,
        "If INSTANCEID was changed, write the old value again. If the bookie comes from another cluster, its data "
        "does not belong here: bkctl decommission {subject}.",
    ),
    ("cookie-names-another-bookie", "The bookie id in a cookie is not that of its node.", _UNBOOTABLE, _REPAIR_COOKIE),
    (
        "cookies-share-folders",
        "Two cookies have a directory of the same host in common.",
        "Two ids claim the same disk: one of the bookies is gone or will not start, and ledgers that have both in an "
        "ensemble have one copy where two are counted.",
        "bkctl cookie verify on that machine shows the owner of the directories; bkctl decommission the other id.",
    ),
    (
        "registered-without-cookie",
        "A bookie is registered and has no cookie.",
        "The bookie takes entries but cannot start again, and a bkctl bookie stops when its session ends. The cookie "
        "was lost, or the bookie was decommissioned while it did not respond.",
        "Do not stop it first: bkctl decommission {subject} moves its entries while it serves. If only the cookie was "
        "lost: stop it, bkctl cookie create --from-config on its machine, start it.",
    ),
    (
        "bookie-down-with-ledgers",
        "A bookie is not registered, and ledgers reference it.",
        "These ledgers have fewer copies; entries of which no other copy is left cannot be read.",
        "Start the bookie: in any case if entries have no live copy, or too few other bookies are writable to take the "
        "copies. Wait for one in maintenance. If it does not come back, bkctl recover failed-bookie {subject} copies "
        "its ledgers to other bookies; bkctl decommission {subject} does that and removes the bookie from the cluster.",
    ),
    (
        "removed-bookie-with-ledgers",
        "Ledgers reference a bookie that has no cookie and is not registered.",
        "The bookie was removed, or its cookie was lost. These ledgers have one copy less, and the bookie "
        "cannot start. Ledgers whose loss was accepted do not count.",
        "bkctl recover failed-bookie {subject} moves what still has copies. If only the cookie was lost, restore it "
        "with bkctl cookie create --from-config on the bookie's machine.",
    ),
    (
        "given-up-bookie-returned",
        "A bookie is registered again whose loss was accepted, and ledgers no longer name it.",
        "A Java bookie's garbage collection will delete its entries of these ledgers, which may be the only copies.",
        "bkctl ledger read LEDGER --from-bookie {subject} -o jsonl > ledger-LEDGER-{subject}.jsonl saves them. Then "
        "bkctl ledger delete LEDGER, or bkctl decommission {subject}, ends this.",
    ),
    (
        "bookies-share-address",
        "Two bookies are registered with one address.",
        "The process there serves both: an entry that both should have has one copy, and each check finds two.",
        "Correct the address of the wrong one and restart it. Then bkctl ledger verify --all --out FILE finds what it "
        "lacks, and bkctl recover ledger --from-file FILE writes it.",
    ),
    (
        "registration-without-address",
        "A registration has no endpoint for ledger requests.",
        "Clients see the bookie but cannot reach it: every ledger that picks it begins with a failed write.",
        "Restart bookie {subject}; the endpoint bookie-rpc is missing from its registration.",
    ),
    (
        "malformed-rack",
        "The rack of a bookie in Pulsar's node is no path, or has another number of parts than most racks.",
        "A bookie whose rack is empty or / counts as in /default-rack, so copies that should be in different racks may "
        "share one. Of racks with different numbers of parts, each Java client keeps those of the form that it meets "
        "first, and never chooses the other bookies.",
        "pulsar-admin bookies set-bookie-rack -b {subject} -g GROUP -r RACK, in the form of the other bookies: RACK, "
        "or REGION/RACK.",
    ),
    (
        "registered-by-two-sessions",
        "A bookie is registered as writable and as read-only by different sessions.",
        "Two processes use the same id, or one changed its mode and left the old node.",
        "Stop both processes that run as {subject}, then start one.",
    ),
    (
        "duplicate-bookie-in-ensemble",
        "A segment has the same bookie more than once.",
        "Its entries have fewer copies than the write quorum says.",
        "bkctl recover ledger {subject} moves the second place of the bookie to another one.",
    ),
    (
        "impossible-end",
        "The last entry id and the length of a closed ledger contradict each other.",
        "Readers compute wrong lengths, or ask for entries that cannot exist.",
        REPLACE_LEDGER,
    ),
    (
        "unreadable-mark",
        "The mark of an under-replicated ledger cannot be parsed.",
        "Releases before 4.18 fail on it; 4.18 treats it as an empty mark and clears it without a repair. Marking the "
        "ledger again fails.",
        "zkCli: delete {path}, then bkctl autorecovery trigger: the auditor marks the ledger again if copies are "
        "missing.",
    ),
    (
        "mark-without-ledger",
        "A ledger that does not exist is marked as under-replicated.",
        "It is counted as under-replicated until a worker clears the mark.",
        "None needed while replication runs (bkctl autorecovery status); otherwise zkCli: delete {path}.",
    ),
    (
        "stray-node",
        "No process uses a node of this name at this place.",
        "No process reads it. Where Java lists the directory, it skips or logs the node, depending on the release.",
        "zkCli: delete {path} (deleteall if it has children).",
    ),
    (
        "replication-disabled-long",
        "Autorecovery has been disabled for more than a day.",
        _OFF,
        "bkctl autorecovery enable.",
    ),
    (
        "replication-disabled",
        "Autorecovery is disabled.",
        _OFF,
        "bkctl autorecovery enable, when the work it was disabled for is done.",
    ),
    (
        "delay-unreadable",
        "The recovery delay is not a number of seconds.",
        "An auditor fails on it, when it starts or when the node is written.",
        "bkctl autorecovery delay set 0, or another number. Never delete the node: running auditors would then ignore "
        "later writes.",
    ),
    (
        "delay-missing",
        "An auditor is elected, and the recovery delay that it created at its start is missing.",
        "The node was deleted while the auditor ran. It ignores later writes: triggers have no effect and report no "
        "error.",
        "bkctl autorecovery delay set 0, then restart the auditor (bkctl autorecovery status shows it).",
    ),
    (
        "check-time-unreadable",
        "The time of the last periodic check cannot be parsed.",
        "An auditor that starts cannot plan its checks.",
        "bkctl autorecovery reset-checks writes it again.",
    ),
    (
        "check-time-in-future",
        "The time of the last periodic check is in the future.",
        "An auditor that starts assumes that the check has just run, and waits a whole period, after every restart.",
        "bkctl autorecovery reset-checks, then restart the auditor (bkctl autorecovery status shows it).",
    ),
    (
        "unreadable-note",
        "A note of bkctl's autorecovery cannot be parsed.",
        "Auditor and workers treat it as missing: a deadline or a pause begins again, and a maintenance protects no "
        "bookie.",
        "For a bookie in maintenance: bkctl autorecovery maintenance end {subject}. Otherwise zkCli: delete {path}; "
        "the daemon writes it again if it is needed.",
    ),
    (
        "maintenance-overdue",
        "The maintenance of a bookie should have ended.",
        "A recovery delay that was raised for it stays raised.",
        "Start the bookie, then bkctl autorecovery maintenance end {subject}.",
    ),
    (
        "deletion-stopped",
        "A bookie deletes no ledgers, because the metadata is older than it was.",
        "Newer ledgers are missing from the metadata; their entries are still on the bookie. Its disks fill up.",
        "Put the newer metadata back. If it is lost, bkctl bookie gc confirm {subject} allows to delete these entries.",
    ),
    (
        "unreadable-vote",
        "A vote cannot be parsed.",
        "The auditor cannot be determined; elections continue to work.",
        "Restart the daemon whose session the vote belongs to (zkCli: get -s {path}, ephemeralOwner).",
    ),
    (
        "auditor-not-in-office",
        "The lowest vote is not that of the last auditor that was elected.",
        "No auditor works, or two do, for example after a vote was deleted by hand.",
        "Restart the autorecovery daemon that the hint gives, then the one that the lowest vote gives.",
    ),
    (
        "no-auditor",
        "Bookies are registered and there are no election candidates.",
        "No auditor is running: bookie failures are not detected.",
        "bkctl autorecovery start runs a daemon.",
    ),
    (
        "ledger-ids-nearly-used-up",
        "The counter of ledger ids has used 90 % of its numbers, and the layout has no longer ids.",
        "At 2147483647 no ledger can be created in this layout.",
        "Move writers in time to a cluster with the hierarchical layout.",
    ),
)

_INFORMATION = (
    (
        "bookie-down",
        "A bookie with a cookie is not registered.",
        "None for ledgers: no ledger that could be read references it.",
        "Start the bookie, or bkctl decommission {subject}.",
    ),
    (
        "bookie-leaving",
        "A drain or a decommission has made a bookie read-only, and is not finished.",
        "The bookie takes no new entries.",
        "bkctl status shows the next step.",
    ),
    (
        "ledger-ack-quorum-one",
        "The ack quorum of a ledger is 1, its write quorum is larger.",
        "An add is acknowledged when one bookie has it: if that bookie fails at that moment, the entry is lost.",
        "Create ledgers with an ack quorum of 2 or more; bkctl ledger show {subject}.",
    ),
    (
        "ledger-format-one",
        "The metadata has version 1, without password and digest type.",
        "Java workers open the ledger with CRC32. If it was written with another digest, it is never repaired and "
        "stays marked forever.",
        "bkctl ledger verify {subject} shows whether its entries can be read.",
    ),
    (
        "empty-ledger-directory",
        "A directory of ledgers has no ledger.",
        "One more request in every listing. Pulsar's driver and the older layouts usually leave such directories.",
        "zkCli: delete {path}, which fails if a ledger was created below it in the meantime.",
    ),
    (
        "empty-mark-directory",
        "A directory of marks has no mark.",
        "One more request in every search for work. Pulsar's driver usually leaves such directories.",
        "zkCli: delete {path}, which fails if a ledger was marked in the meantime.",
    ),
    (
        "id-node-left",
        "A node that allocated a ledger id was not removed.",
        "None: the number is used and is not requested again.",
        "zkCli: delete {path} (deleteall if it has children).",
    ),
    (
        "long-ids-begin",
        "The counter of short ledger ids is at its end.",
        "The next ledger gets an id of 63 bits.",
        "None needed.",
    ),
    (
        "unreadable-lock",
        "The data of a replication lock cannot be parsed.",
        "The holder of the lock is unknown. The lock works like any other.",
        "bkctl autorecovery running lists it; it disappears with its session.",
    ),
    (
        "lock-without-ledger",
        "A ledger that does not exist has a replication lock.",
        "None: the ledger was deleted while a worker had it. The lock disappears with the session.",
        "If it stays, restart the daemon that holds it: bkctl autorecovery running.",
    ),
    (
        "invalid-bookie-in-mark",
        "A mark has an invalid bookie id.",
        "A worker finds no such bookie and examines the whole ledger.",
        "None needed: the mark is deleted when the ledger is repaired.",
    ),
    (
        "delay-very-long",
        "The recovery delay is longer than a day.",
        "For that time the auditor does not act on a lost bookie.",
        "bkctl autorecovery delay set 0. The end of a maintenance restores the delay that it raised.",
    ),
    (
        "note-without-ledger",
        "Autorecovery has a note about a ledger that does not exist.",
        "It is counted as a loss or as a failed repair until the note is deleted.",
        "zkCli: delete {path}.",
    ),
    (
        "note-without-bookie",
        "Autorecovery has a note about a bookie that is not registered, has no cookie, and is referenced by no ledger.",
        "None for ledgers: the bookie was removed, or the note is of an earlier cluster at this root.",
        "For a bookie in maintenance: bkctl autorecovery maintenance end {subject} --accept-risk. Otherwise zkCli: "
        "delete {path}.",
    ),
    (
        "health-check-disabled",
        "The health check of bookies is disabled.",
        "Clients keep no bookie in quarantine, and Java's nukeexistingcluster refuses to run.",
        "bkctl cluster health-check enable.",
    ),
    (
        "two-kinds-of-auditor",
        "Pulsar's driver has elected an auditor, and there are votes.",
        "Two auditors run, Pulsar's and Java's. Both mark ledgers, which is tolerated.",
        "None needed; you can stop the daemons of one kind.",
    ),
)

_DOWN = (
    "critical if entries have no live copy; otherwise information for a bookie in maintenance; critical if several "
    "bookies are down, or if nothing repairs: autorecovery is disabled, or has neither an auditor nor a marked ledger"
)
_LEAVING = "warning if ledgers wait for their writers, and no command waits with them"
_DEPENDS = {"bookie-down-with-ledgers": _DOWN, "removed-bookie-with-ledgers": _DOWN, "bookie-leaving": _LEAVING}
_SETTLED = {"ledger-ack-quorum-one", "ledger-format-one"}

RULES: dict[str, Rule] = {
    rule.id: msgspec.structs.replace(rule, is_settled=rule.id in _SETTLED, depends=_DEPENDS.get(rule.id, ""))
    for rule in (
        *_rules(Severity.CRITICAL, CRITICAL),
        *_rules(Severity.WARNING, _WARNINGS),
        *_rules(Severity.INFORMATION, _INFORMATION),
    )
}
"""By id, in the order of a report."""


def finding(rule_id: str, path: str, problem: str, subject: object = None) -> MetadataFinding:
    """A finding at the node ``path``; the ``problem`` is one sentence."""
    return MetadataFinding(RULES[rule_id], path, problem, path.rpartition("/")[2] if subject is None else str(subject))
