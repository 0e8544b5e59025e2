"""Token ids to text: incremental decoding, stop strings and stop regexes, the texts of logprobs.

Owns the text of every choice from `Admitted` to its one final output. Never samples, never parses what the text means
(tool calls and reasoning are split by the front end), and imports no torch.
"""
