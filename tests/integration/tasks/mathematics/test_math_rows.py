r"""What a reply answers, and whether that is the right answer: rows of (reply, answer), right and wrong.

A row of both tables is read by the whole grader. Add one where a reply was graded wrongly, and its opposite beside it.
"""

from __future__ import annotations

import asyncio
import importlib.util

import pytest

from retcon.sandbox.pool import SandboxPool
from retcon.tasks.graders.mathematics import PACKAGES, MathGrader

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="grading by mathematics needs the [grade] extra"
)

RIGHT = [
    # nouns that are numbers elsewhere
    ("He has 14 quarters.", "14"),
    (r"\boxed{7\text{ quarters}}", "7"),
    ("There are 3 two-digit primes.", "3"),
    ("#### 12 half-dollar coins", "12"),
    ("#### 8 power strips", "8"),
    (r"\boxed{6\text{ true/false questions}}", "6"),
    ("He has 6 true/false questions.", "6"),
    (r"\boxed{4\text{ root vegetables}}", "4"),
    ("He picks a book 4 times a year.", "4"),
    ("Tom runs 3 times per week.", "3"),
    ("She averaged 3 three-pointers a game.", "3"),
    # what models put around an answer
    ("The answer is <solution> 32 </solution>.", "32"),
    ("Becca has <solution> 153 </solution> cards.", "153"),
    ("The answer is <b>32</b>", "32"),
    ("The answer is $42$<|im_end|>", "42"),
    ("The answer is 42 <|eot_id|>", "42"),
    ("She sold 42 clips.</s>", "42"),
    ("She sold 42 clips.\n<|im_end|>\n", "42"),
    # words before a number that do not change it
    ("The difference between the two numbers is 12.", "12"),
    ("The difference between the two numbers is $12$.", "12"),
    ("The distance between the two towns is 50 miles.", "50"),
    (r"The angle between the hands is $120^\circ$.", "120"),
    ("The least common multiple is $90$.", "90"),
    ("The least possible value is 7.", "7"),
    ("The most he can spend is 100 dollars.", "100"),
    ("Twice the sum is 16.", "16"),
    ("The number of ways with no two adjacent is $11$.", "11"),
    ("The smallest number that is not prime is 6.", "6"),
    ("Yoki picked up 10 cans.", "10"),
    ("They lost all 8 games.", "8"),
    # letters that are units elsewhere
    (r"\boxed{2t + x^2}", "x^2+2t"),
    (r"\boxed{2(n+m)}", "2n+2m"),
    (r"\boxed{2\cdot s}", "2s"),
    (r"\boxed{c+b+a}", "a + b + c"),
    (r"\boxed{1-\cos^2 t}", r"\sin^2 t"),
    # Python's notation
    (r"\boxed{x**2 - 1}", "x^2-1"),
    (r"\boxed{3**2 + 1}", "10"),
    (r"\boxed{2**10}", "1024"),
    ("The answer is 2*sqrt(3).", r"2\sqrt{3}"),
    (r"\boxed{sqrt((a+b)**2 + 1)}", r"\sqrt{a^2+2ab+b^2+1}"),
    # LaTeX that is written in short
    (r"\boxed{\frac\pi2}", r"\frac{\pi}{2}"),
    (r"\boxed{5 + \frac{\pi}{2}}", r"5 + \frac\pi 2"),
    (r"\boxed{(1,2,3)}", r"\langle 1,2,3 \rangle"),
    (r"\boxed{0,4,8,\ldots,400}", r"0, 4, 8, \ldots, 400"),
    (r"\boxed{8:34 \text{ PM}}", r"8\!:\!34 \text{ p.m.}"),
    (r"\boxed{8:34}", r"8\!:\!34 \text{ p.m.}"),
    ("The answer is 8:34 p.m.", "8:34"),
    (r"The answer is $\text{4:30 p.m.}$.", r"\text{4:30 p.m.}"),
    (r"\boxed{4:30 \text{ PM}}", r"\text{4:30 p.m.}"),
    (r"\boxed{\text{4:51:06 PM}}", r"4\!:\!51\!:\!06 \text{ p.m.}"),
    (r"\boxed{6:4}", "3:2"),
    (r"\fbox{3/2}", r"\frac{3}{2}"),
    (r"\boxed{8.24}", r"\approx 8.24 \text{ mph}"),
    # calculations
    ("The answer is 48 + 24 = 72 clips.", "72"),
    ("Answer: 9 * 2 = 18 dollars", "18"),
    ("**Answer:** 9 eggs × $2 = **$18**", "18"),
    ("The answer is 9 x 2 = $18 per day.", "18"),
    (r"The final answer is $9 \cdot 2 = 18$ dollars.", "18"),
    ("Answer: Each costs $5 and she needs 15, so she spends $5*15 = $75.00 on them", "75"),
    ("So she now has $400-$261 = $139", "139"),
    ("The difference is $800/week - $640/week = $160/week", "160"),
    ("There were 90 - 15 = 75 bees that come back in the last 6 hours.", "75"),
    ("80 - 54 = 26 people did not get another one.", "26"),
    ("One of them is 200 square feet.", "200"),
    ("We see that x=220+23-80=163 Post-it notes.", "163"),
    ("The answer is 72.\n\nWe can check our answer: 72 - 24 = 48 clips.", "72"),
    # units
    ("The answer is 3 hours 20 minutes.", "3 hours 20 minutes"),
    ("It takes **3 hours and 20 minutes**.", "3 hours 20 minutes"),
    ("<answer>The answer is 3 hours 20 minutes</answer>", "3 hours 20 minutes"),
    ("The answer is 2 remainder 3.", "2 R 3"),
    ("#### $18 a day", "18"),
    ("#### 12 in all", "12"),
    (r"\boxed{12 in all}", "12"),
    ("#### 5 pairs of shoes", "5"),
    ("#### 100 every month", "100"),
    ("#### 30 miles before stopping", "30"),
    (r"\boxed{15 \text{ square centimeters}}", r"15\mbox{ cm}^2"),
    (r"\boxed{40 \text{ min}}", r"40\text{ minutes}"),
    (r"\boxed{7 \text{ numbers}}", r"7 \text{ distinct numbers}"),
    (r"\boxed{\$32,348}", "32348"),
    (r"\boxed{80\text{¢}}", r"80\text{ cents}"),
    ("#### 40 mph", "40 miles per hour"),
    (r"\boxed{12^\circ}", r"12\text{ degrees}"),
    ("15°C", "15"),
    (r"The answer is $12\pi$ cm.", r"12\pi"),
    (r"\boxed{8\sqrt{3}}", r"8\sqrt{3} \text { square inches}"),
    (r"\boxed{8\sqrt{3}\,\mathrm{in}^2}", r"8\sqrt{3} \text { square inches}"),
    # per cent and thousands
    (r"\boxed{50.0\%}", "50"),
    ("#### 50.00%", "50"),
    ("The answer is 12.5%.", "12.5"),
    (r"\boxed{12.5}", r"12.5\%"),
    (r"\boxed{50.0\%}", "0.5"),
    (r"\boxed{\dfrac{20{,}000}{\pi}}", r"\frac{20000}{\pi}"),
    (r"\boxed{1{,}000\pi}", r"1000\pi"),
    (r"\boxed{1,000\pi}", r"1000\pi"),
    ("#### $1,234.50", "1234.5"),
    (r"\boxed{111111111}", r"111, \! 111, \! 111"),
    # answers as data sets have them
    (r"\boxed{3\sqrt{6}}", r"$3 \sqrt{6}$."),
    (r"\boxed{14 + 4\sqrt{37}}", r"$14+4 \sqrt{37}$."),
    (r"\boxed{\frac{7+i}{5}}", r"\frac{7}{5} + \frac{1}{5} i."),
    (r"\boxed{6, 8, 10}", r"6, 8\text{, and }10"),
    (r"\boxed{6, 8 \text{ and } 10}", "6,8,10"),
    (r"\boxed{142, 118, 98}", "$98,118,142$"),
    (r"\boxed{98,118,142}", "98, 118, 142"),
    (r"\boxed{2\sqrt{3}.}", r"2\sqrt{3}"),
    (r"#### $\sqrt{2}$.", r"\sqrt{2}"),
    (r"<answer>$\sqrt{2}$.</answer>", r"\sqrt{2}"),
    (r"**Answer:** \begin{pmatrix} -6 \\ 9 \end{pmatrix}", r"\begin{pmatrix} -6 \\ 9 \end{pmatrix}"),
    ("The answer is $2$ and $3$.", "3, 2"),
    (r"\boxed{\text{Paris}}", "Paris"),
    (r"\boxed{25}", r"So it is \boxed{25}."),
    # words
    ("The answer is New York.", r"\text{New York}"),
    ("False", "False"),
    # more of calculations
    ("She made $5 because 20 times .25 equals 5.", "5"),
    ("Thus, he will pay $6.50 + $5.50 = $12 for 5 apples and 5 oranges.", "12"),
    ("That makes 44+34+17=95 times in total", "95"),
    ("#### 3 times a day", "3"),
    ("Both scored 5 points because 20 / 4 = 5", "5"),
    ("The average of the two sizes is size 30/2 = size 15", "15"),
    ("They spent 30 + 15 = 45 minutes learning all three steps.", "45"),
    ("It takes 10,000 sq.ft - 526 sq.ft = 9,474 sq.ft. of sod.", "9474"),
    ("**Answer:** 9x^2 - 42xy + 49y^2 = 0", "9x^2 - 42xy + 49y^2 = 0"),
    # over several lines
    (r"\[ \begin{aligned} a+b &= 120+35 \\ &= 155. \end{aligned} \]", "155"),
    ("So\n$$\n\\begin{align*}\na+b &= 120+35 \\\\\n&= 155.\n\\end{align*}\n$$", "155"),
    (r"\boxed{\begin{aligned}x &= 155\end{aligned}}", "155"),
    (r"\boxed{\begin{aligned}3x+2 &= 11 \\ 3x &= 9 \\ x &= 3\end{aligned}}", "3"),
    (r"\boxed{\begin{aligned}x &= 1 \\ y &= 2\end{aligned}}", "(1, 2)"),
    # sentences within a tag
    ("<answer>The t for which both lines meet is 3.</answer>", "3"),
    ("<answer>The slope $m$ is 5.</answer>", "5"),
    ("<answer>The distance between the towns is 60 miles.</answer>", "60"),
    ("<answer>A 12 kg sack of flour will last 3 weeks.</answer>", "3"),
    (r"<answer>The slope $m$ is $\frac{\pi}{2}$.</answer>", r"\frac{\pi}{2}"),
    ("<answer>It is even</answer>", r"\text{It is even}"),
    # less than one per cent; ratios that look like a time of day
    (r"\boxed{0.5\%}", "0.005"),
    (r"\boxed{0.5\%}", r"0.5\%"),
    (r"\boxed{1\%}", "1"),
    (r"\boxed{\frac{1}{20}}", "1:20"),
    (r"\boxed{5/12}", "5:12"),
    (r"\boxed{5:10}", "1:2"),
]

WRONG = [
    ("#### 3 quarters", "3"),
    (r"\boxed{5\text{ half-million}}", "5"),
    ("#### 5 half hours", "5"),
    ("#### 5 and three quarters", "5"),
    ("#### 5 and a half", "5"),
    ("#### 5 feet six inches", "5"),
    (r"\boxed{5\text{ squared}}", "5"),
    (r"\boxed{5\text{ dozen eggs}}", "5"),
    (r"\boxed{5\text{ gross of pens}}", "5"),
    (r"\boxed{5\text{ is false}}", "5"),
    (r"\boxed{5\text{ (wrong)}}", "5"),
    (r"\boxed{5\text{ half-hours}}", r"5\text{ hours}"),
    ("Tom runs 3 times Ann's distance.", "3"),
    ("The answer is <solution> 33 </solution>.", "32"),
    ("The answer is 5 < 7.", "5"),
    ("The answer is 5 <x.", "5"),
    ("The answer is 10<sup>3</sup>.", "10"),
    ("The answer is 10<sup>3</sup>.", "103"),
    ("I don't think that it is 12.", "12"),
    ("I am not sure whether the sum is 12.", "12"),
    ("The sum is not 12.", "12"),
    ("The sum is at least $12$.", "12"),
    ("The least value is more than 12.", "12"),
    ("He picked up no 12 cans.", "12"),
    ("The value lies between 12 and 13.", "12"),
    (r"\boxed{x^2 + 2}", "x^2+2t"),
    (r"\boxed{5t^2 + 3}", "5t^2+3t"),
    (r"\boxed{2n+2}", "2n+2m"),
    (r"\boxed{2s}", "2t"),
    (r"\boxed{2}", "2s"),
    (r"\boxed{a + b + d}", "a + b + c"),
    (r"\boxed{\sin^2 x}", r"\sin^2 t"),
    (r"\boxed{x**2 - 1}", "1"),
    (r"\boxed{3**2 + 1}", "1"),
    (r"\boxed{3*sqrt((a + b*c)**2 + (c**2 - 1)**2)}", "1.0"),
    (r"\boxed{\frac\pi 2}", "2"),
    (r"\boxed{2}", r"5 + \frac\pi 2"),
    (r"\boxed{\langle 9,9,3 \rangle}", r"\langle 1,2,3 \rangle"),
    (r"\boxed{3}", r"\langle 1,2,3 \rangle"),
    (r"\boxed{\begin{cases} x=7 \\ y=2 \end{cases}}", r"\begin{cases} x=1 \\ y=2 \end{cases}"),
    (r"\boxed{x \equiv 3 \pmod 7}", r"x \equiv 3 \pmod 5"),
    (r"\boxed{400}", r"0, 4, 8, \ldots, 400"),
    (r"\boxed{5\ldots}", "5"),
    (r"\boxed{4:17}", r"8\!:\!34 \text{ p.m.}"),
    (r"\boxed{8:34 \text{ a.m.}}", r"8\!:\!34 \text{ p.m.}"),
    (r"\boxed{3:08}", "9:24"),
    ("The answer is 48 + 24 = 72 clips.", "48"),
    ("**Answer:** 9 eggs × $2 = **$18**", "9"),
    ("The answer is 75 miles per hour - 50 miles per hour = 25 miles per hour", "75"),
    ("Answer: 5 or 6", "5"),
    ("The answer is 5 dozen.", "5"),
    ("The answer is 5 million.", "5"),
    ("The answer is at least 5.", "5"),
    ("The answer is March 5.", "5"),
    ("The answer is not 5.", "5"),
    ("The answer is 5 out of 6.", "5"),
    ("The answer is 5 times as many.", "5"),
    ("The answer is $5$ times $7$, that is $35$.", "5"),
    (r"\boxed{5\text{ dozen}}", "5"),
    (r"\boxed{5\text{ halves}}", "5"),
    (r"\boxed{5\text{ million}}", "5"),
    (r"\boxed{5\text{k}}", "5"),
    (r"\boxed{\text{at least }5}", "5"),
    (r"\boxed{5 \text{ or } 6}", "5"),
    ("The answer is 18 pears.", "18 eggs"),
    (r"\boxed{18\text{ pears}}", r"18\text{ eggs}"),
    (r"\boxed{18\text{ egg cartons}}", r"18\text{ eggs}"),
    (r"\boxed{12\text{ cm}}", r"12\text{ cm}^2"),
    (r"\boxed{12\text{ m}^2}", r"12\text{ cm}^2"),
    (r"\boxed{2\sqrt{3}\text{ m}}", r"2\sqrt{3}\text{ cm}"),
    ("€5", r"\$5"),
    (r"\boxed{5\text{ kg}}", r"5\text{ dollars}"),
    (r"\boxed{\frac{5^{2024}}{\binom{4048}{2024}}-2}", r"\frac{4^{2024}}{\binom{4048}{2024}}-2"),
    ("The answer is York.", r"\text{New York}"),
    ("The answer is 3 hours 30 minutes.", "3 hours 20 minutes"),
    ("The answer is 3 dollars 20 cents.", "3 hours 20 minutes"),
    ("The answer is 3 hours 20 minutes.", "3"),
    (r"\boxed{50.1\%}", "50"),
    (r"\boxed{20{,}000\pi}", r"\frac{20000}{\pi}"),
    (r"\boxed{20}", r"20000\pi"),
    (r"\boxed{98, 118}", "$98,118,142$"),
    (r"\boxed{6, 8}", r"6, 8\text{, and }10"),
    (r"\boxed{\sqrt{6}}", r"$3 \sqrt{6}$."),
    (r"\[ \begin{aligned} a+b &= 120+35 \\ &= 155. \end{aligned} \]", "120"),
    (r"\boxed{\begin{aligned}x &= 1 \\ y &= 2\end{aligned}}", "2"),
    (r"\boxed{\begin{aligned}x &= 1 \\ x &= 2\end{aligned}}", "2"),
    ("<answer>A 12 kg sack of flour will last 3 weeks.</answer>", "12"),
    ("<answer>$x$ is 5 and $y$ is 6.</answer>", "6"),
    ("<answer>It is not true that $x$ is 5.</answer>", "5"),
    ("<answer>$x$ is 5 or 6.</answer>", "5"),
    ("#### 0.02%", "0.02"),
    (r"\boxed{0.5\%}", "0.5"),
    (r"\boxed{0.5}", r"0.5\%"),
    (r"\boxed{5:10}", "1:3"),
    (r"\boxed{1:00}", "1/2"),
    (r"\boxed{8/34}", "8:34 p.m."),
]


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], bool]:
    async def all_rows() -> dict[tuple[str, str], bool]:
        async with SandboxPool(workers=2, packages=PACKAGES) as sandbox, MathGrader(sandbox) as grader:
            rows = RIGHT + WRONG
            right = await asyncio.gather(*(grader.equal(answer, reply) for reply, answer in rows))
            return dict(zip(rows, right, strict=True))

    return asyncio.run(all_rows())


@pytest.mark.parametrize("row", RIGHT, ids=" for ".join)
def test_right(verdicts: dict[tuple[str, str], bool], row: tuple[str, str]) -> None:
    assert verdicts[row]


@pytest.mark.parametrize("row", WRONG, ids=" for ".join)
def test_wrong(verdicts: dict[tuple[str, str], bool], row: tuple[str, str]) -> None:
    assert not verdicts[row]
