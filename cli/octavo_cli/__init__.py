"""`octavo`: look at InferenceServices, explain them, measure them, and write new ones. Also `kubectl octavo …`."""
