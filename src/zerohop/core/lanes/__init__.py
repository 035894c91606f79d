"""Sets up the lanes to a peer and chooses the path between two memories."""
