"""A run's checkpoints: folders that `transformers` loads, with the optimizer's state beside, complete or not at all."""
