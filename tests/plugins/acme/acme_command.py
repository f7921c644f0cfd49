"""`trainvitals acme`."""

from trainvitals.views.cli.main import CommandRow

COMMAND = CommandRow("acme", __name__, "greet from Acme")
EXAMPLES = "trainvitals acme --loud"


def add_arguments(parser):
    parser.add_argument("--loud", action="store_true", help="in capital letters")


def execute(arguments):
    print("HELLO FROM ACME" if arguments.loud else "hello from acme")
    return 3
