"""THE noun: what every device does, in which order, on which values. Strategies write it, engines and the simulator read it."""
