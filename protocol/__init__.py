"""What the processes say to each other.

Owns every message, the plan of a step, the errors of the API and the tagged union of each link. Imports nothing
but the standard library and msgspec, holds no behaviour beyond encoding, and never reads a configuration.
"""
