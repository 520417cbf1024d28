"""The base of every error whose message is meant for the person at the terminal."""

from __future__ import annotations


class LaboratoryError(Exception):
    """Something asked for cannot be done; the message says what is wrong and what to do next, no traceback is needed."""
