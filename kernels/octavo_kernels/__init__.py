"""Paged attention and fused kernels."""
