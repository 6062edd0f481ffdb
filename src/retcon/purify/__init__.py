"""What is done about a failed turn, during a rollout and afterwards in transcripts."""

import warnings

# Of programs that others wrote nobody wants to hear: from Python 3.12 on, parsing one warns of `"\d"` each time.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
