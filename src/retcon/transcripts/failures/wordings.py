"""What harnesses themselves say about a call that did not end well: sentences, by what they mean.

Each is matched against a whole line (`fullmatch`, without the brackets around it), never searched for in running text;
who prints which stands beside it, and in tests/outputs, which has an output of each.
"""

from __future__ import annotations

import re

_SECONDS = r"\d+(?:\.\d+)?\s*(?:s|sec|secs|seconds?|ms|minutes?|m)?"
_WHAT = r"(?:the\s+)?(?:(?:code|python|cell|command|script|program|process|tool|execution|kernel|call|request)\s+)"

EXIT = re.compile(
    rf"(?:error:\s*)?{_WHAT}*(?:(?:exited|failed|finished|terminated|completed|ended|died)\s+)?"
    r"(?:with\s+)?(?:\(?non-?zero\s+)?(?:(?:exit|return)[ _-]?(?:code|status)|(?<=exited with )code)"
    r"(?:\W{0,4}|\s+was\s+|\s+is\s+)(?P<code>-?\d+)\b(?P<rest>.*)"
    r"|<(?P<tag>returncode|exit_code|exitcode)>\s*(?P<tagged>-?\d+)\s*</(?P=tag)>.*",
    re.IGNORECASE,
)
"""Process runners, AutoGen ("exitcode: 1 (execution failed)"), OpenHands ("The command completed with exit code 1."),
mini-swe-agent's tags. A word is needed before the number, so that `Return: 12` is none."""

EXIT_REST = re.compile(
    r"\W*(?:\((?:execution failed|error|failed|failure|[A-Z]+)\)?|\(?SIG[A-Z]+\)?)?\W*", re.IGNORECASE
)
"""What may follow the number on its line."""

TIMEOUT = re.compile(
    rf"(?:error:\s*)?(?:tool error:\s*)?(?:{_WHAT})*(?:has\s+)?(?:been\s+)?"
    r"(?:time[d-]?\s*-?out(?:\s+error)?(?:\s+(?:after|before|waiting|of|exceeded|reached|limit)\b.*|\s*\([^)]*\))?"
    r"|timeout:\s*(?:code|command|execution|process|exceeded|the |no |\d).*"
    rf"|(?:killed|terminated|stopped|interrupted|aborted)\s+(?:after|due to)\s+(?:{_SECONDS}|(?:a\s+)?timeout).*)"
    r"|(?:error:\s*)?(?:maximum\s+|max\s+)?(?:execution\s+|cpu\s+|wall\s+)?time(?:\s+limit)?\s+(?:limit\s+)?exceeded\b.*"
    r"|(?:error:\s*)?(?:the\s+)?(?:code\s+)?execution\s+(?:time\s+)?(?:exceeded|took longer than|took more than)\s+.*"
    r"|(?:error:\s*)?command\s+['\"`].*['\"`]\s+timed out(?:\s+after\s.*)?"
    r"|tool '[^'\n]{1,100}' timed out after [\d.]+ seconds\.?"
    r"|the command (?:timed out after|has no new output after) .*"
    r"|TLE|TimeLimitExceeded",
    re.IGNORECASE,
)
"""`timeout(1)` wrappers, smolagents ("Code execution exceeded the maximum execution time of …"), Qwen-Agent, ToRA's
executor ("Timeout Error"), `subprocess.TimeoutExpired`, judges, OpenHands' soft timeouts."""

MEMORY = re.compile(
    r"(?:error:\s*)?(?:(?:the\s+)?(?:process|program|code|container|kernel|sandbox)\s+(?:was\s+|has been\s+)?)?"
    r"(?:(?:oom[- ]?)?killed(?:\s+\(?(?:out of memory|oom)\)?)?(?:\s+by (?:the )?oom.*)?"
    r"|(?:ran\s+)?out of memory|memory limit exceeded\b.*|exceeded (?:the )?memory limit\b.*|MLE|MemoryLimitExceeded)",
    re.IGNORECASE,
)
"""The kernel's OOM killer as a shell tells of it, judges, containers."""

CRASH = re.compile(
    r"(?:.*\bline \d+:\s+\d+\s+)?segmentation fault(?:\s+\(core dumped\))?\b.{0,200}|bus error(?:\s+\(core dumped\))?"
    r"|aborted(?:\s+\(core dumped\))?|illegal instruction(?:\s+\(core dumped\))?"
    r"|floating point exception(?:\s+\(core dumped\))?"
    r"|fatal python error: .*|(?:the\s+)?kernel (?:appears to have )?died\b.*|dead ?kernel(?:error)?\b.*"
    r"|(?:process|program) (?:was )?(?:killed|terminated) by signal \d+.*|killed by signal \d+.*",
    re.IGNORECASE,
)
"""Shells on signals, CPython's own last words, Jupyter's kernel manager."""

SHELL = re.compile(
    r"(?:/(?:usr/)?bin/)?(?:ba|z|da|k)?sh: (?:line )?(?:\d+: )?.{1,300}: "
    r"(?:command not found|not found|permission denied|no such file or directory|syntax error.*)"
    r"|(?:/\S*/)?python[\d.]*: can't open file .*|(?:/\S*/)?python[\d.]*: no module named .*",
    re.IGNORECASE,
)

HARNESS = re.compile(
    r"(?:(?:an )?(?:error|exception|failure) (?:(?:occurred )?(?:while|when|in|during) |trying to )?"
    r"(?:executing|running|execution(?: of)?|evaluating|calling|code execution)\b[^:\n]{0,120}:.*"
    r"|(?:code |python |cell |program )?(?:execution|runtime|compilation|compile) (?:error|failed|failure)\b\s*[:.!]?.*"
    r"|(?:code|tool|script|python code) (?:execution )?(?:failed|errored)(?: to execute| to run)?\s*[:.!].*"
    r"|failed to (?:execute|run)\b[^:\n]{0,80}:.*"
    r"|code parsing failed on line \d+ due to:.*"
    r"|an error occurred while trying to execute this code:.*"
    r"|an error occurred during execution|error validating tool '[^'\n]{1,100}':.*"
    r"|tool '[^'\n]{1,100}' not found\. available: .*"
    r"|an error occurred while (?:running the tool|parsing tool arguments)\. please try again.*"
    r"|error: \S{1,100} is not a valid tool, try one of \[.*"
    r"|error (?:executing|invoking) tool '[^'\n]{1,100}' with kwargs .*"
    r"|error: [a-z_][\w.]{0,80}(?:error|exception)\(.*"
    r"|your proposed edit has introduced new syntax error.*|your command failed syntax check.*)",
    re.IGNORECASE,
)
"""SWE-agent's linter, smolagents of old, LangChain's, LangGraph's and other tools' wrappers, the SDKs of OpenHands and
of OpenAI's agents."""

SMOLAGENTS = re.compile(r"^Code execution failed at line '", re.MULTILINE)
SMOLAGENTS_CAUSE = re.compile(
    r"' (?:due to|because of(?: the following error)?):\s*(?P<type>[A-Za-z_][\w.]*)(?=: |\s*$)", re.MULTILINE
)

MESSAGE = re.compile(
    r"(?:error|exception|failed|stderr):\s*(?:"
    r"name '\w+' is not defined.*|no module named \S+|cannot import name .*|(?:float |integer )?division by zero"
    r"|integer division or modulo by zero|(?:list|string|tuple|pop|range object) index out of range|pop from empty .*"
    r"|unsupported operand type\(s\) for .*|'[\w.]+' object (?:has no attribute|is not|does not support|cannot be) .*"
    r"|(?:module|type object) '[\w.]+' has no attribute .*|\w+(?:\.\w+)*\(\) (?:missing|takes|got an unexpected) .*"
    r"|invalid syntax.*|unexpected indent.*|expected an indented block.*|unindent does not match .*"
    r"|unterminated string literal.*|unexpected eof while parsing.*|eol while scanning .*|'[\[({]' was never closed.*"
    r"|unmatched '[\])}]'.*|invalid literal for int\(\) .*|could not convert string to float.*"
    r"|cannot access local variable .*|maximum recursion depth exceeded.*|can only concatenate .*|math domain error"
    r"|not enough values to unpack.*|too many values to unpack.*|\[Errno \d+\] .*)"
    r"|.{1,200}\((?:<string>|<unknown>|<stdin>|<cell>|<code>|<ipython-input[^>]*>), line \d+\)?",
    re.IGNORECASE,
)
"""`str(exception)` after a label, as tools print that catch and do not name it: Python's own messages alone."""
