"""Decoding: policies over one fixed-shape step.

``loop`` is the algorithm; ``generate`` makes a reply of it. A policy (``policies``) gives drafts, a
choice (``sampling``) takes tokens, ``state`` knows which rows lie in history, ``window`` and
``replay_states`` give a step its inputs and its shape, ``stopping`` says where a reply ends.
"""

# By name: here, where the command line gets them without NumPy.
POLICIES = ("ar", "nested", "confidence", "speculative", "hybrid")
