"""Moves bytes between registered memory of two processes: one registration, one completion engine, all providers."""
