"""The GPU tier of the laboratory: official Countdown on any Hugging Face causal language model, one device.

The same steps as ``repro.trainer`` at the size of the published experiments: samplers with a key/value cache and native
fp8 matrix products, a loss without extra arrays over the vocabulary, micro-batches. Not yet run on a GPU: every step up
to the device's kernels and vLLM's GPU engine is exercised on the CPU by ``python -m repro.gpu.dry_run`` and by the tests.
"""
