"""A real control plane on one machine."""
