"""What a job is: layers with their times and bytes, and the tensors between them."""
