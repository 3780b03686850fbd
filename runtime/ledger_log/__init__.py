"""Logs made of ledgers: one writer at a time, readers at any position."""
