"""The contract: one declaration per endpoint and field, and everything that follows from it.

Owns the tables, the validation of bodies, the adjustments that a client is told, `/v1/contract` and docs/contract.md.
Never builds a request or an answer: it says what a field means, others give it that meaning.
"""
