"""The exceptions that mean: the caller gave something that cannot work, and here is what to do."""


class UserError(Exception):
    """A mistake in what the user asked for. The command line prints it as one sentence and exits with its code."""

    exit_code = 2


class WorkerFailure(UserError):
    """A process that steps environments died or hangs. What was trained until then is kept."""

    exit_code = 1
