"""One ledger directory, and all of them: write cache, checkpoints, deletions, replay.

A checkpoint notes the position of the journals, freezes the caches, writes entries, locations and rows, and only then
moves the mark: a kill between two steps leaves what replay repeats. A checkpoint deletes a ledger before it writes
entries, so entries that are added later belong to a new ledger. Only the event loop changes caches and rows; a lane
gets data that no longer changes. Order of the steps: storage section 5.8. When a step fails, the mark does not move,
and the next checkpoint writes the same again and nothing newer; a failed write to the index is final for the process.
After each 8,192 entries or 4 MiB a checkpoint rests as long as it worked, unless something waits for it.
What a checkpoint wrote still answers reads from memory until the next one begins.

A deleted ledger disappears from caches and readers immediately. The next checkpoint replaces its row by one with
``exists: false``, deletes its locations (131,072 at most) before it writes anything, then the row. Deletions are not
journaled: after a crash the collector deletes the ledger again. Until the marks have passed everything journaled before
the deletion, adds to that id wait, and a fencing read or explicit LAC is an I/O error.
"""
