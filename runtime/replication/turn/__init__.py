"""One ledger: lock, read, decide, copy, check the targets, compare-and-set, unlock.

Enters: a ledger and what is to be done with it.
Leaves: its result: what was done, and what is left with its reason.
The process that copies a ledger holds its replication lock. The metadata names only copies that were read back, as far
as ``--verify`` asks for that.
"""
