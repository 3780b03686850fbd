"""The autorecovery daemon: the auditor marks ledgers that lack copies, the worker repairs them.

Each task of the auditor is a lane that repeats and that no other lane can stop. What the next auditor must know is in
notes in ZooKeeper. A registration never proves that a bookie has its entries. Neither part ends because of ZooKeeper; a
worker changes nothing that it has not locked and read again. docs/internals/autorecovery.md.
"""
