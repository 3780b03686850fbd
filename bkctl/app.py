"""The command tree. A group's module is imported when the group is used."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Annotated, Any, NamedTuple

import typer

from bkctl.commands.command import take_parameters
from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import Invocation
from bkctl.commands.help_page import HelpGroup, OptionsPage
from bkctl.commands.shared_options import GLOBAL_NAMES, GLOBAL_PARAMETERS


class _Member(NamedTuple):
    module: str
    summary: str
    """Text at the start of bkctl's help page, which then needs no module to be imported."""


_MEMBERS = {
    "status": _Member("bkctl.commands.status", "Show what is down, at risk or in repair, and what to do."),
    "bookie": _Member("bkctl.commands.bookie.app", "Run a bookie; list and check the cluster's bookies."),
    "cluster": _Member("bkctl.commands.cluster.app", "Create, inspect, back up, restore or delete cluster metadata."),
    "cookie": _Member("bkctl.commands.cookie.app", "Inspect and repair cookies; find why a bookie cannot start."),
    "storage": _Member("bkctl.commands.storage.app", "Inspect, check and repair the files of a local bookie."),
    "ledger": _Member("bkctl.commands.ledger.app", "List, read, verify, close, export, import and delete ledgers."),
    "metadata": _Member("bkctl.commands.metadata.app", "Examine the metadata of a whole cluster."),
    "autorecovery": _Member(
        "bkctl.commands.autorecovery.app", "Show and control autorecovery: queue, workers, auditor."
    ),
    "recover": _Member("bkctl.commands.recover", "Re-replicate failed bookies and bad copies of ledgers."),
    "decommission": _Member(
        "bkctl.commands.decommission", "Move the ledgers of live or dead bookies away, then delete their cookies."
    ),
    "audit": _Member("bkctl.commands.audit.app", "Count live copies, and list under-replicated ledgers."),
    "config": _Member("bkctl.commands.configuration", "Show and explain settings, with the source of each value."),
    "dev": _Member("bkctl.commands.dev.app", "Run servers on this machine: a cluster, or only ZooKeeper."),
}
_HELP = """Operations toolkit for Apache BookKeeper: run bookies, inspect ledgers, recover failed bookies."""
_TRY = "Example:\n  bkctl dev cluster up --bookies 3 --dir /tmp/bookies\n"


class LazyGroup(HelpGroup):
    """Top-level group whose members are imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  click's signature
        """Names in the order of the tree."""
        return list(_MEMBERS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """``bkctl help COMMAND`` is ``bkctl COMMAND --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  click's signature
        """The member of this name, or None."""
        if cmd_name not in self.commands:
            if cmd_name == "options":
                self.commands[cmd_name] = _options_page()
                return self.commands[cmd_name]
            if cmd_name not in _MEMBERS:
                return None
            app: typer.Typer = importlib.import_module(_MEMBERS[cmd_name].module).app
            member = typer.main.get_command(app)
            member.name = cmd_name
            self.commands[cmd_name] = member
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's signature
        """The list of members in the help page."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, member.summary) for name, member in _MEMBERS.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """An example, then where the options are explained."""
        formatter.write(f"\n{_TRY}")
        super().format_epilog(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the member with the name ``args[0]``; for a typo, the error suggests the nearest name."""
        if args and args[0] not in (*_MEMBERS, "options"):
            for name in _MEMBERS:  # suggestions come from loaded members only
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


@functools.cache
def build_app() -> Any:
    """The whole command line as one click command; its context object is an ``Invocation``.

    Commands keep nothing of a run, so one process may run many with the same object.
    """
    app = typer.Typer(
        cls=LazyGroup,
        name="bkctl",
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )

    def root(typer_context: typer.Context, **arguments: Any) -> None:
        invocation: Invocation = typer_context.obj
        invocation.set_root_flags(GlobalFlags(**{key: arguments[key] for key in GLOBAL_NAMES}))

    root.__doc__ = _HELP
    take_parameters(root, [*GLOBAL_PARAMETERS, _VERSION_PARAMETER])
    app.callback()(root)
    return typer.main.get_command(app)


def _options_page() -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)

    def show(typer_context: typer.Context, **_: Any) -> None:
        typer.echo(typer_context.get_help())

    take_parameters(show, list(GLOBAL_PARAMETERS))
    app.command("options", cls=OptionsPage)(show)
    return typer.main.get_command(app)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"bkctl {version('bkctl')}")
        raise typer.Exit


_VERSION_PARAMETER = inspect.Parameter(
    "version",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--version", help="Show the version", is_eager=True, callback=_show_version)
    ],
)
