"""The base model's corpus: seeded, and without what the base model must not know."""

from __future__ import annotations

from itertools import islice

from retcon.basemodel.corpus import documents, vocabulary


def test_documents_repeat_with_their_seed_alone() -> None:
    assert list(islice(documents(3), 50)) == list(islice(documents(3), 50))
    assert list(islice(documents(3), 50)) != list(islice(documents(4), 50))


def test_no_document_holds_a_conversation_a_call_or_an_error() -> None:
    text = "\n".join(islice(documents(0), 5000))
    for absent in ("<|im_", "```", "Error", "Traceback", "assistant", "tool_call", "let x be the gcd of"):
        assert absent not in text


def test_the_vocabulary_names_nothing_twice_but_by_its_space() -> None:
    pieces = list(vocabulary())
    assert len(pieces) == len(set(pieces))
    assert {"7", "07", "007", "999", " gcd", "python", "```", "\n    "} <= set(pieces)
