"""The HTML report of a plan: predicted and measured."""
