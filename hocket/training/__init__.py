"""Training: starts and watches workers, each of which trains its part of a plan; measurements and checks of real runs."""
