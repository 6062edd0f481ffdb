"""The words of the base model's corpus, and those that its tokenizer keeps whole besides."""

from __future__ import annotations

WORDS = tuple(
    """
    a an the of and to in is was for on with as by at from that this it be are or not have has had but all they one you
    we he she his her their its will would there what when which who how if then than so no yes out up down over under
    into between after before first second third next last new old long short high low big small good bad same other
    more most some any each every only also now here where why because about through during again once time day year
    week month hour minute man woman child people house home work school water food book page line word name number
    value result answer question problem list table row column file code text letter set group part side end start begin
    stop find let get give take make use try see look know think want need show tell ask call run read write add sum
    count total mean product difference power root square cube double half mod modulo base digit digits divisor divisors
    multiple multiples prime primes factor gcd lcm range limit step rest remainder greatest least common smallest
    largest even odd positive negative zero two three four five six seven eight nine ten hundred thousand red blue green
    white black tree river stone road bird dog cat horse fish sun moon star sky sea ship train city town king queen
    friend apple pear bread milk salt sugar box bag cup door window wall table chair garden failed wrong right correct
    different way check compute calculate solve using program script function module import method
    """.split()
)

NAMES = tuple(
    """
    Tom Mia Ada Ben Eva Max Ida Leo Zoe Jan
    """.split()
)

THINGS = tuple(
    """
    apples pears books stones cups birds boxes pages coins cards
    """.split()
)

VARIABLES = tuple(
    """
    a b c d e f g h i j k m n p q r s t u v w x y z total count value result items data size width height left right
    index
    """.split()
)

MODULES = tuple(
    """
    math random itertools functools collections string statistics fractions sympy
    """.split()
)

MEMBERS = tuple(
    """
    gcd lcm hcf sqrt floor ceil factorial pow log comb isqrt prod primes divisors digits choice randint shuffle chain
    product reduce mean median prime isprime lowest powmod base square multiples count
    """.split()
)

BUILTINS = tuple(
    """
    abs all any bin bool chr dict divmod enumerate float hex int len list map max min next oct ord pow print range
    reversed round set sorted str sum tuple type zip
    """.split()
)

VOCABULARY_ONLY = tuple(
    """
    python user assistant system tool object attribute defined type types expected got unsupported operand argument
    arguments integer string invalid syntax expression never closed missing required positional perhaps you forgot
    NameError TypeError SyntaxError AttributeError ValueError ZeroDivisionError IndexError KeyError TimeoutError while
    boxed squares return elif else yield lambda True False None MemoryError ImportError ModuleNotFoundError
    RecursionError OverflowError callable iterable must again
    """.split()
)
"""Words that the corpus never says: the names of roles and of errors."""

MARKS = tuple(
    r"""
    ``` ' " \ ( [ { = + - * / % < > . , : # | ! ?
    """.split()
)
