"""The exceptions that a user is meant to see: each says what is wrong, or what happened, and what to do."""


class UserError(ValueError):
    """Bad input or a damaged file. The message is one line that names the remedy."""


class Preempted(Exception):
    """Training was told to stop and has written a checkpoint; nothing is wrong."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step} with a checkpoint; run the same command again to go on")
        self.step = step
