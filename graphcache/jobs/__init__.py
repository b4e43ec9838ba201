"""What to submit to the engines that people have: Kubernetes and Slurm. Nothing here schedules."""
