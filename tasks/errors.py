"""The one exception that is a message to the user, not a defect: it is shown without a traceback."""


class UserError(Exception):
    """Something the user can put right. The text names the file, the row or key, the value, what was expected."""


class Unreachable(UserError):
    """A network source did not answer. The same command may succeed later, so the flow tries such a stage again."""
