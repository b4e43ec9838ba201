"""Full fine-tuning of Llama- and Qwen2-type checkpoints from a cache of compiled graphs."""
