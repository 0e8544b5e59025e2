"""The version, here alone (pyproject reads it)."""

VERSION = "0.1.0"
