"""A lost index, made again from entry logs and journals, offline or in a running bookie.

Locations: every entry of every log whose ledger has a row. Of several copies the last one in the newest log counts; the
newest log is the one before the longest run of unused ids, because ids wrap. Ledger rows are kept if their database is
sound. Otherwise every ledger in a log or journal gets a fenced row, with the last key that is neither empty nor zero.

If map and scan of a log give different sums, its ledgers are fenced too; all of the directory, if the map cannot be
read, bytes between entries are neither an entry nor filler, a frame extends past the end and cannot be an entry, there
is no header, or the disk fails. A cut between two entries, and a flipped entry id, are not found: so a sound index is
never rebuilt. In a running bookie all adds are refused until the exchange, also recovery adds, and collection pauses.

A child needs up to 400 MB of memory, the index disk 24 bytes per copy of an entry during the run and 24 to 40 per row.
"""
