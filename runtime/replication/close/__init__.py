"""Closes ledgers that their writers left open, for operators.

Enters: a ledger, how long to wait for its writer, and which lost bookies are given up.
Leaves: the closed ledger, or why it stays open and what helps.
A close takes no replication lock, because it copies nothing; only one that gives up lost bookies does both.
"""
