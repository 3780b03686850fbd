"""The command line: the groups and commands of ``bkctl.command_tree`` for click."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any

import typer

from bkctl.command_tree import COMMANDS, GROUPS, members, paths_ending_in, summary
from bkctl.commands.command import Command, take_parameters
from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import Invocation
from bkctl.commands.help_page import HelpGroup, OptionsPage
from bkctl.commands.shared_options import GLOBAL_NAMES, GLOBAL_PARAMETERS
from bkctl.manual import NO_PAGER, page_list, page_text, show_page, width_on_terminal

_HELP = """Operations toolkit for Apache BookKeeper: bookies, ledgers, recovery."""
_TRY = "Example:\n  bkctl dev cluster up --bookies 3 --dir /tmp/bookies\n"


_SAME_MEANING = {"stop": "end"}
"""Words that are tried for a command, and its name."""


class _Members(Mapping[str, Any]):
    """The members of a group by name. Each is made when it is needed: then the module of a command is imported."""

    def __init__(self, path: str) -> None:
        self._paths = {name: f"{path} {name}".lstrip() for name in members(path)}

    def __getitem__(self, name: str) -> Any:
        return _made(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class TreeGroup(HelpGroup):
    """A group of the command tree; its name is its path there, "" that of the whole tree."""

    def __init__(self, *, name: str, **attributes: Any) -> None:
        attributes |= {"commands": _Members(name), "no_args_is_help": True, "rich_markup_mode": None}
        super().__init__(name=name, **attributes)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  click's signature
        """Names in the order of the tree."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As click does; a word that is a command of another group gets a hint."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and (meant := self._meant(args[0])):
            commands = " or ".join(f"bkctl {path}" for path in meant)
            ctx.fail(f"No such command {args[0]!r}: did you mean {commands}?")
        return super().resolve_command(ctx, args)

    def _meant(self, word: str) -> list[str]:
        """Paths that the word may stand for. A command that changes something is a guess only if no group was given:
        ``bookie stop`` is not what ``ledger stop`` means."""
        if (same := _SAME_MEANING.get(word)) in self.commands:
            return [f"{self.name} {same}"]
        return [path for path in paths_ending_in(word) if not self.name or path in GROUPS or not _is_change(path)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's signature
        """The list of members in the help page."""
        with formatter.section("Commands"):
            formatter.write_dl([(each, summary(f"{self.name} {each}".lstrip())) for each in self.commands])


class _Root(TreeGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """``bkctl help COMMAND`` is ``bkctl COMMAND --help``; ``bkctl help PAGE`` shows a page in a pager."""
        if args[:1] == ["__complete"]:
            from bkctl.completion import completions

            for each in completions(self, ctx.obj, args[1:]):
                typer.echo(each)
            ctx.exit()
        if args[:1] == ["help"]:
            words = [each for each in args[1:] if each != NO_PAGER]
            is_page = not words or not (words[0].startswith("-") or words[0] in {*self.commands, "options"})
            if is_page:
                width = width_on_terminal()
                page = page_text(words[0], width) if words else f"{self.get_help(ctx)}\n\n{page_list()}"
                show_page(page, os.environ, is_paged=NO_PAGER not in args, is_colored=ctx.color)
                ctx.exit()
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The member of this name, or None. ``options`` is a page, and not in the list."""
        return _options_page() if cmd_name == "options" else super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  click's signature
        """An example, then where the options and the pages are."""
        formatter.write(f"\n{_TRY}\nRun bkctl COMMAND --help; shared options: bkctl options; pages: bkctl help.\n")


class _GroupWithDefault(TreeGroup):
    default: str

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The commands, then the options of the default one."""
        super().format_options(ctx, formatter)
        command: Any = self.commands[self.default]
        command.format_parameters(ctx, formatter)


class _AuditGroup(_GroupWithDefault):
    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """``bkctl audit [OPTIONS]`` is short for ``bkctl audit run [OPTIONS]``."""
        if not args or (args[0].startswith("-") and args[0] not in {"-h", "--help"}):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


class _RecoverGroup(_GroupWithDefault):
    default = "failed-bookie"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """``bkctl recover ID`` is short for ``bkctl recover failed-bookie ID``; a subcommand's name is never an id."""
        if args and not self._is_complete(args):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _is_complete(self, args: list[str]) -> bool:
        if not args[0].startswith("-"):
            return args[0] in self.commands
        return args[0] in {"-h", "--help"} or not self.commands.keys().isdisjoint(args)


_GROUP_CLASSES: Mapping[str, type[TreeGroup]] = {"audit": _AuditGroup, "recover": _RecoverGroup}


@functools.cache
def _made(path: str) -> Any:
    if path in GROUPS:
        return _GROUP_CLASSES.get(path, TreeGroup)(name=path, help=GROUPS[path])
    return _command(path).made()


def _is_change(path: str) -> bool:
    return any(each.is_change for each in _command(path).run.effects)  # type: ignore[attr-defined]


def _command(path: str) -> Command:
    module, name = importlib.import_module(f"bkctl.commands.{COMMANDS[path].module}"), path.rpartition(" ")[2]
    return next(each for each in vars(module).values() if isinstance(each, Command) and each.name == name)


@functools.cache
def options_taken(words: str) -> Collection[str]:
    """Which of the global options the command takes that these words begin with; none if they begin with no command."""
    parts = words.split()
    for end in range(len(parts), 0, -1):
        path = " ".join(parts[:end])
        kind = _GROUP_CLASSES.get(path)
        if kind is not None and issubclass(kind, _GroupWithDefault):
            path = f"{path} {kind.default}"
        if path in COMMANDS:
            taken: Collection[str] = _command(path).run.taken  # type: ignore[attr-defined]
            return taken
    return ()


@functools.cache
def build_app() -> Any:
    """The whole command line as one click command; its context object is an ``Invocation``.

    Commands keep nothing of a run, so one process may run many with the same object.
    """

    def root(typer_context: typer.Context, **arguments: Any) -> None:
        invocation: Invocation = typer_context.obj
        invocation.set_root_flags(GlobalFlags(**{key: arguments[key] for key in GLOBAL_NAMES}))

    root.__doc__ = _HELP
    take_parameters(root, [*GLOBAL_PARAMETERS, _VERSION_PARAMETER])
    app = typer.Typer(cls=_Root, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})(root)
    return typer.main.get_command(app)


@functools.cache
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
