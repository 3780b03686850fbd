"""All bookies of a cluster in one table: registrations, cookies, racks. The same from ZooKeeper and from a file."""

from __future__ import annotations

import msgspec

from bkctl.runtime.errors import BookieUnavailableError, MetadataFormatError, NoNodeError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.placement.rack_sources import decode_pulsar_bookies
from bkctl.runtime.placement.survey import BookieSurvey

RACKS_NAME = "/bookies"
"""Pulsar keeps the ledgers in ``/ledgers`` and racks in ``/bookies``, both in its ZooKeeper directory."""


class BookieRow(msgspec.Struct, frozen=True):
    """A bookie that is registered or has a cookie.

    ``mode``: ``writable``, ``read_only``, or ``unregistered``; None: registrations are unknown, as in a backup.
    ``rack`` None: no source names one. Free and total bytes are known only if the caller asked the bookies.
    ``problem``: why the cookie or the registration cannot be read.
    """

    bookie_id: str
    mode: str | None
    rack: str | None
    host: str | None = None
    port: int | None = None
    version: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    has_cookie: bool = False
    cookie_instance_id: str | None = None
    journal_directories: tuple[str, ...] = ()
    ledger_directories: tuple[str, ...] = ()
    index_directories: tuple[str, ...] = ()
    problem: str | None = None


def usual_racks_path(ledgers_root: str) -> str:
    """Where Pulsar keeps the racks of the bookies of this cluster."""
    return ledgers_root.rpartition("/")[0] + RACKS_NAME


async def read_bookies(
    store: MetadataStore, root: str, survey: BookieSurvey | None, *, has_registrations: bool = True
) -> list[BookieRow]:
    """Every bookie by id. ``survey``: racks and free space that are known; None: racks are those of Pulsar's node.

    ClusterNotFoundError, MetadataFormatError for Pulsar's node.
    """
    client, cookies = RegistrationClient(store, root), CookieStore(store, root)
    registrations = await client.snapshot()
    with_cookie = frozenset(await client.with_cookie())
    if survey is None:
        survey = await _pulsar_survey(store, root)
    found = []
    for bookie_id in sorted(registrations.live | with_cookie):
        row = BookieRow(
            bookie_id,
            _mode(bookie_id, registrations) if has_registrations else None,
            survey.rack_of(bookie_id),
            has_cookie=bookie_id in with_cookie,
        )
        if (space := survey.space.get(bookie_id)) is not None:
            row = msgspec.structs.replace(row, total_bytes=space.total_bytes, free_bytes=space.free_bytes)
        row = await _with_service_info(client, registrations, row)
        found.append(await _with_cookie(cookies, row))
    return found


def _mode(bookie_id: str, registrations: Registrations) -> str:
    if bookie_id in registrations.writable:
        return "writable"
    return "read_only" if bookie_id in registrations.live else "unregistered"


async def _pulsar_survey(store: MetadataStore, root: str) -> BookieSurvey:
    try:
        node = await store.get(usual_racks_path(root))
    except NoNodeError:
        return BookieSurvey(writable=frozenset())
    return BookieSurvey(writable=frozenset(), tables=(decode_pulsar_bookies(node.data).racks,))


async def _with_service_info(client: RegistrationClient, registrations: Registrations, row: BookieRow) -> BookieRow:
    if row.bookie_id not in registrations.live:
        return row
    try:
        info = await client.service_info(row.bookie_id)
    except BookieUnavailableError as error:
        return msgspec.structs.replace(row, problem=str(error))
    if (address := info.rpc_address) is None:
        return msgspec.structs.replace(row, version=info.version)
    return msgspec.structs.replace(row, version=info.version, host=address.host, port=address.port)


async def _with_cookie(cookies: CookieStore, row: BookieRow) -> BookieRow:
    if not row.has_cookie:
        return row
    try:
        stored = await cookies.find(row.bookie_id)
    except MetadataFormatError as error:
        return msgspec.structs.replace(row, problem=str(error))
    if stored is None:
        return msgspec.structs.replace(row, has_cookie=False)
    cookie = stored.value
    return msgspec.structs.replace(
        row,
        cookie_instance_id=cookie.instance_id,
        journal_directories=cookie.journal_directories,
        ledger_directories=cookie.ledger_directories,
        index_directories=cookie.effective_index_directories,
    )
