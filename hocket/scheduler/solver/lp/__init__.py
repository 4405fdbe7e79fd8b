"""Linear programs: variables, matrices, warm starts."""
