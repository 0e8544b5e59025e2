"""Decides what each step computes: continuous batching, prefix cache, pages, grammar state, stopping by token.

Plain Python over ints and bytes: only `process.py`, `executor.py` and `grammar/` ever load torch. Never turns ids into
text, never touches a tensor, never waits for a client.
"""
