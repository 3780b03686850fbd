"""The journal: what a bookie has acknowledged is here, or durable in the ledger storage.

A group of records is one write and one sync; groups are written one at a time, so a crash can tear only the last one.
A failed write or sync is final: the kernel may have dropped the pages, and a second sync would succeed without them.
Only a full disk while a group is written is not: the same group is written again at the same place.
``damage`` decides whether an end is torn or damaged. Formats: storage section 3, docs/formats/bkctl-files.md.

A new file gets header and first step, fsync, fsync of the directory, then its line in the catalog; only then may its
records be acknowledged. A group with adds of deferred sync is written and synced in two steps: these adds are
acknowledged in between, those of a recovery after the sync. The next group is written only after the sync.
"""
