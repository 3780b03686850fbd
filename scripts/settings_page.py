"""Writes docs/reference/settings.md from the descriptions of the settings: ``make settings-page``."""

from __future__ import annotations

import sys

from bkctl.commands.configuration import value_text
from bkctl.java_security_keys import SECURITY_KEYS
from bkctl.overview import setting_info
from bkctl.setting_readers import all_settings
from bkctl.storage.setting import Described

HEAD = """# Settings

This page is generated from the code by `make settings-page`.

A setting has the value of the first source that gives one:

1. an option of the command, `--port 3181`, or `--set KEY=VALUE` with a key of `bk_server.conf`
2. an environment variable
3. a Java `bk_server.conf`, given by `--conf`, `BKCTL_CONF` or `BOOKIE_CONF`
4. the TOML file, `~/.config/bkctl/config.toml`, or the one given by `--config` or `BKCTL_CONFIG`
5. the default

`--set` is an option of the commands that work on the bookie of this machine. `[contexts.NAME]` describes a cluster by
`metadata_uri`, `read_only`, `instance_id` and tables `zookeeper` and `bookie_client`, which replace values of
`[zookeeper]` and `[bookie_client]` of the same names. Its `metadata_uri` has precedence over that of a
`bk_server.conf`. `bkctl config contexts` lists the contexts, `bkctl config use-context NAME` makes one the default: it
writes `context = "NAME"` into the TOML file.

The variable of a setting is `BKCTL_`, then its table and its name in capitals: `[bookie.disks] full_fraction` is
`BKCTL_BOOKIE_DISKS_FULL_FRACTION`. If a variable has another name, the table shows it. Lists are separated by commas.
A file contains a reference to a secret: `file:PATH`, `env:VARIABLE`, or `fd:NUMBER` for a file descriptor, which is
read once (not by the daemon that a bookie starts). A variable contains such a reference or the secret itself. Options
never contain secrets.

In each table for TLS, the CA (`ca_*`) comes from one source, and so does the certificate with its key (`key_*`,
`certificate_file`); in each table `sasl`, the login. So a source that gives `ca_file`, `key_file`, or `username`,
`keytab` or `jaas_file`, replaces all that later sources say about the same.

A key of `bk_server.conf` with a unit after it counts in that unit: `gcWaitTime` (ms). Settings marked *live* change
when a running bookie gets SIGHUP ([a bookie's log](bookie-log.md)).

`bkctl config show --with-origin` shows the values of this machine and their sources. `bkctl config explain KEY`
explains one setting. KEY may also be its variable or its Java key; for a Java key without effect it gives the reason.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    tables: dict[str, list[Described]] = {}
    for each in all_settings():
        tables.setdefault(table_of(each), []).append(each)
    for table, settings in sorted(tables.items(), key=lambda item: not item[0].startswith("Before")):
        parts.append(f"## {table}\n")
        parts.append("| setting | default | range | Java key | meaning |\n|---|---|---|---|---|")
        parts += [*map(row, settings), ""]
    parts.append("## Java's keys for TLS and logins\n")
    parts.append("They are read from the file of `--conf`, by commands, daemons and bookies.\n")
    parts.append("| Java key | what it sets |\n|---|---|")
    parts += [f"| `{key}` | {meaning} |" for key, meaning in SECURITY_KEYS.items()]
    return "\n".join(parts).rstrip() + "\n"


def table_of(each: Described) -> str:
    """The heading that a setting is under."""
    if not each.is_in_toml:
        return "Options and variables only"
    table = each.name.rpartition(".")[0]
    return f"[{table}]" if table else "Before the first table"


def row(each: Described) -> str:
    """A setting as a row of its table."""
    info, java = setting_info(each, {}), each.setting.java
    notes = [info.help]
    if info.option is not None:
        notes.append(f"option `{info.option}`")
    if each.setting.variable is not None or not each.is_in_toml:
        notes.append(f"variable `{info.variable}`")
    if info.is_live:
        notes.append("*live*")
    default = value_text(info.default, info.unit)
    key = ""
    if java is not None:
        key = f"`{info.java_key}`" + (f" ({java.unit})" if java.unit not in {"", "decimal"} else "")
    name = info.name.rpartition(".")[2] if each.is_in_toml else info.name
    cells = (f"`{name}`", default or "", info.range, key, "; ".join(notes))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
