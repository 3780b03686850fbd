"""Reads what the rules of ``judge`` need, from ZooKeeper and from bookies.

Enters: ports, and what to look at: a ledger, a bookie that may be stopped, all marks, all ledgers.
Leaves: facts and their verdicts: a check of all copies, a status, proof of a loss, orphans.
Writes nothing.
"""
