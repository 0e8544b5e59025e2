"""What is said when a checkpoint can't be loaded."""

from runtime.start_error import StartError


class LoadError(StartError):
    """One clear sentence that names the file or tensor and what was expected of it."""
