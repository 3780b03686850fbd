"""Measures of one journal. The loop changes those of the queue, the journal's lane those of the file."""

from __future__ import annotations

from bkctl.storage.measures import Measures, NowNs, Outcomes


class JournalMeasures(Measures):
    """Durations, sizes, and why groups were complete.

    All records of a group count with the waiting time of its oldest one: a clock reading for each group is enough.
    """

    def __init__(self, now_ns: NowNs) -> None:
        super().__init__(now_ns)
        self.commits = Outcomes()
        """From the queue to the answer, for each record."""
        self.queue = Outcomes()
        """From the queue to the beginning of the write, for each record."""
        self.group_records = Outcomes()
        """Records of a group."""
        self.group_bytes = Outcomes()
        """Bytes of its records."""
        self.groups_by_size_count = 0
        """Groups that reached the limit of their size."""
        self.groups_by_wait_count = 0
        """Groups that waited as long as the settings ask for."""
        self.groups_by_empty_queue_count = 0
        """Groups of all records that were queued when the former group was durable."""
        self.writes = Outcomes()
        """Writing a group to the page cache."""
        self.syncs = Outcomes()
        self.created_files = Outcomes()
        """Creating a file and making its name durable."""
        self.written_bytes = 0
        """Length of all groups in the files, padding included."""
