"""Numbers with words around them: which are the same, and which words make another number of them."""

import time

import pytest

from retcon.tasks.graders.quantities import same_measures, same_quantity

NOUNS = ("eggs", "dollars", "kg", "left-overs", "km")
FORMS = ("18 {}", r"\text{{18 {}}}", r"18\text{{ {}}}", "**18** {}.", "Answer: 18 {}", "$18 {} per day", "18 {}/day")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noun", NOUNS)
def test_words_change_nothing(form: str, noun: str) -> None:
    assert same_quantity("18", form.format(noun))
    assert same_quantity(form.format(noun), "18")
    assert not same_quantity("17", form.format(noun))
    assert not same_quantity("1.8", form.format(noun))


@pytest.mark.parametrize(
    "said",
    [
        "**18**", "`18`", r"\text{Answer: }18", "€18", "18 €", "(18 eggs)", "18 eggs!", "18 square feet",
        "18 days' work", "18.0 cups", "Natalia sold 18 clips", "18 miles before stopping", "18 in all", "$18 a day",
        r"18\text{ m}",
        "US$18", r"\frac{36}{2} cups",
    ],
)  # fmt: skip
def test_markup_and_sentences_change_nothing(said: str) -> None:
    assert same_quantity("18", said)
    assert not same_quantity("19", said)


@pytest.mark.parametrize(
    "said",
    """18 dozen|18 thousand|18 million euros|18 percent|18 per cent|18%|18% of eggs|18 halves|18 and a half|18 squared
18 eggs or 19|18 eggs and 19 pears|between 18 and 20|not 18|less than 18|minus 18|-18 eggs|no 18|18 times as many
18 xy|18 n|18x|x18|18th|18k|18!|18 AB|18 abc|18 pi|18\\pi|\\sqrt{18} eggs|sin 18|-(18)|18^2 eggs|18_9 eggs|18 sqrt
18 eggs + 1|18 - price|price - 18|1/18 eggs|/18 eggs|eggs/18|18/n|18 * eggs|18 x 2 eggs|18:30 hours|18, 19|18 19
18xy^2|18 ab^3|18by^2|18/xy^2|\\frac{36}{2} mv^2
18 a|a 18|arctan 18|cosh 18|sine 18|ceil(18)|18 alpha|all except 18|every number but 18|multiples of 18|primes below 18
at least 18|18 times as many|18 dots|under 18|18 below zero|loss of 18|18 lakh|18 hundred|wrong 18|option 18
March 18|18 BCE
18... eggs|18…|0.18 eggs|18.5 eggs|18,5 eggs|18,000 eggs|118 eggs|18e3 eggs|18 万|eggs18|18eggs5|eggs|""".replace(
        "\n", "|"
    ).split("|"),
)
def test_what_may_be_another_number_is_not_read(said: str) -> None:
    assert not same_quantity("18", said)
    assert not same_quantity(said, "18")


@pytest.mark.parametrize(
    ("answer", "said", "same"),
    [
        ("1500000", "1.5 million", True),
        ("1.5 million people", "1,500,000", True),
        ("18,000", "18 thousand", True),
        ("5000000000", "5 thousand million", False),
        ("2000000", "-2 million", False),
        ("2000000 people", "2 million dollars", False),
        ("18 eggs", "18 egg cartons", False),
        ("12 cm^2", "12 cm", False),
        ("12 cm^2", "12 square cm", True),
        ("12 in", "12 inches", True),
        ("40 miles per hour", "40 mph", True),
        ("18 dollars", "$18 a day", True),
        (r"3\text{ m}", r"3\text{ s}", False),
        ("18 clips", "Natalia sold 18 clips in all", True),
        ("12", "12kg", True),
        ("12kg", r"12\text{ g}", False),
        ("60 km/h", "60 km per hour", True),
        ("60", "60 km/h", True),
        ("60 km/h", "61 km/h", False),
        ("1000 kg/m^3", r"1000 \text{kg/m}^{3}", True),
        ("1000 kg/m^3", "1000 kg/m^2", False),
        ("90 people per square mile", "90 people per square km", False),
        ("12", "12 GB", True),
        ("9.8 ft/sec^2", "9.8", True),
        ("12 in/s", "12 in", False),
        ("5 flowers per square", "5 flowers", False),
        ("2", "2mg", False),  # m·g
        ("5", "5/s", False),
        ("18 oranges", "18 orange", True),
        ("18 eggs", "18 pears", False),
        ("11 AM", "11 PM", False),
        ("Team 5", "Group 5", False),
        ("3 500 ml bottles", "3 250 ml bottles", False),
        ("3 cans", "3 250 ml bottles", False),
        ("1500000", r"1.5\text{ million}", True),
        ("3 hours", "3 hrs", True),
        ("18 dollars", "€18", False),
        ("2.5 kWh", r"2.5\text{ kWh}", True),
        ("9.8 meters/second^2", "9.8 meters per square second", True),
        ("18 eggs", "The answer is 18 eggs.", True),
    ],
)
def test_words_of_both_must_agree(answer: str, said: str, same: bool) -> None:
    assert same_quantity(answer, said) is same


TIME = r"3\text{ hours } 20\text{ minutes}"


@pytest.mark.parametrize(
    ("answer", "said", "same"),
    [
        (TIME, "3 hours and 20 minutes", True), (TIME, "3h 20m", True), ("5 feet 3 inches", "5 ft 3 in", True),
        ("2 R 3", "2 remainder 3", True), (TIME, r"3\text{ hours } 30\text{ minutes}", False),
        (TIME, "3 hours", False), (TIME, "20 hours 3 minutes", False),
        ("5 apples and 3 pears", "5 pears and 3 apples", False),
        ("4 adults and 6 children", "4 kids and 6 adults", False), ("5 cm by 3 cm", "3 cm by 5 cm", True),
        ("5 m/s", r"5\text{ m/s}", True), ("9.8 m/s^{2}", r"9.8\text{ m/s}^{2}", True),
        (r"9.8 \text{m/s^{2}}", "9.8 m/s^2", True), ("5 m/s", r"6\text{ m/s}", None),
        ("5 m/s", r"5\text{ m/h}", None), ("2, 3", "3, 2", None), ("3x 4y", "3", None), ("2 or 3 apples", "2", None),
        ("18 eggs", "18", None), ("9:30 a.m.", "9:30", None), ("June 20, 2020", "20", None),
        (TIME, "Answer: 3 hours, 20 min.", True),
    ],
)  # fmt: skip
def test_several_numbers_with_units_are_compared_whole(answer: str, said: str, same: bool | None) -> None:
    assert same_measures(answer, said) is same


@pytest.mark.parametrize("piece", ["7 ", "1a", "a ", "a/", "$", ".", "(s)", "1,111"])
def test_a_long_answer_is_read_in_no_time(piece: str) -> None:
    start = time.process_time()
    same_quantity("7", piece * 2000)
    same_quantity("7", (piece * 200)[:199])
    assert time.process_time() - start < 1
