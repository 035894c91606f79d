"""Holds the collectives of a group."""
