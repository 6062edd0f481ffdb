"""The base model's tokenizer: words, numbers in groups of one to three digits, bytes for everything else; lossless.

Numbers in groups, not digits: a small model copies two ids more surely than four.
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retcon.chat.families.markdown import FAMILY
from retcon.chat.types import CONTROLS, END_OF_TEXT, TURN_END
from retcon.tasks.corpus import vocabulary

PIECES = r"```|\p{N}{1,3}| ?_?[A-Za-z]+|\n *| ?[^\sA-Za-z\p{N}]|\s+"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose vocabulary is a list: a piece of text that is in it is one id, else its bytes."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = (to_bytes.pre_tokenize_str(piece)[0][0] for piece in vocabulary())
    names = dict.fromkeys((*CONTROLS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *pieces))
    vocab = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(CONTROLS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END_OF_TEXT, chat_template=FAMILY.template
    )
