"""Search for the fastest plan: candidates, lower bounds, branch and bound."""
