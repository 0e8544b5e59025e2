"""How the processes live: arguments, configuration, environment, channels, supervision, logging, tokenizer loading.

Owns everything that two rooms need and that is not a message. Imports `protocol` only, never a room; what needs torch
(`tokenizer_conversion`) runs in a child process and is imported by nobody.
"""
