"""Replicas, loads and policies in simulated time. The policy that runs here is the operator's own."""
