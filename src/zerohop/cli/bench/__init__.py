"""Runs ``zerohop bench``: two processes driven from Python, every byte verified, compared with raw floors."""
