"""`acme:PATH`: notifications as lines of a file."""

from pathlib import Path

from trainvitals.settings.channels import ChannelRow

CHANNEL = ChannelRow("acme", __name__, is_plain=True)


def send(url, outgoing):
    with Path(url.partition(":")[2]).open("a") as file:
        file.write(outgoing.title + "\n")
