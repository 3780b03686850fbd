"""The ZooKeeper adapter. Only ``store``, ``threads`` and ``errors`` import kazoo (decision 7).

Nothing hangs: every operation ends within its timeout, reconnection included. "Absent" never means "no connection". A
write in doubt happens at most once, and no request of one session is sent in the next.
"""
