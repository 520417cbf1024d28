"""Tasks: a problem generator, a prompt, a parser and a verifiable reward each.

``countdown``       the official form: four numbers up to 100, chat prompt, answer tags.
``countdown_tiny``  three numbers up to 12 over a 73-token vocabulary, with retries, for policies of 0.1 M parameters.
``countdown_short`` the tiny form with one or three attempts, for responses of 11 and 27 tokens.
``arithmetic``      six one-digit numbers in characters, worked step by step, answers judged by math-verify.
"""
