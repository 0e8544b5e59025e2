"""Constraints on the text of an answer: what a request asks for becomes a grammar, a grammar becomes token masks.

Owns the compilation of grammars (in child processes that can be killed), the masks (in threads of its own) and the state
of each choice in its grammar. Never decides when a token is drawn; the scheduler asks through `interface.py`.
"""
