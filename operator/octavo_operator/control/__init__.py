"""Queue, indexes and the reconcile loop."""
