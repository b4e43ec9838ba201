"""What a model is made of: its config.json, and the parameters that follow from it. No torch."""
