"""Executes plans: device, weights, KV pool, attention backends, the logits pipeline and the draw.

Owns everything that imports torch. Never decides what runs: it computes the `BatchPlan` it is given and returns ids.
"""
