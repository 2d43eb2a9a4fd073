"""Autoscaling: samples of the pods → a pure policy → a number of replicas with its reasons."""
