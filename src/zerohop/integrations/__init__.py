"""Bridges to other libraries and formats. Nothing here is imported unless it is asked for."""
