"""What a run will do, for any number of ledgers in flat memory.

Enters: bookies to leave, and one scan of the metadata.
Leaves: a plan, in the order of work, with totals; and the file of a job, which a killed run continues from.
A plan changes nothing. Every ledger is read again before it is touched.
"""
