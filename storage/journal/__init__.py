"""The journal: what a bookie has acknowledged is here, or durable in the ledger storage.

A group of records is one write and one sync. At most one group is written before the sync of the one before it has
ended, so a crash can tear only the last two.
A failed write or sync is final: the kernel may have dropped the pages, and a second sync would succeed without them.
Only a full disk while a group is written is not: the same group is written again at the same place.
``damage`` decides whether an end is torn or damaged. Formats: storage section 3, docs/formats/bkctl-files.md.

A new file gets header and first step, fsync, fsync of the directory, then its line in the catalog; only then may its
records be acknowledged. A group with adds of deferred sync is written and synced in two steps: these adds are
acknowledged in between, those of a recovery after the sync.
"""
