"""The bookie server: what it may acknowledge, deny and delete.

A power failure may lose everything that was not synced, in any order. At every moment:

1. A record is synced in a journal before it is acknowledged. It was in the write cache, or among the changed ledger
   rows, before it was queued. A ledger's key is journaled before its first other record.
2. A location is in the index only after the bytes of the entry, and the directory entry of the log, are synced.
3. Everything before a mark is durable in *every* ledger directory. The position is noted before the caches are frozen
   and published after all directories are flushed. It never moves back.
4. A journal is deleted only if it lies before the published mark; an entry log only when no row refers to it, durably.
5. A database without the batches of its seal is not opened: "no such entry" could be wrong.
6. A ledger that was fenced here accepts no plain add while it is in the metadata, even if its copy is gone.
7. "No such entry" and "no such ledger" come only from an index that meets 5, and never for a ledger in limbo or during
   a rebuild. Otherwise the answer is "unknown", which recovery does not count. Unreadable bytes are an error, never an
   absence.
"""
