"""Garbage collection and compaction of entry logs, next to the serving bookie.

A ledger is deleted only on proof: its metadata is missing twice, in one session, in the cluster in which the bookie
booted, and the metadata is not older than it was (decision 24). After any error everything stays until the next round.
A listing without any ledger counts only if the next one is empty as well. A log is deleted only when no row of the
index names it. Rounds and compactions can be interrupted anywhere.

A copy of a closed ledger that has this bookie in no ensemble is deleted under the replication lock, after a second
look; ledgers in limbo keep theirs, and all while a repair is due. The fence stays (``bkctl.collected``), because an old
writer may not know that the ledger was closed: a plain add gets EFENCED, a recovery add, explicit LAC or fencing read
creates the row again, fenced.

A log is quarantined if the index references entries that a scan does not find, or something else is in the place of an
entry. Rounds leave it alone, and its other entries are still served. A log that the disk cannot *read* is tried again.
"""
