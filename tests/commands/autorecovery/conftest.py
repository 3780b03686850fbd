"""The fixture of all modules here."""

from tests.commands.autorecovery.test_autorecovery import stage

__all__ = ["stage"]
