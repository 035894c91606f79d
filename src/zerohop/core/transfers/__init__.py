"""Moves bytes: writes, reads, page lists, atomics and notifications."""
