"""Ray Train and Ray Tune. How a process of Ray finds its run: `trainer.ray_job`. The cluster: `trainvitals.ray`."""
