"""Pure: conditions of a service and what its pods tell."""
