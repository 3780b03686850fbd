"""Writes docs/reference/metadata-doctor.md from the catalogue of the metadata doctor: ``make doctor-page``."""

from __future__ import annotations

import sys
import textwrap

from bkctl.runtime.metadata.doctor.catalogue import RULES, Rule
from bkctl.storage.severity import Severity

HEAD = """# Metadata doctor

`bkctl metadata doctor` reads every node below the ledgers root and reports problems, each with its znode, its effect
and the fix. It only reads, takes no lock and keeps to the request budget (`--zk-rate`): it is safe on a live cluster.

This page is generated from the code by `make doctor-page`.

```
bkctl metadata doctor                          # everything
bkctl metadata doctor --severity warning       # warnings and worse
bkctl metadata doctor --rule forbidden-ledger-id --rule foreign-vote
bkctl metadata doctor -o jsonl | jq .cure      # one finding per line; the summary goes to stderr
```

The worst findings come first. The report lists at most 1000 findings per rule (more with a larger `--limit`) and
counts all of them. `looked_at` is the number of nodes of each kind that were read.

| severity | meaning |
|---|---|
| critical | destroys or hides data, or stops clients, auditors or the creation of ledgers in the whole cluster |
| warning | one bookie, ledger or operation fails or will fail, or something could not be read |
| information | no damage, but worth knowing |

| exit code | when |
|---|---|
| 0 | no warning and nothing critical |
| 10 | at least one finding is a warning or worse, of those that `--rule` and `--severity` select |
| 4 | there is no cluster |
| 6 | ZooKeeper does not answer |
| 11 | no permission to read a node, and nothing is critical |

The cluster may change during the scan. A suspicious node is read again a second later, and a problem that concerns
several nodes must be seen twice. So a lock or mark that has disappeared, or a bookie that changed its mode, is not
reported.

## Limits

- **Sessions.** ZooKeeper does not show clients which sessions are alive. It deletes the ephemeral nodes of ended
  sessions itself; a persistent node where an ephemeral one belongs is reported.
- **Copies of entries.** `bkctl audit` counts them by metadata, `bkctl ledger verify` reads them. The doctor reports
  only which bookies are down and whether ledgers reference them.
- **Disks.** `bkctl cookie verify` compares the directories of a bookie with its cookie, on its machine.
- **The layout.** If LAYOUT is missing or unreadable, the doctor uses the layout of the metadata URI, otherwise the
  hierarchical one.
- **Counters** are exact. The next number of a sequential node follows from its `cversion` and its number of children,
  so the doctor uses no number up. Used-up high halves of ledger ids (`HOB-`) are not reported, because Java and bkctl
  continue with the next one.

Below, `ZNODE` is the node of a finding and `ID` its ledger or bookie. `zkCli` is ZooKeeper's `zkCli.sh`: bkctl
deliberately has no command for these fixes, because only the operator can know what is right.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for severity in sorted(Severity, reverse=True):
        parts.append(f"## {severity.name.capitalize()}\n")
        parts += [section(rule) for rule in RULES.values() if rule.severity is severity]
    return "\n".join(parts)


def section(rule: Rule) -> str:
    """The section of a rule."""
    cure = rule.cure.format(path="ZNODE", subject="ID")
    items = [f"- {rule.meaning}", f"- Effect: {rule.consequence}", f"- Fix: {cure}"]
    if rule.depends:
        items.append(f"- Severity: {rule.depends}.")
    lines = [
        textwrap.fill(item, 120, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        for item in items
    ]
    return "\n".join((f"### `{rule.id}`", "", *lines, ""))


if __name__ == "__main__":
    sys.stdout.write(page())
