"""Every reasoning format."""

from function_call.machinery.reader import Step
from function_call.reasoning.format import ReasoningEntry, Split


def identity(split: Split) -> Step[None]:
    """Everything is content."""
    return
    yield


REASONING_FORMATS = (ReasoningEntry("identity", identity, models="models without reasoning"),)
