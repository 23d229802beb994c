"""The command line, `llama-batch`.

Exit codes: 0 all went well; 1 a request failed; 2 a mistake in the command or an option; 3 the model was not found or
could not be loaded; 130 interrupted; 141 the reader of the output went away.
"""


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    import sys

    from llama_batch.cli.app import run

    sys.exit(run(sys.argv[1:]))
