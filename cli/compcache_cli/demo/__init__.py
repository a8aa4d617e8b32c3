"""Real starts of a tiny model in vLLM: what ``compcache demo``, the benchmarks and the engine tests share."""
