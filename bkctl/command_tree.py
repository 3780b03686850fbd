"""The command tree: every command with its module and the first sentence of its help page.

Help pages of groups are written from this table alone; the module of a command is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# fmt: off
GROUPS: Mapping[str, str] = {
    "bookie": "Run a bookie; list and check the cluster's bookies.",
    "bookie index": "Rebuild the location indexes of a running bookie.",
    "bookie gc": "Control garbage collection of a running bookie.",
    "cluster": "Create, inspect, back up, restore or delete cluster metadata.",
    "cluster health-check": "Whether clients may quarantine bookies that fail health checks.",
    "cookie": "Inspect and repair cookies; find why a bookie cannot start.",
    "storage": "Inspect, check and repair the files of a local bookie.",
    "storage journal": "List the records of journal files, and replay journals.",
    "storage entrylog": "Show the header, the entries and the ledgers of an entry log.",
    "storage index": "Show and rebuild the indexes of a stopped bookie.",
    "storage limbo": "List ledgers in limbo, whose missing entries are reported as \"unknown\", or end their limbo.",
    "ledger": "List, read, verify, close, export, import and delete ledgers.",
    "log": "Write and read logs made of ledgers.",
    "metadata": "Examine the metadata of a whole cluster.",
    "autorecovery": "Run, show and control autorecovery: queue, workers, auditor.",
    "autorecovery delay": "How long an auditor waits before it acts on one lost bookie.",
    "autorecovery maintenance": "Let bookies be away without marking their ledgers.",
    "recover": "Re-replicate failed bookies and bad copies of ledgers.\n\n"
        "bkctl recover ID... is short for bkctl recover failed-bookie ID...",
    "audit": "Count live copies, and list under-replicated ledgers.\n\n"
        "bkctl audit is short for bkctl audit run.",
    "tls": "Make and check certificates of bookies and clients.\n\n"
        "A cluster with TLS and logins, step by step: bkctl help secure-a-cluster.",
    "config": "Show and explain settings and their sources; choose a cluster.",
    "dev": "Run servers on this machine: a cluster, or only ZooKeeper.",
    "dev cluster": "Run a whole cluster on this machine, for development.",
}
"""Help text of each group."""


class Leaf(NamedTuple):
    """A command: its module below ``commands``, and the first sentence of its docstring there."""

    module: str
    summary: str


COMMANDS: Mapping[str, Leaf] = {
    "status": Leaf("status", "Show what is down, at risk or in repair, and what to do."),
    "bookie start": Leaf("bookie.start", "Run a bookie in the foreground."),
    "bookie init": Leaf("bookie.init", "Create the directories and the cookie of a new bookie."),
    "bookie list": Leaf("bookie.list", "List all bookies, also those that are down."),
    "bookie show": Leaf("bookie.show", "Show the state, address, disk space and cookie of bookies."),
    "bookie state": Leaf("bookie.mode", "Show the mode of running bookies and why, and their jobs."),
    "bookie ready": Leaf("bookie.ready", "Exit with 0 if these bookies serve requests, with 7 if not."),
    "bookie restart-check": Leaf("bookie.restart_check", "Check whether bookies can be stopped now."),
    "bookie drain": Leaf("bookie.drain", "Make bookies read-only and move their ledgers away."),
    "bookie undrain": Leaf("bookie.undrain", "Make drained bookies writable again."),
    "bookie set-mode": Leaf("bookie.mode", "Make running bookies read-only, or end that."),
    "bookie metrics": Leaf("bookie.metrics", "Show the Prometheus metrics of running bookies."),
    "bookie log-level": Leaf("bookie.log_level", "Change the log level of running bookies."),
    "bookie stop": Leaf("bookie.stop", "Stop running bookies cleanly, one after another."),
    "bookie info": Leaf("bookie.info", "Show total and free disk space of bookies."),
    "bookie sanity": Leaf("bookie.sanity", "Write, read back and delete a small ledger on each bookie."),
    "bookie format": Leaf("bookie.format", "Delete all data of a stopped bookie, also of a Java bookie."),
    "bookie index rebuild": Leaf("bookie.index",
        "Rebuild the location indexes of a running bookie from its entry logs."),
    "bookie gc run": Leaf("bookie.garbage_collection",
        "Start garbage collection now: delete ledgers that are gone, then compact."),
    "bookie gc status": Leaf("bookie.garbage_collection",
        "Show what garbage collection and compaction do in each ledger directory, and what is suspended."),
    "bookie gc suspend": Leaf("bookie.garbage_collection",
        "Suspend compaction until it is resumed, or the bookie restarts."),
    "bookie gc resume": Leaf("bookie.garbage_collection", "Resume compaction that was suspended."),
    "bookie gc confirm": Leaf("bookie.garbage_collection",
        "Allow a bookie to delete ledgers again, although the metadata is older than it was."),
    "cluster init": Leaf("cluster.init", "Create the cluster at the metadata URI."),
    "cluster info": Leaf("cluster.info",
        "Show bookies by state, the auditor, and whether ledgers are under-replicated."),
    "cluster instance-id": Leaf("cluster.info", "Show the instance id."),
    "cluster backup": Leaf("cluster.survey", "Save ledger metadata, cookies, layout and instance id in one file."),
    "cluster restore": Leaf("cluster.restore",
        "Restore a backup: create the cluster at an absent root, or add what is missing in the same cluster."),
    "cluster format": Leaf("cluster.deletion",
        "Delete all ledgers, cookies and marks of a cluster of stopped bookies; assign a new instance id."),
    "cluster nuke": Leaf("cluster.deletion",
        "Delete all metadata of a cluster whose bookies are all stopped, including its root."),
    "cluster health-check status": Leaf("cluster.health_check", "Show whether the health check is enabled."),
    "cluster health-check enable": Leaf("cluster.health_check",
        "Allow clients that check the health of bookies to quarantine bad ones."),
    "cluster health-check disable": Leaf("cluster.health_check",
        "Release all quarantined bookies and disable quarantine on all clients."),
    "cookie list": Leaf("cookie.list", "List all cookies."),
    "cookie show": Leaf("cookie.list", "Show the stored cookies of bookies."),
    "cookie verify": Leaf("cookie.verify",
        "Compare settings, VERSION files, stored cookie and instance id of this machine's bookie."),
    "cookie create": Leaf("cookie.create", "Create the cookie of a stopped bookie that has none."),
    "cookie update": Leaf("cookie.create",
        "Replace the stored cookie of a stopped bookie; the old one is kept in the trash."),
    "cookie delete": Leaf("cookie.delete", "Delete the cookies of stopped bookies that no ledger references."),
    "cookie generate": Leaf("cookie.generate",
        "Write the cookie that follows from a bookie's settings, without storing it in the cluster."),
    "cookie migrate": Leaf("cookie.migrate",
        "Change the ID of a stopped bookie, for example from an address to a host name."),
    "cookie expand": Leaf("cookie.expand",
        "Update the cookie of a stopped, empty bookie to its current ledger directories."),
    "storage files": Leaf("storage.files",
        "List every file in the bookie's directories with its size and a description."),
    "storage mark": Leaf("storage.mark",
        "Show the marks of the bookie's journals: records before a mark are safe in ledger storage."),
    "storage check": Leaf("storage.check",
        "Check a stopped bookie's files: VERSION files, marks, journals, entry logs, index seals, .idx files of Java."),
    "storage adopt": Leaf("storage.adopt",
        "Build bkctl's index from the files of a stopped Java bookie, and move Java's index aside."),
    "storage hand-back": Leaf("storage.adopt",
        "Prepare the directories of a stopped bookie for a Java bookie with DbLedgerStorage."),
    "storage journal scan": Leaf("storage.journal",
        "List the records of journal files from the start of each file, regardless of marks."),
    "storage journal replay": Leaf("storage.journal",
        "Replay a stopped bookie's journals from a file before the mark up to the newest."),
    "storage entrylog show": Leaf("storage.entrylog",
        "Show the header of an entry log, or with --ledger the entries of a ledger with their contents."),
    "storage entrylog scan": Leaf("storage.entrylog",
        "List the entries of an entry log in file order, without their contents."),
    "storage entrylog ledgers": Leaf("storage.entrylog",
        "List the bytes of each ledger in an entry log, from the map at its end or by reading all of it."),
    "storage index show": Leaf("storage.index_show",
        "Show the indexes of a stopped bookie, or with --ledger their rows for it, without keys."),
    "storage index rebuild": Leaf("storage.index",
        "Rebuild the indexes of a stopped bookie from its entry logs and journals."),
    "storage limbo list": Leaf("storage.limbo",
        "List the ledgers in limbo of a stopped bookie: it reports their missing entries as \"unknown\"."),
    "storage limbo end": Leaf("storage.limbo", "End the limbo of ledgers of a stopped bookie."),
    "ledger list": Leaf("ledger.list", "List ledgers, in the order of the metadata tree unless --sort is given."),
    "ledger show": Leaf("ledger.show",
        "Show the metadata of ledgers: state, quorums, segments with their bookies, custom metadata."),
    "ledger explain": Leaf("ledger.explain", "Explain why ledgers lack copies, or cannot be closed or recovered."),
    "ledger read": Leaf("ledger.read", "Read entries, without fencing or closing the ledger."),
    "ledger verify": Leaf("ledger.verify",
        "Read every entry from every bookie that should have it, and check digests and equality."),
    "ledger write-test": Leaf("ledger.write_test",
        "Write test ledgers, close them, read every entry back and compare."),
    "ledger export": Leaf("ledger.export",
        "Write the metadata of ledgers as JSON Lines: bytes, version and decoded fields."),
    "ledger import": Leaf("ledger.import_ledgers",
        "Restore ledger metadata, after showing what changes field by field."),
    "ledger close": Leaf("ledger.close", "Close ledgers that are open or in recovery."),
    "ledger delete": Leaf("ledger.delete", "Delete ledgers permanently: metadata now, entries later."),
    "ledger rewrite-bookie": Leaf("ledger.rewrite_bookie",
        "Replace a bookie's ID in all ledgers after it has changed."),
    "log create": Leaf("log.create", "Create an empty log."),
    "log list": Leaf("log.show", "List all logs."),
    "log show": Leaf("log.show", "Show the settings of logs, their last writers and their ledgers."),
    "log append": Leaf("log.append", "Append each line of stdin as one entry, and print its position."),
    "log read": Leaf("log.read",
        "Read the entries of a log in order, across its ledgers, without fencing its writer."),
    "log trim": Leaf("log.deletion", "Delete the oldest ledgers of a log permanently."),
    "log delete": Leaf("log.deletion", "Delete logs and all their ledgers permanently, and stop their writers."),
    "metadata doctor": Leaf("metadata.doctor",
        "Read all metadata of the cluster and report problems, each with its znode and the fix."),
    "autorecovery start": Leaf("autorecovery.start", "Run an auditor and a worker in the foreground."),
    "autorecovery status": Leaf("autorecovery.status",
        "Show the switch, the auditor and its tasks, the workers, and what waits for them."),
    "autorecovery enable": Leaf("autorecovery.switches", "Enable automatic replication for the whole cluster."),
    "autorecovery disable": Leaf("autorecovery.switches", "Disable automatic replication in the whole cluster."),
    "autorecovery pending": Leaf("autorecovery.pending",
        "List ledgers marked as under-replicated, and why each waits."),
    "autorecovery running": Leaf("autorecovery.running",
        "List ledgers whose replication lock is held, and the host of the holder."),
    "autorecovery repair-marks": Leaf("autorecovery.repair_marks",
        "Clear marks of under-replicated ledgers that need no repair, and list the others with the reason."),
    "autorecovery auditor": Leaf("autorecovery.auditor", "Show the elected auditor and the candidates after it."),
    "autorecovery trigger": Leaf("autorecovery.switches",
        "Let the auditor look for lost bookies now and mark their ledgers, regardless of the recovery delay."),
    "autorecovery reset-checks": Leaf("autorecovery.switches",
        "Mark periodic checks (default: all) as overdue, so that the auditor runs them."),
    "autorecovery delay get": Leaf("autorecovery.switches", "Show the delay."),
    "autorecovery delay set": Leaf("autorecovery.switches", "Set the delay for all auditors, now and in future."),
    "autorecovery maintenance start": Leaf("autorecovery.maintenance",
        "Expect bookies to be away for a while, and do not mark their ledgers."),
    "autorecovery maintenance end": Leaf("autorecovery.maintenance", "End the maintenance of bookies that are back."),
    "autorecovery maintenance list": Leaf("autorecovery.maintenance", "List the bookies in maintenance."),
    "recover failed-bookie": Leaf("recover",
        "Copy the entries of failed bookies to others, and replace the failed ones."),
    "recover ledger": Leaf("recover_ledger",
        "Write missing, corrupt and failed copies of ledgers again, on the bookies that the metadata names."),
    "decommission": Leaf("decommission", "Move the ledgers of bookies away, then delete their cookies."),
    "audit run": Leaf("audit.run", "Count live copies, and list under-replicated ledgers."),
    "audit show": Leaf("audit.show", "Print the report of an earlier audit, with its exit code."),
    "audit orphans": Leaf("audit.orphans", "List ledgers of Pulsar that its metadata no longer names."),
    "tls init": Leaf("tls.init",
        "Make a CA and certificates for the hosts of bookies and for clients, and print the settings that use them."),
    "tls check": Leaf("tls.check", "Check certificates: those of the settings or of files, and those of live bookies."),
    "config show": Leaf("configuration", "Show the value of every setting."),
    "config explain": Leaf("configuration",
        "Explain a setting: meaning, unit, range, default, Java key, variable, value and source."),
    "completion": Leaf("completion", "Print a script that completes command lines in a shell."),
    "config contexts": Leaf("contexts", "List the contexts of the TOML file, and mark the current one."),
    "config use-context": Leaf("contexts",
        "Make a context the current one: commands are for its cluster, unless an option or variable names another."),
    "dev zookeeper": Leaf("dev.zookeeper", "Run a ZooKeeper server until Ctrl-C."),
    "dev cluster up": Leaf("dev.cluster",
        "Start ZooKeeper, bookies and an autorecovery daemon; servers that are already running are left alone."),
    "dev cluster status": Leaf("dev.cluster", "Show which processes run, and where their data and logs are."),
    "dev cluster down": Leaf("dev.cluster", "Stop all processes cleanly; the data is kept unless --delete is given."),
    "dev cluster kill": Leaf("dev.cluster",
        "Kill bookies, or the autorecovery daemon, without warning (kill -9), as in a crash."),
    "dev cluster start": Leaf("dev.cluster",
        "Start stopped bookies again on their data, or the autorecovery daemon."),
}
"""In the order of the help pages."""
# fmt: on


def members(path: str) -> list[str]:
    """Names of the commands and groups in a group, in their order; "" is the whole tree."""
    depth = len(path.split())
    return list(dict.fromkeys(each.split()[depth] for each in COMMANDS if each.startswith(f"{path} ".lstrip())))


def summary(path: str) -> str:
    """What a command or a group does, in one sentence."""
    return COMMANDS[path].summary if path in COMMANDS else GROUPS[path].partition("\n")[0]


def paths_ending_in(word: str) -> list[str]:
    """Commands and groups of this name, below any group."""
    return [path for path in (*GROUPS, *COMMANDS) if path.rpartition(" ")[2] == word]
