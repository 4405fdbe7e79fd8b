"""Pipeline x tensor x data parallelism (PTD-P) for analytic models."""
