"""Which architectures there are and what each is made of: one file per family, declared from its configuration.

Declarations hold no arithmetic: that is in `model_runner/layers`. Nothing here allocates a cache or decides what runs.
"""
