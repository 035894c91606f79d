"""Reaches a peer and exchanges typed messages with it."""
