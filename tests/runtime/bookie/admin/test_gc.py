"""Garbage collection over the admin interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bkctl.runtime.config import MajorCompactionConfig
from tests.runtime.bookie.admin.asking import Asker, local_asker
from tests.runtime.bookie.collected_bookie import NEVER_BY_ITSELF, CollectedBookie, collected_bookie
from tests.runtime.bookie.collection.test_long_work import let_it_copy
from tests.until import until

GC, SUSPEND, RESUME = "/api/v1/bookie/gc", "/api/v1/bookie/gc/suspend_compaction", "/api/v1/bookie/gc/resume_compaction"
SLOW = msgspec.structs.replace(
    NEVER_BY_ITSELF,
    major=MajorCompactionConfig(interval_s=3e6),
    copied_entries_per_s_max=1 / 3600,
    compaction_batch_bytes_max=1,  # every entry waits its turn
)
LEDGERS = range(1, 5)


async def details(admin: Asker) -> dict[str, Any]:
    (found,) = (await admin.get("/api/v1/bookie/gc_details")).json
    return dict(found)


async def until_it_says(admin: Asker, path: str, name: str, value: object) -> None:
    async def is_so() -> bool:
        found = (await admin.get(path)).json
        return bool((found[0] if isinstance(found, list) else found)[name] == value)

    await until(is_so, f"{name} is {value}")


async def half_empty(bookie: CollectedBookie) -> None:
    await bookie.write(LEDGERS)
    await bookie.delete_metadata([1, 2])


async def test_a_collection_runs_on_demand_without_waiting_for_its_end(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path, SLOW) as bookie:
        await half_empty(bookie)
        async with local_asker(bookie.server.view.config) as admin:
            assert (await admin.put(GC)).status == 200
            await until_it_says(admin, "/api/v1/bookie/gc_details", "majorCompacting", True)
            assert (await admin.get(GC)).json == {"is_in_force_gc": "true"}
            found = await details(admin)
            assert (found["forceCompacting"], found["minorCompacting"]) == (True, False)
            assert (await admin.put(GC)).status == 200, "one at a time"
            let_it_copy(bookie)
            await until_it_says(admin, GC, "is_in_force_gc", "false")
            after = await details(admin)
            assert (after["majorCompactionCounter"], after["majorCompacting"]) == (1, False)
            assert after["lastMajorCompactionTime"] > found["lastMajorCompactionTime"]


async def test_only_the_wanted_kinds_run(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await half_empty(bookie)
        async with local_asker(bookie.server.view.config) as admin:
            for body, counts in (
                ({"forceMajor": False, "forceMinor": False}, (0, 0)),
                ({"forceMajor": "false", "forceMinor": "true"}, (0, 1)),
                ({"forceMajor": True}, (1, 1)),
            ):
                rounds = bookie.collector.metrics.rounds_count
                assert (await admin.put(GC, body)).status == 200
                await until_it_says(admin, GC, "is_in_force_gc", "false")
                assert bookie.collector.metrics.rounds_count > rounds
                found = await details(admin)
                assert (found["majorCompactionCounter"], found["minorCompactionCounter"]) == counts


async def test_a_suspended_compaction_stops_and_resumes(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path, SLOW) as bookie:
        await half_empty(bookie)
        async with local_asker(bookie.server.view.config) as admin:
            await admin.put(GC)
            await until_it_says(admin, "/api/v1/bookie/gc_details", "majorCompacting", True)
            assert (await admin.put(SUSPEND, {"suspendMajor": True})).status == 200
            await until_it_says(admin, "/api/v1/bookie/gc_details", "majorCompacting", False)
            assert (await admin.get(SUSPEND)).json == {"isMinorGcSuspended": "false", "isMajorGcSuspended": "true"}
            assert (await admin.put(RESUME, {"resumeMajor": True, "resumeMinor": True})).status == 200
            assert (await admin.get(SUSPEND)).json == {"isMinorGcSuspended": "false", "isMajorGcSuspended": "false"}
            assert (await admin.put(SUSPEND, {"suspendMajor": "maybe"})).status == 400
