"""Splitting an answer into reasoning and the rest. Never reads a tool call."""
