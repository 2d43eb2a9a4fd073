"""The controller of InferenceServices."""
