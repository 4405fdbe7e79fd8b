"""What a job runs on: device types, links, and the levels of a cluster."""
