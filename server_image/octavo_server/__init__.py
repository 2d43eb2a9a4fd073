"""The server in the pods."""
