"""The commands that bkctl prints, completed with the options for the cluster that it was given itself.

Pasted without them, a command would be for another cluster, or for none. What the environment and the files say is
there for the next command too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from bkctl.app import options_taken
from bkctl.commands.config import GlobalFlags
from bkctl.commands.rendering import Complete
from bkctl.commands.shared_options import GLOBAL_PARAMETERS, declarations

_CARRIED = ("config", "metadata_uri", "cluster", "conf")
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    each.name: declarations(each) for each in GLOBAL_PARAMETERS if each.name in _CARRIED
}
_COMMAND = re.compile(
    r"(?<!that )(?<!what )(?<!\bby )(?<!\bof )\bbkctl(?P<words>(?: [a-z][a-z-]*)+)"
    r"(?! --help)(?=(?P<rest>.*?)(?:; |\bbkctl |$))",
    re.MULTILINE,
)
"""A command in a sentence, unless it is about an earlier run: "a directory that bkctl audit --out wrote".

``rest`` has its arguments, and perhaps more of the sentence.
"""


def carrying(flags: GlobalFlags) -> Complete:
    """What completes the commands in a text: ``bkctl status`` becomes ``bkctl -u URI status``.

    An option that the command has already, or does not take, is left out.
    """
    given = {name: value for name in _CARRIED if (value := getattr(flags, name)) is not None}
    if not given:
        return str
    from bkctl.commands.safety.state_directory import mask_secrets  # most invocations get their cluster elsewhere

    def completed(found: re.Match[str]) -> str:
        taken, words = options_taken(found["words"]), {each.partition("=")[0] for each in found["rest"].split()}
        options = [
            f" {_SPELLINGS[name][-1]} {shlex.quote(*mask_secrets([value]))}"
            for name, value in given.items()
            if name in taken and words.isdisjoint(_SPELLINGS[name])
        ]
        return f"bkctl{''.join(options)}{found['words']}"

    return lambda text: _COMMAND.sub(completed, text) if "bkctl " in text else text
