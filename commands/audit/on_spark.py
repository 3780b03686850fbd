"""``bkctl audit --spark``: the audit by executors, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec

from bkctl.commands.audit.facts import AuditQuestions, read_facts, with_request
from bkctl.commands.audit.file import open_cluster_file
from bkctl.commands.audit.inventory import InventoryPlan
from bkctl.commands.audit.ledger_progress import LedgerProgress
from bkctl.commands.audit.place import AuditPlace
from bkctl.commands.context import CommandContext
from bkctl.commands.event_loop import run_to_end, sigterm_as_error
from bkctl.commands.session import open_session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.config import PlacementConfig
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.copy.reader import RequestTimes
from bkctl.runtime.replication.survey.inventory import InventoryJob, bookies_without_lists
from bkctl.spark_reports.audit import audit_in_context
from bkctl.spark_reports.deployment import SparkDeployment
from bkctl.spark_reports.output import new_report

if TYPE_CHECKING:
    from pyspark import SparkContext

    AuditInput = tuple[ClusterFile | None, AuditFacts]


def audit_on_spark(
    context: CommandContext,
    place: AuditPlace,
    deployment: SparkDeployment,
    request: AuditQuestions,
    out: str | None,
    plan: InventoryPlan | None,
) -> AuditReport:
    """The audit of the ledgers in ZooKeeper, or in a file, which the executors read."""
    job = None if plan is None else run_to_end(_inventory_job, context, plan)
    with ExitStack() as at_end:
        known, ledgers_count = at_end.enter_context(_known_input(context, place, request))
        deployment = msgspec.structs.replace(deployment, ledgers=ledgers_count)
        from bkctl.spark_reports.session import spark_context  # noqa: PLC0415  needs PySpark

        # Outside of the event loop: the job blocks, and Spark needs the signals.
        with (
            sigterm_as_error(),
            context.console.progress("auditing") as progress,
            new_report(out),
            spark_context(
                deployment,
                on_starting=lambda: context.console.say(f"starting Spark {deployment.description}"),
                on_waiting=lambda: context.console.say(f"waiting for executors of {deployment.master_url}"),
            ) as spark,
        ):
            cluster, facts = known or at_end.enter_context(_hadoop_input(context, place, request, spark))
            return audit_in_context(
                spark,
                context.settings.metadata_uri,
                facts,
                cluster=cluster,
                zookeeper=context.settings.zookeeper,
                out_directory=out,
                on_parts=LedgerProgress(progress, ledgers_count).show_parts if progress.is_shown else None,
                outage_max_s=context.settings.replication.metadata_outage_max_s,
                ledgers=ledgers_count,
                inventory=job,
                extras=request.extras(context),
            )


async def _inventory_job(context: CommandContext, plan: InventoryPlan) -> InventoryJob:
    """What executors are asked for, if this machine may ask the bookies; AuthenticationRequiredError."""
    async with open_session(context) as session:
        ports = (await session.client()).ports
        await require_access(ports)
        request, probes = plan.for_cluster(session, session.instance_id), RequestTimes(ports.clock)
        if request.way is not InventoryWay.ALL_ENTRIES:
            live = (await session.registrations.snapshot()).live
            silent, probes = await bookies_without_lists(ports, live)
            request = msgspec.structs.replace(request, silent=silent)
    client = msgspec.structs.replace(context.settings.client, placement=PlacementConfig())  # writers alone need it
    return InventoryJob(request=request, client=client, probes=tuple(probes.rows()))


@contextmanager
def _known_input(
    context: CommandContext, place: AuditPlace, request: AuditQuestions
) -> Iterator[tuple[AuditInput | None, int | None]]:
    """What can be found out before Spark starts, and about how many ledgers there are."""
    if place.file is None:
        facts, ledgers_count = run_to_end(_facts_and_size, context, request)
        yield (None, facts), ledgers_count
    elif place.is_hadoop_file:
        yield None, None
    else:
        with open_cluster_file(context, place.file, place.ledgers_root) as (cluster, facts):
            yield (cluster, with_request(facts, request)), cluster.nodes


@contextmanager
def _hadoop_input(
    context: CommandContext, place: AuditPlace, request: AuditQuestions, spark: SparkContext
) -> Iterator[AuditInput]:
    """A file that only Spark reads, which all executors get."""
    assert place.file is not None
    with open_cluster_file(context, place.file, place.ledgers_root, spark) as (cluster, facts):
        yield cluster, with_request(facts, request)


async def _facts_and_size(context: CommandContext, request: AuditQuestions) -> tuple[AuditFacts, int]:
    """What is known about the bookies, and about how many ledgers there are; ClusterNotFoundError."""
    async with open_session(context, must_exist=False) as session:
        facts = with_request(await read_facts(context, session), request)
        return facts, await (await session.ledgers()).estimate_count()
