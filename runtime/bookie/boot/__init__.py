"""The process of a bookie: the stages of its start and stop.

All checks that can refuse come before the first change:

1. bind the port (connections are closed until the bookie serves), connect to ZooKeeper
2. check the cookie, lock all directories, check again, stamp those of a new bookie
3. look for ``DIRTY``; open the indexes, of which a missing or incomplete one stops the start
4. replay the journals, checkpoint, write the marks; check the disks
5. if entries may be lost, run the pre-boot check (``integrity``)
6. begin new journals and checkpoints; create ``DIRTY``; serve; register
7. start disk monitor, garbage collection and repair

Shutdown is the reverse, with a last checkpoint; ``DIRTY`` is removed only if all of that succeeded.
"""
