"""The HTTP side: protocols, and every request that is in flight.

Owns the translation of each API's request into `GenerateRequest`s and of their outputs into that API's frames, the
contract (what becomes of each field), keys, errors, metrics and health, and the recovery of requests whose process
died. Never tokenises, renders a template, loads a model or talks to a scheduler directly.
"""
