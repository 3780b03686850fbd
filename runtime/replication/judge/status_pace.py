"""How fast a watched cluster is repaired. Pure."""

from __future__ import annotations

from bkctl.runtime.replication.judge.cluster_status import ClusterFacts, total_marks


def first_counted(before: ClusterFacts | None, now: ClusterFacts) -> ClusterFacts:
    """The status from which a watch measures its pace: the first that counted all marks, else the present one."""
    return now if before is None or total_marks(before.marks) is None else before


def seconds_left(before: ClusterFacts, now: ClusterFacts) -> float | None:
    """Time until no ledger is marked, at the pace between both; None if it is unknown, or no mark was cleared."""
    counts = [total_marks(before.marks), total_marks(now.marks)]
    seconds = (now.now_ms - before.now_ms) / 1000
    if counts[0] is None or counts[1] is None or seconds <= 0 or counts[1] >= counts[0]:
        return None
    return counts[1] * seconds / (counts[0] - counts[1])
