"""Serves the files of a folder to other processes."""
