"""The one exception that means: say this sentence to the user and end."""


class StartError(Exception):
    """The server can't start (or go on). Its text is one clear sentence, shown without a traceback."""
