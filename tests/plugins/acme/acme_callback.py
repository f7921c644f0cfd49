"""A callback for a framework."""

import trainvitals


class AcmeCallback:
    def on_step(self, step, loss):
        trainvitals.log({"loss": loss}, step=step)
