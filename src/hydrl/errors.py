"""What a user can mend: told in a line or two, never with a traceback."""


class UserError(ValueError):
    """A mistake in the configuration; the message names the key, the value and what would do."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; the run saves what it has and leaves with ``128 + signal``.

    Not an ``Exception``: it ends a whole sweep, where a failed member only ends itself.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"signal {signum}")
        self.exit_code = 128 + signum
