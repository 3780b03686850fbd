"""One run of ``bkctl audit``: counts, then writes and prints the report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from bkctl.commands.audit.earlier import read_earlier
from bkctl.commands.audit.facts import AuditQuestions, parse_losses, read_facts, with_request
from bkctl.commands.audit.file import LedgerProgress, audit_file, open_cluster_file
from bkctl.commands.audit.inventory import InventoryPlan, inventory_plan, write_bad_copies
from bkctl.commands.audit.inventory_options import InventoryFlags
from bkctl.commands.audit.outcome import outcome
from bkctl.commands.audit.tables import PrintedAudit, print_report, require_order
from bkctl.commands.check_progress import check_progress
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.event_loop import run_to_end, sigterm_as_error
from bkctl.commands.outages import report_outage
from bkctl.commands.session import open_session, require_metadata_uri
from bkctl.runtime.client.access import require_access
from bkctl.runtime.config import PlacementConfig
from bkctl.runtime.metadata.snapshot.cluster import ClusterFile
from bkctl.runtime.metadata.zookeeper.embedded import find_java
from bkctl.runtime.optional_packages import has_package, require_package
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.copy.reader import RequestTimes
from bkctl.runtime.replication.survey.inventory import CopyInventory, InventoryJob, bookies_without_lists
from bkctl.spark_reports.audit import audit_in_context, audit_plainly
from bkctl.spark_reports.deployment import SparkDeployment, choose_deployment
from bkctl.spark_reports.output import new_report
from bkctl.spark_reports.series import with_run

if TYPE_CHECKING:
    from pyspark import SparkContext

    AuditInput = tuple[ClusterFile | None, AuditFacts]


class AuditFlags(NamedTuple):
    """Values of the options. ``file`` None: ledgers in ZooKeeper. ``spark``: master and cores; None: without Spark."""

    out: str | None
    spark: tuple[str | None, int | None] | None
    file: str | None
    ledgers_root: str | None
    what_if: tuple[str, ...]
    compare: str | None
    inventory: InventoryFlags

    @property
    def is_hadoop_file(self) -> bool:
        """Whether only Spark reads the file, such as hdfs://namenode/snapshot.1."""
        return self.file is not None and "://" in self.file


def execute(context: CommandContext, given: AuditFlags, kinds: Sequence[str]) -> Outcome:
    """Audit, write the files, print; the outcome by the kinds of ``--fail-on``."""
    out = given.out
    require_order(context.settings)
    request = AuditQuestions(parse_losses(given.what_if), read_earlier(given.compare, out=out))
    plan = inventory_plan(given.inventory, context.settings)
    deployment = _deployment(given)
    if given.file is None:
        require_metadata_uri(context)
    started_s = time.monotonic()
    if deployment is not None:
        report = audit_on_spark(context, given, deployment, request, plan)
    elif given.file is not None:
        with open_cluster_file(context, given.file, given.ledgers_root) as (cluster, facts):
            report = run_to_end(audit_file, context, cluster, facts, request, out)
    else:
        report = run_to_end(_audit_plainly, context, request, out, plan)
    write_bad_copies(report)
    before, runs = request.earlier.before, with_run(request.earlier.runs, report, out)
    _warn_of_no_parquet(context, out)
    seconds = round(time.monotonic() - started_s, 3)
    is_kept = out is not None
    try:
        print_report(context, PrintedAudit(report, out, seconds, before, bool(request.losses), runs))
        found = outcome(context, report, kinds)
        is_kept = True
    finally:  # last: an error here must not cost the result. The reader of the output may have gone before its end
        if plan is not None and is_kept:
            plan.remember(report)
    return found


def _warn_of_no_parquet(context: CommandContext, out: str | None) -> None:
    if out is not None and not has_package("pyarrow"):
        context.console.warn(
            "only HTML and JSON were written, because Parquet needs PyArrow: pip install 'bkctl[spark]'"
        )


async def _audit_plainly(
    context: CommandContext, request: AuditQuestions, out: str | None, plan: InventoryPlan | None
) -> AuditReport:
    on_outage = partial(report_outage, context.console)
    async with open_session(context, must_exist=False, on_outage=on_outage) as session:
        ledgers = await session.ledgers()
        facts = with_request(await read_facts(context, session), request)
        audit = partial(
            audit_plainly,
            [ledgers.read_all()],
            facts,
            out_directory=out,
            extras=request.extras(context),
        )
        inventory: CopyInventory | None = None
        if plan is not None:
            ports = (await session.client()).ports
            await require_access(ports)
            wanted = plan.for_cluster(session, facts.instance_id)
            inventory = CopyInventory(ports, facts.registrations.live, wanted, facts.given_up)
            audit = partial(audit, inventory=(wanted.way, inventory))
            if wanted.way is not InventoryWay.LISTED and wanted.turn is None:  # otherwise not all is read
                parts = ports, inventory.checker, (), inventory.scope, wanted.pace.bytes_per_s
                async with check_progress(context.console, "auditing", *parts) as view:
                    inventory.on_examined = view.note_examined
                    return await audit()
        with context.console.progress("auditing") as progress:
            shown = LedgerProgress(progress, await ledgers.estimate_count() if progress.is_shown else None)
            if inventory is None:
                return await audit(on_progress=shown.show)
            inventory.on_examined = shown.note_examined
            return await audit()


def _deployment(given: AuditFlags) -> SparkDeployment | None:
    """None: this process, without Spark. InvalidArgumentError, ConfigurationError."""
    if given.spark is None:
        if given.is_hadoop_file:
            raise InvalidArgumentError(f"{given.file} needs --spark: only Spark reads files of other file systems")
        return None
    require_package("pyspark", "audit --spark needs PySpark")
    require_package("pyarrow", "audit --spark needs PyArrow")
    find_java("Spark")  # without Java, Spark fails after seconds with a long error
    return choose_deployment(*given.spark, os.environ)


def audit_on_spark(
    context: CommandContext,
    given: AuditFlags,
    deployment: SparkDeployment,
    request: AuditQuestions,
    plan: InventoryPlan | None,
) -> AuditReport:
    """The audit of the ledgers in ZooKeeper, or in a file, which the executors read."""
    job = None if plan is None else run_to_end(_inventory_job, context, plan)
    known: AuditInput | None = None
    ledgers_count = None
    with ExitStack() as at_end:
        if given.file is None:
            facts, ledgers_count = run_to_end(_facts_and_size, context, request)
            known = None, facts
        elif not given.is_hadoop_file:
            file, facts = at_end.enter_context(_file_input(context, given.file, given.ledgers_root, request))
            known, ledgers_count = (file, facts), file.nodes
        deployment = msgspec.structs.replace(deployment, ledgers=ledgers_count)
        from bkctl.spark_reports.session import spark_context  # noqa: PLC0415  needs PySpark

        # Outside of the event loop: the job blocks, and Spark needs the signals.
        with (
            sigterm_as_error(),
            context.console.progress("auditing") as progress,
            new_report(given.out),
            spark_context(
                deployment,
                on_starting=lambda: context.console.say(f"starting Spark {deployment.description}"),
                on_waiting=lambda: context.console.say(f"waiting for executors of {deployment.master_url}"),
            ) as spark,
        ):
            if known is None:
                assert given.file is not None
                known = at_end.enter_context(_file_input(context, given.file, given.ledgers_root, request, spark))
            cluster, facts = known
            return audit_in_context(
                spark,
                context.settings.metadata_uri,
                facts,
                cluster=cluster,
                zookeeper=context.settings.zookeeper,
                out_directory=given.out,
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
def _file_input(
    context: CommandContext,
    path: str,
    ledgers_root: str | None,
    request: AuditQuestions,
    spark: SparkContext | None = None,
) -> Iterator[tuple[ClusterFile, AuditFacts]]:
    """``spark``: for a file that only Spark reads, which all executors get."""
    with open_cluster_file(context, path, ledgers_root, spark) as (cluster, facts):
        yield cluster, with_request(facts, request)


async def _facts_and_size(context: CommandContext, request: AuditQuestions) -> tuple[AuditFacts, int]:
    """What is known about the bookies, and about how many ledgers there are; ClusterNotFoundError."""
    async with open_session(context, must_exist=False) as session:
        facts = with_request(await read_facts(context, session), request)
        return facts, await (await session.ledgers()).estimate_count()
