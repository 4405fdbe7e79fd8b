"""The event loop: nodes, resources, kernel."""
