"""Repair of entries that a crash or a lost disk took.

A bookie that lost entries may not deny them: recovery would truncate ledgers. So before it serves, open ledgers go into
limbo, in which negative answers are "unknown"; the repair fetches what belongs here, and then ends the limbo.
Answers and order: storage section 9.

The repair takes ledgers in limbo first, newest first, eight at a time. An open one is recovered first, unless its
writer has replaced this bookie. An entry that no other bookie has keeps its ledger in limbo. An open ledger can be
closed only if in every write quorum of its last segment Qw - Qa + 1 bookies are out of limbo: if too many are in limbo,
their repairs wait for each other forever, and the log names ``bkctl storage limbo end``.
"""
