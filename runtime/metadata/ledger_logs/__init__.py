"""The nodes of logs of ledgers: format, paths, changes by compare-and-set."""
