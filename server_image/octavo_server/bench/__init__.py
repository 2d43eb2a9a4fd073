"""Measurements of the server and of the engine: `octavo-server bench serve | throughput | latency | host`."""
