"""Deals with peers: sessions with them, memory imported from and exported to them, calls, and their loss."""
