"""The one exception that is a message to the user, not a defect: it is shown without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right. The text names the file, the row or key, the value, what was expected."""


class Unreachable(UserError):
    """A network source did not answer. The same command may succeed later, so the flow tries such a stage again."""


def shown(value: object, limit: int = 60) -> str:
    """A value as it stands in a message: at most `limit` characters, all of them printable."""
    if isinstance(value, str | bytes):
        value = value[: limit + 1]  # a row may be megabytes long
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = f"a {type(value).__name__} of more than 4300 digits"
    return text if len(text) <= limit else text[: limit - 3] + "..."
