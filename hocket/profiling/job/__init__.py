"""The job file: model, loss, data, optimizer, learning-rate schedule, precision."""
