"""The CPU engine: compiled kernels that run a dense decoder's forward pass in one call.

Owns the C++ sources, their compilation into a cache, the packed weight forms, and an oracle of the same arithmetic in
plain torch. Knows nothing of checkpoints, requests or sampling.
"""
