"""Holds the small parts that any room of the core may use: deadlines, backoff, mix-ins, the log."""
