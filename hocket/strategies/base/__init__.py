"""What every strategy shares: its interface, orders of tasks, balance of stages."""
