"""JSON schemas (draft 2020-12) and regular expressions as EBNF.

Owns the promise that every text of the grammar is valid: a keyword is enforced exactly, or to a subset of what it
allows, or refused by name and path. xgrammar's own JSON-schema converter is not used: it accepts many keywords without
enforcing them, and lets control characters and broken UTF-8 into strings.
"""
