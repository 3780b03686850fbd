"""Many ledgers: queue, outages of ZooKeeper, progress, report.

Enters: a plan from ``plan`` and the choices of the operator.
Leaves: progress while it runs, and a report at its end.
Also operations that are made of runs: drain, decommission, the repair of bad copies, the renaming of a bookie.
"""
