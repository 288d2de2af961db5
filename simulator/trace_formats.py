"""What the rows of published traces hold, for the help of commands and for errors of readers.

Words only: imports nothing, so that a command's help is quick.
"""

MOONCAKE_BLOCK_TOKENS = 512

MOONCAKE = (
    "per line a JSON object with timestamp (arrival, in ms), input_length and output_length (in "
    "tokens) and hash_ids (a list of integers, one per block of "
    f"{MOONCAKE_BLOCK_TOKENS} tokens of the prompt; equal ids mean an equal prompt so far)"
)
AZURE = (
    "the columns TIMESTAMP (arrival, as date and time), ContextTokens and GeneratedTokens (of "
    "prompt and answer, in tokens)"
)
AGENTIC_CODING = (
    "a JSON object with id, block_size (in tokens) and requests, a list of objects with in and out "
    "(in tokens), hash_ids (a list of integers, one per block of the prompt) and think_time (in s)"
)
FILES = "Mooncake's .jsonl, Azure's .csv, or a folder of coding sessions (.json.gz)"
TRACE_EPILOG = (
    f"Traces: Mooncake's .jsonl has {MOONCAKE}. Azure's .csv has {AZURE}. A coding session's "
    f".json.gz has {AGENTIC_CODING}."
)
