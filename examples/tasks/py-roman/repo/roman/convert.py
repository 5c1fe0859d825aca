NUMERALS = [
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
]
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def to_roman(number: int) -> str:
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} is not between 1 and 3999")
    result = ""
    for value, numeral in NUMERALS:
        while number >= value:
            result += numeral
            number -= value
    return result


def from_roman(text: str) -> int:
    total = 0
    for letter in text:
        total += VALUES[letter]
    return total
