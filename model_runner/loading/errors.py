"""What is said when a checkpoint can't be loaded."""


class LoadError(RuntimeError):
    """One clear sentence that names the file or tensor and what was expected of it."""
