"""A copy process: repairs the ledgers that its parent sends.

Started as ``python -P -m runtime.replication.run.copy_process``. It ends when its parent does. The repairs in progress
are then cancelled, and give their locks back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Iterable

import uvloop

from runtime.client import LedgerClient
from runtime.metadata.replication.lock import ReplicationLocks
from runtime.metadata.request_budget import share_of_budget
from runtime.metadata.uri import parse_metadata_uri
from runtime.net.message_pipe import MessagePipe, parent_pipe
from runtime.replication.turn.engine import RepairWorker
from runtime.replication.turn.messages import (
    CopyPace,
    CopySetup,
    LedgerFinished,
    LedgerWork,
    OutageNoted,
    ProcessFailed,
    RangeVerified,
    ToProcess,
)
from storage.errors import BkctlError

MOMENT_INTERVAL_S = 0.2
"""Time between two reports of progress."""


async def serve() -> None:
    """Repair ledgers until the parent closes the pipe."""
    pipe: MessagePipe[ToProcess] = await parent_pipe(ToProcess)
    setup = await pipe.receive()
    if not isinstance(setup, CopySetup):
        return
    with contextlib.suppress(asyncio.CancelledError):
        try:
            async with await _connect(setup) as client:
                await _serve(pipe, setup, client)
        except BkctlError as error:
            pipe.send(ProcessFailed(type(error).__name__, str(error), getattr(error, "path", None)))
    await pipe.flush()


async def _connect(setup: CopySetup) -> LedgerClient:
    process = setup.process
    budget = share_of_budget(process.zookeeper, process.count)
    return await LedgerClient.connect(
        process.metadata_uri, config=process.client, zookeeper=process.zookeeper, budget=budget
    )


async def _serve(pipe: MessagePipe[ToProcess], setup: CopySetup, client: LedgerClient) -> None:
    root = parse_metadata_uri(setup.process.metadata_uri).root
    locks = ReplicationLocks(client.store, root, setup.process.lock_holder)
    worker = RepairWorker(
        client.ports,
        client.ports.registrations,
        locks,
        setup.repair,
        on_range=lambda found: pipe.send(RangeVerified(found)),
        on_outage=lambda outage: pipe.send(OutageNoted(outage)),
    )
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def repair(work: LedgerWork) -> None:
        try:
            pipe.send(LedgerFinished(await worker.repair(work)))
        except BkctlError as error:
            if not failed.done():
                failed.set_exception(error)

    async def report() -> None:
        while True:
            await client.ports.clock.sleep(MOMENT_INTERVAL_S)
            pipe.send(worker.moment())

    async def take_orders() -> None:
        async with asyncio.TaskGroup() as group:
            while (message := await pipe.receive()) is not None:
                if isinstance(message, LedgerWork):
                    group.create_task(repair(message))
                elif isinstance(message, CopyPace):
                    worker.set_pace(message)
            raise asyncio.CancelledError  # the parent wants no results any more

    tasks = [asyncio.create_task(take_orders()), asyncio.create_task(report())]
    try:
        done, _ = await asyncio.wait([*tasks, failed], return_when=asyncio.FIRST_COMPLETED)
        _raise_from(done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pipe.send(worker.moment())


def _raise_from(ended: Iterable[asyncio.Future[None]]) -> None:
    """The error of what has ended, if there is one."""
    for each in ended:
        if not each.cancelled():
            each.result()


def main() -> None:
    """Run the process."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    gc.set_threshold(20_000, 20, 100)  # as commands do: see commands/session.py
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
