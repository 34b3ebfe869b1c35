"""The one exception that a user is meant to see: it says what is wrong and what to do."""


class UserError(ValueError):
    """Bad input or a damaged file. The message is one line that names the remedy."""
