"""What a model writes, read: content, reasoning and tool calls as events, and tools turned into constraints.

Owns the formats, the reasoning splitters, their registry and the constraint of `tool_choice`. Never speaks HTTP,
never sees token ids, loads neither torch nor xgrammar.
"""
