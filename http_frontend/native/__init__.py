"""SGLang's own `/generate`: its request, its cumulative stream, its `meta_info`."""
