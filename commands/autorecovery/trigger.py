"""``bkctl autorecovery trigger``: have the auditor look for lost bookies now."""

from __future__ import annotations

from bkctl.commands.autorecovery.access import change_setting
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.session import open_session
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.audit_request import AuditRequest
from bkctl.runtime.metadata.replication.election import read_auditor


@command("trigger", example="autorecovery trigger", effect=Effect.REVERSIBLE)
async def trigger(context: CommandContext) -> None:
    """Let the auditor look for lost bookies now and mark their ledgers, regardless of the recovery delay.

    Refused while autorecovery is disabled or no auditor is elected. The auditor sends no answer: see bkctl autorecovery
    pending for the result.
    """
    async with open_session(context) as session:
        if not await session.switches.is_enabled():
            raise RefusedError("autorecovery is disabled, so no audit would run: use bkctl autorecovery enable")
        auditor = await read_auditor(session.store, session.root, session.foreign)
        if auditor is None:
            raise RefusedError("no auditor is elected: start an autorecovery daemon")
        delay = await session.switches.recovery_delay()
        path = Paths(session.root).lost_bookie_recovery_delay
        request = AuditRequest(session.store, session.root)
        if delay is None and not await request.is_understood():
            raise RefusedError(f"{path} is missing: restart the auditor, which then starts an audit")

        async def ask() -> bool:
            if delay is None:
                await request.send()
            elif await session.switches.rewrite_recovery_delay() is None:
                raise ConflictError(f"{path} was deleted during this command: restart the auditor")
            return True

        item: dict[str, object] = {"action": "set", "path": request.path}
        if delay is not None:
            item = {"action": "set", "path": path, "expected_version": delay.version, "value": delay.seconds}
        await change_setting(context, session, (item,), ask)
    if auditor.is_pulsar:
        context.console.warn(
            f"auditor {auditor.bookie_id} was elected by Pulsar's metadata driver, which ignores the trigger before "
            "Pulsar 2.11.3: restart it"
        )
    context.console.say("the recovery delay has not changed; marked ledgers: bkctl autorecovery pending")
    body: dict[str, object] = {
        "triggered": True,
        "auditor": auditor.bookie_id,
        "delay_s": None if delay is None else delay.seconds,
    }
    context.console.record("AuditTrigger", body, name="auditor")
