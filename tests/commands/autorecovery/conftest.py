"""The fixture of all modules here."""

from tests.commands.autorecovery.test_autorecovery import shell

__all__ = ["shell"]
