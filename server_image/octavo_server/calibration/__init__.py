"""Which block size and launch configuration suit a device and a model's shape: measured, off the serving path."""
