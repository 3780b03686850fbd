"""The journal: what a bookie has acknowledged is here, or durable in the ledger storage.

A group of records is one write and one sync; groups are written one at a time, so a crash can tear only the last one.
A failed write or sync is final: the kernel may have dropped the pages, and a second sync would succeed without them.
Only a full disk while a group is written is not: the same group is written again at the same place.
``damage`` decides whether an end is torn or damaged. Formats: storage section 3, docs/formats/bkctl-files.md.
"""
