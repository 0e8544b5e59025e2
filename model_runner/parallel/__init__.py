"""How the ranks of one replica find each other, exchange tensors, and execute the same plans.

It never decides what runs: rank 0 lives beside the scheduler and passes its plans on.
"""
