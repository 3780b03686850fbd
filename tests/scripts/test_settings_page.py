"""docs/reference/settings.md is what the descriptions of the settings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bkctl.app import build_app
from bkctl.setting_readers import all_settings
from tests.bkctl.test_main import leaves

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    made = subprocess.run([sys.executable, "-m", "scripts.settings_page"], cwd=ROOT, capture_output=True, check=True)
    assert (ROOT / "docs" / "reference" / "settings.md").read_bytes() == made.stdout, "run make settings-page"


def test_every_setting_has_one_line_of_help_and_a_variable_of_its_own() -> None:
    settings = all_settings()
    for each in settings:
        assert each.setting.help.strip(), each.path
        assert "\n" not in each.setting.help
        assert not each.setting.help.endswith("."), each.path
    assert len({each.variable for each in settings}) == len({each.name for each in settings}) == len(settings)


def test_the_options_of_settings_exist() -> None:
    options = {option for _, command in leaves(build_app()) for each in command.params for option in each.opts}
    assert {each.setting.flag for each in all_settings() if each.setting.flag is not None} <= options
