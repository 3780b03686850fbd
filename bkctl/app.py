"""The command tree. A group's module is imported when the group is used, or shown in a help page."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from commands.command import GLOBAL_NAMES, GLOBAL_PARAMETERS, take_parameters
from commands.config import GlobalFlags
from commands.context import Invocation

_MODULES = {
    "bookie": "commands.bookie.app",
    "cluster": "commands.cluster",
    "ledger": "commands.ledger.app",
    "recover": "commands.recover",
    "decommission": "commands.decommission",
    "audit": "commands.audit",
    "dev": "commands.dev.app",
}
_HELP = """Operations toolkit for Apache BookKeeper: run bookies, look into ledgers, recover and decommission bookies.

Try it: bkctl dev cluster up --bookies 3 --dir /tmp/bookies
"""


class LazyGroup(TyperGroup):
    """Top-level group whose members are imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  click's signature
        """Names in the order of the tree."""
        return list(_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  click's signature
        """The member of this name, or None."""
        if cmd_name not in self.commands:
            if cmd_name not in _MODULES:
                return None
            app: typer.Typer = importlib.import_module(_MODULES[cmd_name]).app
            app.rich_markup_mode = markup_mode()
            member = typer.main.get_command(app)
            member.name = cmd_name
            self.commands[cmd_name] = member
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the member that ``args`` names; a typo is answered with the nearest name."""
        if args and args[0] not in _MODULES:
            for name in _MODULES:  # the suggestion looks at loaded members alone
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def markup_mode() -> Any:
    """Rich help pages for a terminal; plain and twice as fast for pipes and files."""
    return "rich" if sys.stdout.isatty() else None


def build_app() -> Any:
    """The whole command line as one click command; its context object is an ``Invocation``."""
    app = typer.Typer(
        cls=LazyGroup,
        name="bkctl",
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode=markup_mode(),
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
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ],
)
