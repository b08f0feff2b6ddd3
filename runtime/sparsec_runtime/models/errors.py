"""What can go wrong between a model's name and its weights, worded for the person who typed the name."""


class ModelError(Exception):
    """A model that cannot be described, fetched or loaded: what happened, and what to do (`help`)."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(f"{message}\n  help: {help}" if help else message)
        self.message = message
        self.help = help


class FetchError(ModelError):
    """The package index could not be reached or did not deliver what was pinned."""
