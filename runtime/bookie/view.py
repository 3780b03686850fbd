"""What the admin interface and the metrics see of a bookie, from the beginning of its boot to the end of its stop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from bkctl.runtime.admin.jobs import Jobs
from bkctl.runtime.bookie.collection.collector import GarbageCollector
from bkctl.runtime.bookie.disks.mode_files import ModeFiles
from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.disks.monitor import DiskMonitor
from bkctl.runtime.bookie.integrity.refill import IntegrityProgress
from bkctl.runtime.bookie.integrity.repair import IntegrityService
from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.bookie.online_rebuild import OnlineRebuild
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.bookie.serving.request_path import RequestPath
from bkctl.runtime.bookie.troubles import Trouble, TroubleState
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.metadata.bookies.registration import BookieRegistration
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.net.listener import BookieListener
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.measures import Outcomes


@dataclasses.dataclass(kw_only=True)
class BookieView:
    """One bookie. A part is None until the boot has created it."""

    config: BookieConfig
    ports: BookiePorts
    modes: BookieModes
    live: LiveSettings
    started_ms: int
    jobs: Jobs
    integrity_progress: IntegrityProgress
    """Progress of restoring lost entries, if any were lost."""
    loop_delay: Outcomes = dataclasses.field(default_factory=Outcomes)
    """How late timers of the event loop fire."""
    bookie_id: str = ""
    """Empty until the port is bound."""
    instance_id: str | None = None
    """The cluster that it belongs to; None until the cookies are checked, and in a cluster without one."""
    port: int = 0
    """Port it listens on, once bound."""
    http_port: int | None = None
    """TCP port of the admin interface."""
    scrape_port: int | None = None
    """TCP port of scrapes, if the admin interface has none."""
    stage: str = ""
    """The stage of the boot that has begun last."""
    replay_step_count: int = 0
    """Grows while the journals are replayed."""
    listener: BookieListener | None = None
    store: MetadataStore | None = None
    storage: LedgerStorage | None = None
    disks: DiskMonitor | None = None
    mode_files: ModeFiles | None = None
    path: RequestPath | None = None
    registration: BookieRegistration | None = None
    collector: GarbageCollector | None = None
    peers: ClientPorts | None = None
    """The other bookies and the ledgers of the cluster."""
    repair: IntegrityService | None = None
    online_rebuild: OnlineRebuild | None = None
    request_stop: Callable[[], None] | None = None
    """Stops the process cleanly; None until it serves."""
    is_running: bool = False
    """Whether it serves requests and is registered."""
    is_stopping: bool = False
    stop_waits_for: str = ""
    """What the stop has been waiting for, if that takes long."""
    troubles: dict[Trouble, TroubleState] = dataclasses.field(default_factory=dict)
    """What is wrong now, although the bookie goes on."""

    @property
    def trouble_text(self) -> str:
        """All of it on one line; empty if nothing is wrong."""
        return "; ".join(trouble.text for trouble in self.troubles.values())
