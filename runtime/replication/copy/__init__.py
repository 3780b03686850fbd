"""Entries from bookies to bookies: reading, writing, limits.

Enters: one stripe of a segment and its target, or entries and the bookies to ask.
Leaves: copies on the target, read back as the policy says, or why there are none: lost, unreadable, a failing target.
All ledgers of a run share the windows of each bookie and the byte rates. Never changes metadata.
"""
