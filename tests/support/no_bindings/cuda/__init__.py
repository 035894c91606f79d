"""Stands before the packages of that name, so that there is neither `cuda.core` nor `cuda.bindings`."""
