"""Our transformer: a fused, config-driven decoder over the paged pool, and its linear layers."""
