"""From logits to ids: the logits pipeline and the draw, and the state that rows keep for them.

Every stage is a function over the rows that need it. Never sees a model, an attention backend or a page.
"""
