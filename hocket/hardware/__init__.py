"""Hardware: device types, links, and the levels of a cluster."""
