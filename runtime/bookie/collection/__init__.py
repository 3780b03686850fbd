"""Garbage collection and compaction of entry logs, next to the serving bookie.

A ledger is deleted only on proof: its metadata is missing twice, in one session, in the cluster in which the bookie
booted, and the metadata is not older than it was (decision 24). After any error everything stays until the next round.
A log is deleted only when no row of the index names it. Rounds and compactions can be interrupted anywhere.
"""
