"""Goals other than one batch size: samples per second, time to accuracy, subclusters."""
