"""Pure rules about ledgers and their copies.

Enters: metadata, registrations, answers of bookies, marks, notes; all read by others.
Leaves: verdicts on a ledger, fragments and stripes to copy, targets, results, findings, sentences.
Nothing here awaits, reads or writes, so every rule is tested with values alone.
"""
