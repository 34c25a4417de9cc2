"""Reward functions of the study beside this file. Those of TRL's `reward_funcs` work here as they are."""


def digits(completions, answer, **kwargs):
    """Return one number a response: the share of digits among its characters.

    ``completions`` and ``answer`` are lists with one text a response; other columns of the data come by their names.
    """
    return [sum(c.isdigit() for c in text) / max(1, len(text)) for text in completions]
