"""What a program will do on a cluster, before anything is launched: an event loop over its instructions."""
