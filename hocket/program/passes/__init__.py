"""From an order of compute tasks to a whole program: transfers, gradients, versions and frees, each in one file."""
