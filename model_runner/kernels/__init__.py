"""The CPU engine: compiled kernels that run a dense decoder's forward pass in one call.

Owns the C++ sources, their compilation into a cache, the packed weight forms, and the way from a model's declaration to
a program of the kernels. Opens no checkpoint itself, and knows nothing of requests or sampling.
"""
