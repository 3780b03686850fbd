"""Measures of a session with the metadata store: how long its operations took, and how often it connected."""

from __future__ import annotations

from typing import Final

from bkctl.storage.measures import Measures, Outcomes


class MetadataMeasures(Measures):
    """Durations include the wait for a lost connection. An error of the store, like an absent node, is a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.connections_count = 0
        """How often a connection to a server was established."""
        self.is_connected = False
        """Whether a server is connected now; a session outlives a lost connection until a server ends it."""
        self.opened: Final = Outcomes()
        """Opening the session."""
        self.creates: Final = Outcomes()
        self.transactions: Final = Outcomes()
        self.deletes: Final = Outcomes()
        self.exists: Final = Outcomes()
        self.gets: Final = Outcomes()
        self.lists: Final = Outcomes()
        """Listing the children of a node."""
        self.sets: Final = Outcomes()
        self.syncs: Final = Outcomes()
