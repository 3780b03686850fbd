"""Entries from bookies to bookies: reading, writing, limits.

Enters: one stripe of a segment and its target, or entries and the bookies to ask.
Leaves: verified copies on the target, or why there are none: lost, unreadable, a target that fails.
All ledgers of a run share the windows of each bookie and the byte rates. Never changes metadata.
"""
