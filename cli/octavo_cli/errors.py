"""Errors that a person can mend: one line with the way out, exit code 2."""

from __future__ import annotations


class CommandError(Exception):
    """What a command was asked for can't be done; the text names the cause and the way out."""


class ModelError(CommandError):
    """A model's files can't be read, or lack what is needed; the message names file and field."""
