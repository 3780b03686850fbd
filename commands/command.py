"""How a function becomes a command: global options before and after its name, a context, running of coroutines.

A command function takes a ``CommandContext`` first, then its own Typer parameters, and returns an ``Outcome`` or None.
``@command(...)`` makes a ``Command`` of it, and ``bkctl.command_tree`` says where it is in the tree.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias, cast, get_args

import typer

from bkctl.commands.config import GlobalFlags, OutputForm, Settings
from bkctl.commands.context import Effect, Invocation
from bkctl.commands.errors import Outcome, PlanShown
from bkctl.commands.help_page import HelpCommand
from bkctl.commands.shared_options import GLOBAL_NAMES, GLOBAL_PARAMETERS, declarations
from bkctl.runtime.errors import RefusedError

_Work: TypeAlias = Callable[..., Coroutine[Any, Any, Outcome | None]]
CommandFunction: TypeAlias = Callable[..., Outcome | None] | _Work

_ALWAYS = frozenset({"output", "no_headers", "quiet", "debug", "color", "no_progress", "config"})
_OF_CLUSTER = frozenset({"metadata_uri", "cluster", "conf"})
_OF_SESSION = frozenset({"timeout", "metadata_rate"})


class Command(NamedTuple):
    """A command before it is in the command tree; ``run`` has the signature from which Typer reads its options."""

    name: str
    run: Callable[..., Outcome | None]
    example: str

    def made(self) -> Any:
        """The command for click."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command(self.name, cls=HelpCommand, epilog=f"bkctl {self.example}")(self.run)
        return typer.main.get_command(app)


def take_parameters(run: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    """Give ``run`` the signature that Typer reads: its context, then these parameters."""
    first = inspect.Parameter("typer_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    signature = inspect.Signature([first, *keyword_only])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}


def command(
    name: str,
    *,
    example: str,
    effect: Effect = Effect.LOOKS,
    milder_effect: Effect | None = None,
    is_listing: bool = False,
    is_cut: bool = False,
    is_local: bool = False,
    looks_with: str | None = None,
    is_configured_by_files: bool = False,
    is_metadata_rate_taken: bool = True,
    has_tables: bool = True,
) -> Callable[[CommandFunction], Command]:
    """Make a function the command ``name``; its docstring is the help text.

    A global option that the command does not support is a usage error. Every command takes those for its output. A
    listing also takes ``--sort`` and ``--limit``; a command with ``is_cut`` takes ``--limit``. ``effect`` decides which
    options for changes it takes, and whether read-only mode refuses it; ``milder_effect`` is a second effect that some
    of its plans have. With the flag ``looks_with`` it changes nothing, whatever its effect. A local command needs no
    cluster; if no file configures it either, it takes no option that specifies one. Without ``has_tables`` it takes no
    ``-o wide``.
    """
    effects = (effect,) if milder_effect is None else (effect, milder_effect)
    is_outside_cluster = is_local and not is_configured_by_files
    taken = _ALWAYS.union(*(each.options for each in effects))
    taken |= {"sort", "limit"} if is_listing else {"limit"} if is_cut else set()
    taken |= set() if is_outside_cluster else _OF_CLUSTER
    taken |= set() if is_local else _OF_SESSION
    taken -= set() if is_metadata_rate_taken else {"metadata_rate"}
    shown = taken - ({"metadata_uri", "cluster"} if is_local else set())

    def declare(function: CommandFunction) -> Command:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        assert GLOBAL_NAMES.isdisjoint(parameter.name for parameter in own), f"{name}: an option is a global one"

        def run(typer_context: typer.Context, **arguments: Any) -> Outcome | None:
            invocation: Invocation = typer_context.obj
            given = GlobalFlags(**{key: arguments.pop(key, None) for key in GLOBAL_NAMES})
            flags = given.over(invocation.root_flags)
            _require_taken(typer_context, flags, taken, has_tables=has_tables)
            run_function = _runner_of(function)
            context = invocation.enter(typer_context.command_path, flags)
            context.command, context.effects = typer_context.command_path.removeprefix("bkctl "), effects
            is_looking = looks_with is not None and bool(arguments[looks_with])
            if effect.is_change and not is_looking and not context.settings.is_rehearsal:
                require_not_read_only(context.settings, is_outside_cluster=is_outside_cluster)
            try:
                return run_function(context, **arguments)
            except PlanShown as shown:
                return shown.outcome

        run.__doc__ = function.__doc__
        vars(run).update(effects=effects, taken=taken)
        own_options = {declaration for parameter in own for declaration in declarations(parameter)}
        left = [each for each in GLOBAL_PARAMETERS if own_options.isdisjoint(declarations(each))]
        take_parameters(run, [*own, *(_hidden_unless(parameter, shown) for parameter in left)])
        return Command(name, run, example)

    return declare


def _runner_of(function: CommandFunction) -> Callable[..., Outcome | None]:
    """The function, or what runs its coroutine to the end, imported before SIGINT may raise an exception."""
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        return cast("Callable[..., Outcome | None]", function)
    from bkctl.commands.event_loop import run_to_end

    return partial(run_to_end, cast("_Work", function))


def require_not_read_only(settings: Settings, *, is_outside_cluster: bool = False) -> None:
    """RefusedError while the environment or the context forbids changes.

    A context applies only to its cluster: a command that needs no cluster ignores it.
    """
    reasons = ["BKCTL_READ_ONLY is set"] if settings.is_read_only_by_environment else []
    reasons += [f"context {settings.context_name} is read-only"] if settings.is_context_read_only else []
    if is_outside_cluster and not settings.is_read_only_by_environment:
        return
    if reasons:
        raise RefusedError(f"nothing was changed: bkctl is in read-only mode: {' and '.join(reasons)}")


def _require_taken(
    typer_context: typer.Context, flags: GlobalFlags, taken: Collection[str], *, has_tables: bool
) -> None:
    """A usage error for an option, before or after the command's name, that would have no effect."""
    for parameter in GLOBAL_PARAMETERS:
        if parameter.name not in taken and getattr(flags, parameter.name) is not None:
            typer_context.fail(f"{declarations(parameter)[0]} is not supported by {typer_context.command_path}")
    if flags.output is OutputForm.WIDE and not has_tables:
        typer_context.fail(f"-o wide is not supported by {typer_context.command_path}, which prints no table")


def _hidden_unless(parameter: inspect.Parameter, shown: Collection[str]) -> inspect.Parameter:
    if parameter.name in shown:
        return parameter
    base, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.hidden = True
    return parameter.replace(annotation=Annotated[base, option])
