"""Style of help pages: headings and names stand out, running text does not."""

from __future__ import annotations

from bkctl.commands.help_page import styled

PAGE = """Usage: bkctl thing [OPTIONS] COMMAND

  Do it to all things unless
  --all  is not given.

Options:
  -n, --name NAME  Name; without it
                   --all is needed.
  --very-long-option-name VALUE
                   A value.

Commands:
  list  List them.

Shared options: --yes
"""


def test_headings_and_names_stand_out() -> None:
    page = styled(PAGE).replace("\x1b[1m", "<").replace("\x1b[0m", ">")
    expected = PAGE
    for name in (
        "Usage:",
        "Options:",
        "Commands:",
        "Shared options:",
        "-n, --name NAME",
        "--very-long-option-name VALUE",
    ):
        expected = expected.replace(name, f"<{name}>")
    assert page == expected.replace("  list  ", "  <list>  ")
