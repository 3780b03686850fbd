"""The autorecovery daemon: the auditor marks ledgers that lack copies, the worker repairs them.

Each task of the auditor is a lane that repeats and that no other lane can stop. What the next auditor must know is in
notes in ZooKeeper. A registration never proves that a bookie has its entries. Neither part ends because of ZooKeeper; a
worker changes nothing that it has not locked and read again. What is marked, and how it is repaired, is in
docs/guide/autorecovery.md.

A bookie that is not registered gets a note with its deadline, with which a new auditor goes on. If no delay is stored
in the cluster, ``bkctl autorecovery trigger`` writes the node ``audit`` next to the notes. A change of the stored delay
lets all deadlines count from the write.

A round of the check of copies reads the first and the last entry that each bookie stores of each closed segment, and a
share of the others, with digests. A ledger is marked only if a registered bookie answers twice, two seconds apart, that
a copy is missing, or sends a damaged one, or cannot read it; other answers prove nothing. Up to 5,000 ledgers with
unknown copies are read again, up to eight times before the next round. If all bookies of a write set answer and none
has a good copy, the ledger is noted as a loss, not marked.

Where only an event can help a repair (no copy is left, no bookie improves the placement, copies differ), its pause is
twelve times the longest, or until a bookie registers.
"""
