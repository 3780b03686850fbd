"""One ledger directory, and all of them: write cache, checkpoints, deletions, replay.

A checkpoint notes the position of the journals, freezes the caches, writes entries, locations and rows, and only then
moves the mark: a kill between two steps leaves what replay repeats. A checkpoint deletes a ledger before it writes
entries, so entries that are added later belong to a new ledger. Only the event loop changes caches and rows; a lane
gets data that no longer changes. Order of the steps: storage section 5.8, docs/internals/bookie.md.
"""
