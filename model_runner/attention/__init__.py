"""Paged attention: one Protocol (`interface`), one file per backend, each of which owns the layout of its KV pool.

Never looks at a plan or a model: it sees `StepInputs` and the tensors of one layer.
"""
