"""Models, data and jobs for tests, examples and benchmarks; written for this project from the papers."""
