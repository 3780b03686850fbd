"""How a bookie talks to the other bookies of its cluster: as a client, over its own session with the metadata store."""

from __future__ import annotations

from runtime.bookie.ports import BookiePorts
from runtime.client.ports import ClientPorts, SuspectBookies
from runtime.config import ClientConfig
from runtime.metadata.bookies.registration import RegistrationClient
from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.store import MetadataStore


def new_peers(ports: BookiePorts, store: MetadataStore, ledgers: LedgerStore, frame_bytes_max: int) -> ClientPorts:
    """Ports of a client; no bookie is connected to before the first request. The caller closes ``bookies``.

    ``frame_bytes_max``: limit of this bookie, which raises that of the client if it is higher.
    """
    config = ClientConfig(frame_bytes_max=max(ClientConfig().frame_bytes_max, frame_bytes_max))
    registrations = RegistrationClient(store, ledgers.root)

    async def resolve(bookie_id: str) -> tuple[str, int]:
        address = await registrations.address(bookie_id)
        return address.host, address.port

    return ClientPorts(
        bookies=ports.connect_bookies(resolve, config),
        clock=ports.clock,
        ledgers=ledgers,
        registrations=registrations,
        suspects=SuspectBookies(ports.clock, config.suspect_bookie_s),
        config=config,
    )
