"""How far a sampler departs from the trainer, for any Hugging Face model: ``python -m repro measure``.

`command` holds the options, `engines` the samplers and the trainer, `prompts` what is asked, `scoring` makes the records and
`statistics`, `report` and `figure` say what they show. `smollm2` makes a small real model to try it on.
"""
