"""Gives a user two ends that write into and read from each other: `zerohop.Transport`."""
