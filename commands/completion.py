"""``bkctl completion``: scripts that let a shell complete the command line."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext


class Shell(enum.StrEnum):
    """Shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Bash replaces only what follows the last ":" or "=", which bookie ids and options contain.
_BASH: Final = r"""_bkctl() {
    local line="${COMP_LINE:0:COMP_POINT}" current="" cut="" words=()
    read -ra words <<<"$line"
    if [[ $line != *[[:space:]] ]]; then
        current="${words[-1]}"
        unset 'words[-1]'
    fi
    mapfile -t COMPREPLY < <("${1/#\~/$HOME}" __complete "${words[@]:1}" "$current" 2>/dev/null)
    local breaks="${COMP_WORDBREAKS//[^:=]/}"
    if [[ -n $breaks && $current == *["$breaks"]* ]]; then
        cut="${current%"${current##*["$breaks"]}"}"
    fi
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}
complete -o default -F _bkctl bkctl
"""
_ZSH: Final = r"""#compdef bkctl
_bkctl() {
    local -a found
    found=("${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete "${(Q@)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    if [[ -n $found[1] ]]; then
        compadd -- "${found[@]}"
    else
        _files
    fi
}
if [[ $funcstack[1] == _bkctl ]]; then _bkctl "$@"; else compdef _bkctl bkctl; fi
"""
_FISH: Final = r"""function __bkctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (command $words[1] __complete $words[2..-1] "$current" 2>/dev/null)
    if test -n "$found[1]"
        printf '%s\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c bkctl -f -a '(__bkctl_complete)'
"""
_SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


@command("completion", example="completion bash", is_local=True, has_tables=False)
def completion(
    context: CommandContext, shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish")]
) -> None:
    """Print a script that completes command lines in a shell.

    It completes commands, options, bookie ids, contexts and settings. Load it from the start file of the shell:

    ~/.bashrc (bash 4.4 or newer): source <(bkctl completion bash)

    ~/.zshrc, after compinit: source <(bkctl completion zsh)

    ~/.config/fish/config.fish: bkctl completion fish | source

    Bookie ids come from the cluster that the line names (-u, --context, --conf), or that the environment and the
    configuration file do. If ZooKeeper does not answer within a second, none are offered. Where bkctl knows nothing,
    the shell offers files.
    """
    context.console.raw(_SCRIPTS[shell].encode())
