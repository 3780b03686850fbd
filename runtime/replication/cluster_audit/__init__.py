"""What an audit counts. Pure.

Enters: write sets, bookies, marks and what follows from losing bookies.
Leaves: totals and tables of a report, by bookie, rack, owner and ledger.
Spark calls the same functions on its executors, with parts of the ledgers.
"""
