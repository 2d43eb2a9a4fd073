"""Model files: where they come from, how they get here, and whether they are what the server can serve."""
