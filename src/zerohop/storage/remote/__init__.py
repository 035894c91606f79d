"""Reads and writes the files of a server."""
