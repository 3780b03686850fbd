"""Entry logs: where entries are kept, for all ledgers of a directory.

A finished log never changes. Its bytes are synced before a location in the index names them. ``lastId`` is durable
before a log exists, so an id that the index has seen is never used twice. After a failed write or sync the bytes since
the last good sync count as lost, and go to a new log. A read that finds something else than the entry is an I/O error,
never "no such entry". Formats: storage section 4.
"""
