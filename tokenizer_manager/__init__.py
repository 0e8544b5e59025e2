"""From an API request to token ids: chat templates, tokenisation, checks that need the model, choice of the replica.

Owns the conversation registry, the rendering sandbox and the guard against forged control tokens. Never generates,
never parses an answer, never keeps a request once the scheduler has it; imports neither torch nor transformers.
"""
