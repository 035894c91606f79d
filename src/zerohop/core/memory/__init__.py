"""Registers memory, keeps it alive while it is used, and shares it with peers."""
