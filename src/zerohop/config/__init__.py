"""Declares settings, options of verbs, the filter of NICs and the names of providers, and checks arguments."""
