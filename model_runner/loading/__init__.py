"""Where weights come from: safetensors, GGUF, quantised checkpoints, random numbers.

Yields named tensors in the checkpoint's own names and shapes, slice by slice, and says clearly what is wrong with a
file. It knows no architecture beyond name maps.
"""
