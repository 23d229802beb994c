"""`python -m llama_batch.cli`."""

from llama_batch.cli import main

main()
