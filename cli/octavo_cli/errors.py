"""Errors told in one line with the way out, each with its exit code."""

from __future__ import annotations


class CommandError(Exception):
    """What was given can't be used: an argument, a file, a model. The text names it and the way out; exit code 2."""


class ModelError(CommandError):
    """A model's files can't be read, or lack what is needed; the message names file and field."""


class ServiceError(Exception):
    """The cluster or a service can't do what was asked for. The text names the cause and the way out; exit code 1."""
