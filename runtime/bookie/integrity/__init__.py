"""Repair of entries that a crash or a lost disk took.

A bookie that lost entries may not deny them: recovery would truncate ledgers. So before it serves, open ledgers go into
limbo, in which negative answers are "unknown"; the repair fetches what belongs here, and then ends the limbo.
Answers and order: storage section 9, docs/internals/bookie.md.
"""
