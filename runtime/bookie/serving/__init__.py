"""Requests of clients: adds, reads, group commit, checkpoints.

Reads from memory need no turn. Ordinary, high-priority and fencing reads and lists of entries wait in a lane each.
``connection_memory_bytes_max`` is shared: a quarter for adds and other requests (a connection that uses more than what
is left is not read), 1/12 for each lane of reads, 1/192 for lists (then TOO_MANY_REQUESTS), 1/8 for long unfinished
frames (they wait), 3/8 for answers that peers have not read (their further reads are refused). If the share for changed
ledger rows is full, adds that create a ledger wait for a checkpoint; fences and explicit LACs get TOO_MANY_REQUESTS.

Even with ``is_data_synced = false`` a group with a fence, an explicit LAC or a forced ledger is synced before its
answers, unlike in Java. With ``is_data_written = false`` FORCE_LEDGER waits for a checkpoint, unlike in Java. Explicit
LACs need journal version 6, else BAD_VERSION; negative ids and records of zeros are BAD_REQUEST.
"""
