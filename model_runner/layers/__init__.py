"""The parts that models are declared from: linears, norms, rotary embeddings, attention, feed-forward, experts.

Parts know tensors, shards and weight forms. They never read a configuration or a file, and never plan a batch.
"""
