"""Systems factored in the lower precision, and refined in their own."""
