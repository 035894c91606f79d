"""Runs a Context: its control thread, event loops and devices, and the Operations that users wait for."""
