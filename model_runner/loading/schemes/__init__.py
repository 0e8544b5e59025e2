"""How quantised checkpoints store their weights, one file per scheme: each turns stored parts into plain values.

A scheme works on regions and keeps nothing. What arithmetic the weights then take part in is not decided here.
"""
