"""Other libraries' names, on ours: code written for them changes one import."""
