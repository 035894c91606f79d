"""Bridges zerohop and other libraries and formats. Each module is imported only on request."""
