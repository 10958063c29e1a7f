"""The one exception that means: the caller gave something that cannot work, and here is what to do."""


class UserError(Exception):
    """A mistake in what the user asked for. The command line prints it as one sentence and exits with 2."""
