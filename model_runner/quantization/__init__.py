"""Forms that a linear's weight takes in memory, and the arithmetic of each.

A form is made from a dense weight once, at load. What a checkpoint stores on disk is `model_runner/loading`'s concern.
"""
