"""Errors that a person should read as a sentence."""


class Unsupported(Exception):
    """This machine, this environment or this combination cannot do what was asked; the message says why."""


class Invalid(Exception):
    """It would run, but not as asked; the message says how it would differ."""
