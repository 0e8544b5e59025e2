"""Shared machinery of all formats: the reader, the session, JSON, key/value and Python readers. Knows no format."""
