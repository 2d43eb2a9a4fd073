"""Tool calls and reasoning in the text of an answer, one module per way of writing them."""
