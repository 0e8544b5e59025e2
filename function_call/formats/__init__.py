"""The wire formats of tool calls: declarations over the machinery, grouped by shape. Holds no streaming logic of its own."""
