"""The commands of ``bkctl log``."""
